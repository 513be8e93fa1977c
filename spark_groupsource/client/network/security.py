"""How a client proves itself and checks the broker: TLS and SASL settings under Java's and librdkafka's names.

Knows settings only; `net` loads the files, `client.connection` runs the exchange.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.net import TlsSettings

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

SETTINGS = frozenset(
    {
        "security.protocol",
        # Java and librdkafka differ in the plural
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.endpoint.identification.algorithm",
    }
)
"""Names this module reads."""

_JAAS_OPTION = re.compile(r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)')
_JAAS_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}


@dataclass(frozen=True)
class SecuritySettings:
    """What a connection needs to be let in; can be pickled, and does not print the password."""

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = field(default=None, repr=False)
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> SecuritySettings:
        """Reads the settings of `SETTINGS`, others are left alone.

        Raises: ConfigurationError naming the setting and the mend.
        """
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigurationError(f"security.protocol: {protocol!r} is not one of {', '.join(PROTOCOLS)}")
        tls = _parse_tls(settings) if protocol.endswith("SSL") else None
        if not protocol.startswith("SASL"):
            return cls(protocol, tls)
        mechanism = (settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "").upper()
        username, password = settings.get("sasl.username"), settings.get("sasl.password")
        if "sasl.jaas.config" in settings:
            allowed, username, password = parse_jaas(settings["sasl.jaas.config"])
            mechanism = mechanism or allowed[0]
            if mechanism not in allowed:
                raise ConfigurationError(
                    f"sasl.mechanism is {mechanism}, but the login module in sasl.jaas.config is for "
                    + ", ".join(allowed)
                )
        if mechanism not in MECHANISMS:
            raise ConfigurationError(
                f"sasl.mechanism: {mechanism or 'not given'}; supported are {', '.join(MECHANISMS)}"
            )
        if not username or password is None:
            raise ConfigurationError(
                f"{protocol} needs sasl.username and sasl.password, or sasl.jaas.config with both inside"
            )
        return cls(protocol, tls, mechanism, username, password)


def parse_jaas(text: str) -> tuple[tuple[str, ...], str, str]:
    """Mechanisms, user name and password of a ``sasl.jaas.config`` value.

    Raises: ConfigurationError on another login module and on a missing user name or password.
    """
    module = text.split(maxsplit=1)[0].rpartition(".")[2] if text.split() else ""
    if module not in _JAAS_MODULES:
        raise ConfigurationError(
            f"sasl.jaas.config: login module {module or 'missing'!s}; supported are {', '.join(_JAAS_MODULES)}"
        )
    values = {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        for name, value in _JAAS_OPTION.findall(text)
    }
    for needed in ("username", "password"):
        if needed not in values:
            raise ConfigurationError(f'sasl.jaas.config has no {needed}; write {needed}="..." before the semicolon')
    return _JAAS_MODULES[module], values["username"], values["password"]


def _parse_tls(settings: Mapping[str, str]) -> TlsSettings:
    for store in ("truststore", "keystore"):
        kind = settings.get(f"ssl.{store}.type", "PEM" if _is_pem(settings.get(f"ssl.{store}.location", "")) else "JKS")
        if f"ssl.{store}.location" in settings and kind.upper() != "PEM":
            raise ConfigurationError(
                f"ssl.{store}.type: {kind} stores are Java's own; export the store as PEM "
                f"(keytool -exportcert -rfc, or openssl pkcs12) and set ssl.{store}.type=PEM"
            )
    certificate = settings.get("ssl.certificate.location") or settings.get("ssl.keystore.location")
    return TlsSettings(
        ca_file=settings.get("ssl.ca.location") or settings.get("ssl.truststore.location"),
        cert_file=certificate,
        key_file=settings.get("ssl.key.location") or settings.get("ssl.keystore.location"),
        key_password=settings.get("ssl.key.password"),
        check_hostname=settings.get("ssl.endpoint.identification.algorithm", "https").lower() == "https",
    )


def _is_pem(path: str) -> bool:
    return path.lower().endswith((".pem", ".crt", ".cer", ".key"))
