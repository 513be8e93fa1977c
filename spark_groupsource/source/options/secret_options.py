"""Options with secrets: references to them, and whether Spark shows them."""

from __future__ import annotations

import logging
import re
from typing import Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX, SECURITY_KEYS
from spark_groupsource.common.config_providers import is_provider_setting, resolve
from spark_groupsource.model import bounded_names
from spark_groupsource.source.options.value_options import REGISTRY_PREFIXES, TLS_PREFIXES, VALUE_OPTIONS

_log = logging.getLogger(__name__)
_TLS_SECRETS = [name for key in SECURITY_KEYS.values() if key.is_sensitive for name in (key.name, *key.aliases)]
SECRET_OPTIONS = frozenset(
    {
        *(f"{OPTION_PREFIX}{name}" for name in _TLS_SECRETS),
        *(f"{prefix}{name[4:]}" for prefix in TLS_PREFIXES for name in _TLS_SECRETS if name.startswith("ssl.")),
        *(key.name for key in VALUE_OPTIONS.values() if key.is_sensitive),
    }
)
"""Lower-case names of the options with secrets."""
# of these, certificates are public
_PUBLIC = ("certificates", "chain", ".ca.pem", ".certificate.pem")
_REFERENCES = re.compile(r"(?:\$\{[^}]+\}:?)+")
# the default of spark.redaction.regex, which Spark applies to names and values
_REDACTED = re.compile("secret|password|token|access[.]?key|credential", re.IGNORECASE)


def is_reference(value: object) -> bool:
    """Returns whether a value consists of references to secrets."""
    return _REFERENCES.fullmatch(str(value).strip()) is not None


def resolve_references(options: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the options with the references replaced in ``kafka.*``, in secrets and in settings of a registry.

    Other options are returned as they are: a schema or a pattern may contain such a text.

    Raises: ConfigurationError.
    """
    names = {name: name.lower().removeprefix(OPTION_PREFIX) for name in options}
    providers = {name: short for name, short in names.items() if is_provider_setting(short)}
    declared = {short: str(options[name]) for name, short in providers.items()}
    if not declared and not any("${" in str(value) for value in options.values()):
        return options
    found = {}
    for name, value in options.items():
        is_resolvable = name.lower() in SECRET_OPTIONS or name.lower().startswith((OPTION_PREFIX, *REGISTRY_PREFIXES))
        if name not in providers:
            given = {**declared, name: str(value)}
            found[name] = resolve(given)[name] if is_resolvable else value
    return found


def warn_of_shown_secrets(options: Mapping[str, str]) -> None:
    """Logs the options whose secrets Spark shows in plans, in its event log and in its UI."""
    shown = shown_secrets(options)
    if shown:
        _log.warning(
            "[options=%s] Spark shows these secrets in plans, in its event log and in its UI. Give references such as "
            "${file:/etc/secrets.properties:KEY} instead, or set spark.redaction.regex.",
            bounded_names(shown),
        )


def shown_secrets(options: Mapping[str, str]) -> list[str]:
    """Returns the options with secrets whose names and values Spark does not redact by default."""
    return sorted(
        name
        for name, value in options.items()
        if name.lower() in SECRET_OPTIONS
        and not name.lower().endswith(_PUBLIC)
        and not is_reference(value)
        and not _REDACTED.search(name)
        and not _REDACTED.search(str(value))
    )
