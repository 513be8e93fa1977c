"""TLS settings of clients and listeners, under Java's and librdkafka's names."""

from __future__ import annotations

from typing import Any, Mapping

from spark_groupsource.common.config_def import ConfigKey, ConfigType, comma_list
from spark_groupsource.common.tls import STORE_TYPES, TlsSettings
from spark_groupsource.errors import ConfigurationError

_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_ANY_VERSION = "TLS"
_CIPHERS_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


def _parse_identification(name: str, text: str) -> str:
    algorithm = text.strip().lower()
    if algorithm not in ("https", ""):
        raise ConfigurationError(
            f"Option {name} must be https, or empty to turn off the check of the broker's host name, got {text!r}."
        )
    return algorithm


def _parse_verification(name: str, text: str) -> bool:
    if text.strip().lower() != "true":
        raise ConfigurationError(
            f"Option {name} must be true, got {text!r}: certificates are always verified. Set kafka.ssl.ca.location to "
            "the certificate authority, or to the certificate of the broker itself."
        )
    return True


def _parse_store_type(name: str, text: str) -> str:
    kind = text.strip().upper()
    if kind and kind not in STORE_TYPES:
        raise ConfigurationError(
            f"Option {name} must be one of {', '.join(STORE_TYPES)}, got {text!r}. Convert the store: keytool "
            f"-importkeystore -srckeystore STORE -srcstoretype {kind[:20]} -destkeystore store.p12 "
            "-deststoretype PKCS12."
        )
    return kind


def _parse_versions(name: str, text: str) -> tuple[str, ...]:
    versions = comma_list(text)
    unknown = [each for each in versions if each not in _VERSIONS]
    if unknown or not versions:
        raise ConfigurationError(f"Option {name} must list versions of {', '.join(_VERSIONS)}, got {text!r}.")
    return tuple(version for version in _VERSIONS if version in versions)


def _parse_ciphers(name: str, text: str) -> tuple[str, ...]:
    names = comma_list(text.replace(":", ","))
    found = [each for each in _CIPHERS_1_3 if each in names]
    if 0 < len(found) < len(_CIPHERS_1_3):
        raise ConfigurationError(
            f"Option {name} must have all cipher suites of TLS 1.3 ({', '.join(_CIPHERS_1_3)}) or none, got "
            f"{', '.join(found)}: Python cannot select among them."
        )
    return names


def _text(name: str, doc: str, **more: Any) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, None, doc, parser=more.pop("parser", lambda _, text: text), **more)


def _secret(name: str, doc: str, *aliases: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.PASSWORD, None, doc, parser=lambda _, text: text, aliases=aliases)


_STORE_TYPE_DOC = "PEM, PKCS12 or JKS; the content of the file decides."
TLS_KEYS: tuple[ConfigKey, ...] = (
    _text(
        "ssl.ca.location",
        "Certificate authorities: a file in PEM, PKCS12 or JKS, or a directory; the system's when not set. It is read "
        "again for a new connection when it has changed, as are the other files.",
    ),
    _text("ssl.certificate.location", "PEM file of the client certificate with its chain."),
    _text("ssl.key.location", "PEM file of the client's private key."),
    _secret("ssl.key.password", "Password of the private key; that of the key store when not set."),
    _text("ssl.truststore.location", "As ssl.ca.location, under Java's name."),
    _secret("ssl.truststore.password", "Password of a PKCS12 or JKS trust store."),
    _text("ssl.truststore.type", _STORE_TYPE_DOC, parser=_parse_store_type, choices=STORE_TYPES),
    _secret("ssl.truststore.certificates", "Certificate authorities as PEM text.", "ssl.ca.pem"),
    _text(
        "ssl.keystore.location",
        "Client certificate and private key in one file: PEM, JKS, or PKCS12 (needs the extra tls).",
    ),
    _secret("ssl.keystore.password", "Password of a PKCS12 or JKS key store."),
    _text("ssl.keystore.type", _STORE_TYPE_DOC, parser=_parse_store_type, choices=STORE_TYPES),
    _secret(
        "ssl.keystore.certificate.chain", "Client certificate with its chain as PEM text.", "ssl.certificate.pem"
    ),
    _secret("ssl.keystore.key", "Private key as PEM text (PKCS#8).", "ssl.key.pem"),
    ConfigKey(
        "ssl.protocol",
        ConfigType.STRING,
        "TLSv1.3",
        "Highest version of TLS; TLS is the highest that both sides support.",
        choices=(_ANY_VERSION, *_VERSIONS),
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        ("TLSv1.2", "TLSv1.3"),
        "Versions of TLS; those between the lowest and the highest are enabled too.",
        choices=_VERSIONS,
        parser=_parse_versions,
    ),
    ConfigKey(
        "ssl.cipher.suites",
        ConfigType.LIST,
        None,
        "Cipher suites, in Java's or OpenSSL's names; without those of TLS 1.3, TLS 1.2 is used.",
        parser=_parse_ciphers,
    ),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        ConfigType.STRING,
        "https",
        "https checks the broker's host name; only an empty value turns the check off.",
        parser=_parse_identification,
    ),
    ConfigKey(
        "enable.ssl.certificate.verification",
        ConfigType.BOOLEAN,
        True,
        "Only true is accepted: the certificate of the broker is verified.",
        parser=_parse_verification,
    ),
)
"""Settings of TLS."""


