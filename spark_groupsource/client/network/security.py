"""TLS and SASL settings of a client, under Java's and librdkafka's names.

`net` loads the files, `client.network.connection` authenticates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping

from spark_groupsource.config_def import ConfigKey, ConfigType, parse_given
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.tls import TlsSettings

OPTION_PREFIX = "kafka."
"""Prefix of client settings among the options of the data source."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


# (store, whether it is PKCS12) -> commands
_CONVERSIONS = {
    ("truststore", True): "openssl pkcs12 -in {path} -nokeys -out truststore.pem",
    ("truststore", False): "keytool -list -rfc -keystore {path} > truststore.pem",
    ("keystore", True): "openssl pkcs12 -in {path} -nodes -out keystore.pem",
    ("keystore", False): (
        "keytool -importkeystore -srckeystore {path} -destkeystore keystore.p12 -deststoretype PKCS12, and "
        "openssl pkcs12 -in keystore.p12 -nodes -out keystore.pem"
    ),
}


def _parse_protocol(name: str, text: str) -> str:
    protocol = text.strip().upper()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(f"Option {name} must be one of {', '.join(PROTOCOLS)}, got {text!r}.")
    return protocol


def _parse_identification(name: str, text: str) -> str:
    algorithm = text.strip().lower()
    if algorithm not in ("https", ""):
        raise ConfigurationError(
            f"Option {name} must be https, or empty to turn off the check of the broker's host name, got {text!r}."
        )
    return algorithm


def _text(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, None, doc, parser=lambda _, text: text)


def _secret(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.PASSWORD, None, doc, parser=lambda _, text: text)


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
        ConfigKey(
            "sasl.mechanism",
            ConfigType.STRING,
            None,
            "SASL mechanism; taken from the login module where sasl.jaas.config is set.",
            choices=MECHANISMS,
            aliases=("sasl.mechanisms",),
            parser=lambda _, text: text.upper(),
            kafka_default="GSSAPI",
        ),
        _secret("sasl.jaas.config", "PlainLoginModule or ScramLoginModule with user name and password."),
        _text("sasl.username", "User name; librdkafka's alternative to sasl.jaas.config."),
        _secret("sasl.password", "Password; librdkafka's alternative to sasl.jaas.config."),
        _text("ssl.ca.location", "PEM file of the certificate authorities; the system's when not set."),
        _text("ssl.certificate.location", "PEM file of the client certificate."),
        _text("ssl.key.location", "PEM file of the client's private key."),
        _secret("ssl.key.password", "Password of the private key."),
        _text("ssl.truststore.location", "As ssl.ca.location, under Java's name; must be PEM."),
        _text("ssl.truststore.type", "Only PEM is accepted; inferred from the file name when not set."),
        _text("ssl.keystore.location", "PEM file of client certificate and private key, under Java's name."),
        _text("ssl.keystore.type", "Only PEM is accepted; inferred from the file name when not set."),
        ConfigKey(
            "ssl.endpoint.identification.algorithm",
            ConfigType.STRING,
            "https",
            "https checks the broker's host name; only an empty value turns the check off.",
            parser=_parse_identification,
        ),
    )
}
"""Settings of TLS and SASL, by name."""

_JAAS_OPTION = re.compile(r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)')
_JAAS_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}


