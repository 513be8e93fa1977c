"""References to secrets in settings: ``${env:NAME}``, ``${file:PATH:KEY}``, ``${directory:PATH:FILE}``.

Resolved in the process that parses the settings; a plan or a log of Spark contains the reference only.

Source: KIP-297, KIP-421, KIP-887; Kafka `ConfigTransformer`, `FileConfigProvider`, `DirectoryConfigProvider`,
`EnvVarConfigProvider`.
"""

from __future__ import annotations

import os
import re
from typing import Mapping

from spark_groupsource.common.properties_text import decode, parse_properties
from spark_groupsource.errors import ConfigurationError

_REFERENCE = re.compile(r"\$\{([^}:\s]+):(?:([^}]*):)?([^}:]*)\}")
_CLASSES = {
    "EnvVarConfigProvider": "env",
    "FileConfigProvider": "file",
    "DirectoryConfigProvider": "directory",
}
_SETTING = re.compile(r"config\.providers(\..+)?\Z")


def is_provider_setting(name: str) -> bool:
    """Returns whether a setting declares providers, which exist here without it."""
    return _SETTING.match(name) is not None


def resolve(settings: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Returns the settings with their references replaced, without those of providers.

    Args:
        prefix: of the names as the user writes them; for error messages.
    Raises: ConfigurationError for an unknown provider, and a missing variable, file or key.
    """
    providers = {name: name for name in _CLASSES.values()}
    for name, value in settings.items():
        parts = name.split(".")
        if is_provider_setting(name) and len(parts) == 4 and parts[3] == "class":
            known = _CLASSES.get(str(value).strip().rpartition(".")[2])
            if known is None:
                raise ConfigurationError(
                    f"Option {prefix}{name} must be one of {', '.join(_CLASSES)} of Kafka, got {value!r}."
                )
            providers[parts[2]] = known
    return {
        name: _resolved(f"{prefix}{name}", value, providers) if "${" in str(value) else value
        for name, value in settings.items()
        if not is_provider_setting(name)
    }


def _resolved(option: str, value: str, providers: Mapping[str, str]) -> str:
    def replacement(found: re.Match[str]) -> str:
        provider, path, key = found[1], found[2] or "", found[3]
        kind = providers.get(provider)
        if kind == "env":
            return _lookup(option, f"environment variable {key}", os.environ, key)
        if kind == "file":
            return _lookup(option, f"key {key} of {path}", _properties(option, path), key)
        if kind == "directory":
            if "/" in key:
                raise ConfigurationError(f"Option {option} has a reference whose file name {key!r} has a directory.")
            return _read(option, os.path.join(path, key))
        raise ConfigurationError(
            f"Option {option} has a reference to the provider {provider!r}. Use one of {', '.join(providers)}, for "
            "example ${env:NAME}."
        )

    return _REFERENCE.sub(replacement, value)


def _lookup(option: str, place: str, values: Mapping[str, str], key: str) -> str:
    if key not in values:
        raise ConfigurationError(
            f"Option {option} refers to {place}, which does not exist. Set it, or correct the name."
        )
    return values[key]


def _read(option: str, path: str) -> str:
    try:
        with open(path, "rb") as file:
            return decode(file.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"Option {option} refers to the file {path}, which cannot be read: {reason}. Correct the path."
        ) from None


def _properties(option: str, path: str) -> dict[str, str]:
    text = _read(option, path)
    try:
        return parse_properties(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"Option {option} refers to the file {path}, which is invalid: {error}") from None
