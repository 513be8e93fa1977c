"""TLS and SASL settings of a client, under Java's and librdkafka's names.

`net` loads the files, `client.network.connection` authenticates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from spark_groupsource.client.network.sasl_options import SASL_KEYS, parse_login
from spark_groupsource.client.network.tokens import RefreshSettings, TokenSource
from spark_groupsource.common.config_def import ConfigKey, ConfigType, parse_given, trim
from spark_groupsource.common.tls import TlsSettings
from spark_groupsource.common.tls_options import TLS_KEYS, parse_tls
from spark_groupsource.errors import ConfigurationError

OPTION_PREFIX = "kafka."
"""Prefix of client settings among the options of the data source."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _parse_protocol(name: str, text: str) -> str:
    protocol = text.strip().upper()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(f"Option {name} must be one of {', '.join(PROTOCOLS)}, got {text!r}.")
    return protocol


SECURITY_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            "security.protocol",
            ConfigType.STRING,
            "PLAINTEXT",
            "Whether connections use TLS and SASL.",
            choices=PROTOCOLS,
            parser=_parse_protocol,
        ),
        *SASL_KEYS,
        *TLS_KEYS,
    )
}
"""Settings of TLS and SASL, by name."""

@dataclass(frozen=True)
class SecuritySettings:
    """Protocol, TLS settings and credentials of a connection; picklable; `repr` omits the password."""

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = field(default=None, repr=False)
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token_source: TokenSource | None = field(default=None, repr=False)
    refresh: RefreshSettings = field(default=RefreshSettings(), repr=False)

    @property
    def principal(self) -> str:
        """The principal that a broker sees, as far as the client knows it, for messages."""
        if self.username is not None:
            return f"User:{self.username}"
        if self.token_source is not None:
            return "the user of the token"
        has_certificate = self.tls is not None and (self.tls.cert_file or self.tls.cert_pem)
        return "the user of the client certificate" if has_certificate else "User:ANONYMOUS"

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> SecuritySettings:
        """Parses the settings of `SECURITY_KEYS`; others are left to their own parsers.

        Raises: ConfigurationError for malformed, unsupported or missing settings.
        """
        values: dict[str, Any] = parse_given(SECURITY_KEYS, settings, OPTION_PREFIX)
        protocol = values.get("security.protocol", "PLAINTEXT")
        tls = parse_tls(values, OPTION_PREFIX) if protocol.endswith("SSL") else None
        if not protocol.startswith("SASL"):
            return cls(protocol, tls)
        return cls(protocol, tls, *parse_login(values, protocol, bootstrap_text(settings)))


def bootstrap_text(settings: Mapping[str, str]) -> str:
    """Returns the addresses among Kafka's settings, by either name; empty if there are none."""
    return trim(settings.get("bootstrap.servers", settings.get("metadata.broker.list", "")))