@dataclass(frozen=True)
class SecuritySettings:
    """Protocol, TLS settings and credentials of a connection; picklable; `repr` omits the password."""

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = field(default=None, repr=False)
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> SecuritySettings:
        """Parses the settings of `SECURITY_KEYS`; others are left to their own parsers.

        Raises: ConfigurationError for malformed, unsupported or missing settings.
        """
        check_stores(settings)
        values: dict[str, str] = parse_given(SECURITY_KEYS, settings, OPTION_PREFIX)
        protocol = values.get("security.protocol", "PLAINTEXT")
        tls = _parse_tls(values) if protocol.endswith("SSL") else None
        if not protocol.startswith("SASL"):
            return cls(protocol, tls)
        mechanism = values.get("sasl.mechanism", "")
        username, password = values.get("sasl.username"), values.get("sasl.password")
        if "sasl.jaas.config" in values:
            allowed, username, password = parse_jaas(values["sasl.jaas.config"])
            mechanism = mechanism or allowed[0]
            if mechanism not in allowed:
                raise ConfigurationError(
                    f"Option kafka.sasl.mechanism is {mechanism}, but the login module in kafka.sasl.jaas.config "
                    f"is for {', '.join(allowed)}. Set both to the same mechanism."
                )
        if mechanism not in MECHANISMS:
            got = f"got {mechanism!r}" if mechanism else "but is not set"
            raise ConfigurationError(f"Option kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}, {got}.")
        if not username or password is None:
            raise ConfigurationError(
                f"Option kafka.security.protocol is {protocol}, but user name or password is missing. Set "
                "kafka.sasl.username and kafka.sasl.password, or kafka.sasl.jaas.config."
            )
        return cls(protocol, tls, mechanism, username, password)


def parse_jaas(text: str) -> tuple[tuple[str, ...], str, str]:
    """Returns mechanisms, user name and password of a ``sasl.jaas.config`` value.

    Raises: ConfigurationError on another login module and on a missing user name or password.
    """
    module = text.split(maxsplit=1)[0].rpartition(".")[2] if text.split() else ""
    if module not in _JAAS_MODULES:
        raise ConfigurationError(
            f"Option kafka.sasl.jaas.config must name one of {', '.join(_JAAS_MODULES)}, got {module!r}."
        )
    values = {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        for name, value in _JAAS_OPTION.findall(text)
    }
    for needed in ("username", "password"):
        if needed not in values:
            raise ConfigurationError(
                f'Option kafka.sasl.jaas.config has no {needed}. Write {needed}="..." before the semicolon.'
            )
    return _JAAS_MODULES[module], values["username"], values["password"]


def _parse_tls(settings: Mapping[str, str]) -> TlsSettings:
    certificate = settings.get("ssl.certificate.location") or settings.get("ssl.keystore.location")
    return TlsSettings(
        ca_file=settings.get("ssl.ca.location") or settings.get("ssl.truststore.location"),
        cert_file=certificate,
        key_file=settings.get("ssl.key.location") or settings.get("ssl.keystore.location"),
        key_password=settings.get("ssl.key.password"),
        check_hostname=settings.get("ssl.endpoint.identification.algorithm", "https") == "https",
    )


def check_stores(settings: Mapping[str, str]) -> None:
    """Rejects key and trust stores that are not PEM, with the commands that convert them.

    Raises: ConfigurationError.
    """
    for store in ("truststore", "keystore"):
        path = settings.get(f"ssl.{store}.location")
        if path is None or not settings.get("security.protocol", "").strip().upper().endswith("SSL"):
            continue
        kind = settings.get(f"ssl.{store}.type", "PEM" if _is_pem(path) else _store_type(path)).upper()
        if kind != "PEM":
            commands = _CONVERSIONS[store, kind == "PKCS12"].format(path=path)
            raise ConfigurationError(
                f"Option kafka.ssl.{store}.location names a store in the format {kind}, but PEM is required: {path}. "
                f"Convert it to PEM ({commands}), then set kafka.ssl.{store}.location={store}.pem and "
                f"kafka.ssl.{store}.type=PEM."
            )


def _is_pem(path: str) -> bool:
    return path.lower().endswith((".pem", ".crt", ".cer", ".key"))


def _store_type(path: str) -> str:
    """Returns the type of a store by its first bytes, of an unreadable one by its name; Java's default is JKS."""
    try:
        with open(path, "rb") as file:
            head = file.read(11)
    except OSError:
        head = b""
    if head.startswith(b"-----BEGIN "):
        return "PEM"
    is_pkcs12 = head.startswith(b"\x30") or (not head and path.lower().endswith((".p12", ".pfx")))
    return "PKCS12" if is_pkcs12 else "JKS"