def parse_tls(values: Mapping[str, Any], prefix: str) -> TlsSettings:
    """Returns the TLS settings of parsed values of `TLS_KEYS`.

    Raises: ConfigurationError for settings that exclude each other.
    """
    _check_combinations(values, prefix)
    ca_file = values.get("ssl.ca.location") or values.get("ssl.truststore.location")
    ciphers: tuple[str, ...] = values.get("ssl.cipher.suites") or ()
    return TlsSettings(
        # librdkafka searches the usual places of the system's authorities
        ca_file=None if ca_file == "probe" else ca_file,
        ca_pem=_pem_text(values.get("ssl.truststore.certificates")),
        ca_password=values.get("ssl.truststore.password"),
        cert_file=values.get("ssl.certificate.location") or values.get("ssl.keystore.location"),
        cert_pem=_pem_text(values.get("ssl.keystore.certificate.chain")),
        cert_password=values.get("ssl.keystore.password"),
        key_file=values.get("ssl.key.location"),
        key_pem=_pem_text(values.get("ssl.keystore.key")),
        key_password=values.get("ssl.key.password"),
        check_hostname=values.get("ssl.endpoint.identification.algorithm", "https") == "https",
        protocols=_versions(values, ciphers),
        ciphers=tuple(_openssl_name(each) for each in ciphers if each not in _CIPHERS_1_3),
    )


def _pem_text(text: str | None) -> str | None:
    # in a properties file or an option, PEM is often one line with the line breaks escaped
    return None if text is None else text.replace("\\n", "\n")


def _check_combinations(values: Mapping[str, Any], prefix: str) -> None:
    def given(*names: str) -> list[str]:
        return [f"{prefix}{name}" for name in names if values.get(name)]

    for names in (
        ("ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates"),
        ("ssl.certificate.location", "ssl.keystore.location", "ssl.keystore.certificate.chain"),
        ("ssl.key.location", "ssl.keystore.key"),
    ):
        both = given(*names)
        if len(both) > 1:
            raise ConfigurationError(f"Options {both[0]} and {both[1]} exclude each other. Remove one of them.")
    for store in ("truststore", "keystore"):
        if values.get(f"ssl.{store}.type") == "PEM" and values.get(f"ssl.{store}.password"):
            raise ConfigurationError(
                f"Option {prefix}ssl.{store}.password is set, but a PEM file has no password. Remove it"
                + (f", or set {prefix}ssl.key.password to the password of the key." if store == "keystore" else ".")
            )
    key, chain = given("ssl.key.location", "ssl.keystore.key"), given(
        "ssl.certificate.location", "ssl.keystore.location", "ssl.keystore.certificate.chain"
    )
    if key and not chain:
        raise ConfigurationError(
            f"Option {key[0]} is set without a certificate. Set {prefix}ssl.certificate.location or "
            f"{prefix}ssl.keystore.certificate.chain."
        )
    if values.get("ssl.keystore.certificate.chain") and not key:
        raise ConfigurationError(
            f"Option {prefix}ssl.keystore.certificate.chain is set without a private key. Set {prefix}ssl.keystore.key."
        )


def _versions(values: Mapping[str, Any], ciphers: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the enabled versions, empty for the default.

    Raises: ConfigurationError if none remains.
    """
    enabled = values.get("ssl.enabled.protocols") or ("TLSv1.2", "TLSv1.3")
    highest = values.get("ssl.protocol") or _ANY_VERSION
    if highest == _ANY_VERSION:
        highest = _VERSIONS[-1]
    if ciphers and not any(each in _CIPHERS_1_3 for each in ciphers):
        highest = min(highest, "TLSv1.2")
    found = tuple(each for each in enabled if each <= highest)
    if not found:
        raise ConfigurationError(
            f"Options ssl.enabled.protocols={','.join(enabled)} and ssl.protocol={highest} leave no version of TLS. "
            "Remove one of them."
        )
    return found


def _openssl_name(name: str) -> str:
    """Returns OpenSSL's name of a cipher suite; a name that is not Java's is returned as it is."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, rest = name.removeprefix("TLS_").partition("_WITH_")
    rest = rest.replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    # AES_256_GCM_SHA384 -> AES256-GCM-SHA384; AES_128_CBC_SHA -> AES128-SHA
    rest = rest.replace("AES_", "AES").replace("_CBC", "").replace("_", "-")
    return rest if exchange == "RSA" else f"{exchange.replace('_', '-')}-{rest}"
