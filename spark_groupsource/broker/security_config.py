"""Broker settings of listeners, TLS and SASL.

Source: https://kafka.apache.org/documentation (Broker Configs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence, cast

from spark_groupsource.common.config_def import (
    INT32_MAX,
    INT64_MAX,
    ConfigType,
    broker_setting,
    config_keys,
)
from spark_groupsource.common.net import Address, parse_listen_address
from spark_groupsource.common.tls import STORE_TYPES, ClientAuth, TlsSettings
from spark_groupsource.common.tls_options import TLS_KEYS, parse_tls
from spark_groupsource.errors import ConfigurationError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols; a listener has the name of its protocol."""

_AUTHORIZER = "StandardAuthorizer"
_TLS_PARSERS = {key.name: key.parser for key in TLS_KEYS}


def _text(name: str, doc: str) -> Any:
    return broker_setting(name, ConfigType.STRING, "", doc)


def _secret(name: str, doc: str) -> Any:
    return broker_setting(name, ConfigType.PASSWORD, "", doc)


def _tls_setting(name: str, type_: ConfigType, default: Any, doc: str, **attributes: Any) -> Any:
    return broker_setting(name, type_, default, doc, parser=_TLS_PARSERS[name], **attributes)


def _parse_authorizer(name: str, text: str) -> str:
    authorizer = text.strip()
    if authorizer and authorizer.rpartition(".")[2] != _AUTHORIZER:
        raise ConfigurationError(
            f"Option {name} must be org.apache.kafka.metadata.authorizer.{_AUTHORIZER} or empty, got {text!r}."
        )
    return authorizer


@dataclass(frozen=True)
class SecurityConfig:
    """Settings of listeners, TLS and SASL of the broker."""

    listeners: tuple[str, ...] = broker_setting(
        "listeners", ConfigType.LIST, (),
        "Listeners as PROTOCOL://HOST:PORT, at most one of each of PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL; with "
        "several nodes the others have the following ports. Replaces --listen.",
        is_per_node=True,
    )
    sasl_enabled_mechanisms: tuple[str, ...] = broker_setting(
        "sasl.enabled.mechanisms", ConfigType.LIST, (),
        "SASL mechanisms that clients may authenticate with (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER). "
        "Without listeners, an empty list disables authentication.",
    )
    sasl_plaintext_jaas_config: str = _secret(
        "listener.name.sasl_plaintext.plain.sasl.jaas.config",
        "Users of mechanism PLAIN: PlainLoginModule with a user_NAME=password for each user.",
    )
    sasl_ssl_jaas_config: str = _secret(
        "listener.name.sasl_ssl.plain.sasl.jaas.config", "The same for the listener SASL_SSL."
    )
    connections_max_reauth_ms: int = broker_setting(
        "connections.max.reauth.ms", ConfigType.LONG, 0,
        "Time after which a client must authenticate again, in milliseconds; 0: only when its token expires (KIP-368).",
        unit="ms", low=0, high=INT64_MAX,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = _text(
        "sasl.oauthbearer.jwks.endpoint.url",
        "file:///PATH of the keys (JWKS) of signed tokens; read again when it has changed. Without it, tokens of "
        "OAUTHBEARER are unsecured: a client can name any user, as with Kafka's default.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = broker_setting(
        "sasl.oauthbearer.expected.audience", ConfigType.LIST, (), "Values of the claim aud of which a token needs one."
    )
    sasl_oauthbearer_expected_issuer: str = _text(
        "sasl.oauthbearer.expected.issuer", "Value that the claim iss of a token must have."
    )
    sasl_oauthbearer_sub_claim_name: str = broker_setting(
        "sasl.oauthbearer.sub.claim.name", ConfigType.STRING, "sub", "Claim of a token with the name of its user."
    )
    sasl_oauthbearer_clock_skew_seconds: int = broker_setting(
        "sasl.oauthbearer.clock.skew.seconds", ConfigType.INT, 30,
        "Difference of clocks that is tolerated when the validity of a token is checked, in seconds.",
        unit="s", low=0, high=INT32_MAX,
    )
    authorizer_class_name: str = broker_setting(
        "authorizer.class.name", ConfigType.STRING, "",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer: requests need ACLs; empty: none do.",
        parser=_parse_authorizer,
    )
    super_users: str = _text("super.users", "Principals that need no ACL, as User:NAME separated by semicolons.")
    allow_everyone_if_no_acl_found: bool = broker_setting(
        "allow.everyone.if.no.acl.found", ConfigType.BOOLEAN, False,
        "Whether resources that no ACL names are open to all.",
    )
    ssl_client_auth: str = broker_setting(
        "ssl.client.auth", ConfigType.STRING, "none",
        "Whether TLS listeners request or require the certificate of a client; its name is the principal of SSL.",
        choices=("none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = broker_setting(
        "ssl.principal.mapping.rules", ConfigType.STRING, "DEFAULT",
        "Rules that map the distinguished name of a client's certificate to the name of its principal.",
    )
    ssl_keystore_location: str = _text(
        "ssl.keystore.location",
        "Certificate and private key of TLS listeners: PEM, JKS, or PKCS12 (extra tls). Read again when it "
        "has changed.",
    )
    ssl_keystore_password: str = _secret("ssl.keystore.password", "Password of the key store.")
    ssl_keystore_type: str = _tls_setting(
        "ssl.keystore.type", ConfigType.STRING, "", "PEM, PKCS12 or JKS; the content of the file decides.",
        choices=STORE_TYPES,
    )
    ssl_keystore_certificate_chain: str = _secret("ssl.keystore.certificate.chain", "Certificate chain as PEM text.")
    ssl_keystore_key: str = _secret("ssl.keystore.key", "Private key as PEM text.")
    ssl_key_password: str = _secret("ssl.key.password", "Password of the private key.")
    ssl_truststore_location: str = _text(
        "ssl.truststore.location", "Certificate authorities of clients: PEM, PKCS12 or JKS."
    )
    ssl_truststore_password: str = _secret("ssl.truststore.password", "Password of the trust store.")
    ssl_truststore_type: str = _tls_setting(
        "ssl.truststore.type", ConfigType.STRING, "", "PEM, PKCS12 or JKS; the content of the file decides.",
        choices=STORE_TYPES,
    )
    ssl_truststore_certificates: str = _secret(
        "ssl.truststore.certificates", "Certificate authorities of clients as PEM text."
    )
    ssl_protocol: str = broker_setting(
        "ssl.protocol", ConfigType.STRING, "TLSv1.3", "Highest version of TLS.",
        choices=("TLS", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"),
    )
    ssl_enabled_protocols: tuple[str, ...] = _tls_setting(
        "ssl.enabled.protocols", ConfigType.LIST, ("TLSv1.2", "TLSv1.3"), "Versions of TLS."
    )
    ssl_cipher_suites: tuple[str, ...] = _tls_setting(
        "ssl.cipher.suites", ConfigType.LIST, (), "Cipher suites, in Java's or OpenSSL's names; OpenSSL's if empty."
    )

    @property
    def client_auth(self) -> ClientAuth:
        return cast(ClientAuth, self.ssl_client_auth)


class ListenerSpec(NamedTuple):
    """Protocol and address of a listener of the first node."""

    protocol: str
    address: Address

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")


def listener_specs(config: SecurityConfig, default: Address) -> tuple[ListenerSpec, ...]:
    """Returns the listeners; without `listeners` one at `default`, whose protocol follows from the mechanisms.

    Raises: ConfigurationError.
    """
    if not config.listeners:
        return (ListenerSpec("SASL_PLAINTEXT" if config.sasl_enabled_mechanisms else "PLAINTEXT", default),)
    found: dict[str, ListenerSpec] = {}
    for protocol, address in _named_addresses(config.listeners, "listeners"):
        if protocol in found:
            raise ConfigurationError(f"Option listeners has two listeners {protocol}. Remove one of them.")
        found[protocol] = ListenerSpec(protocol, address)
    if any(each.has_sasl for each in found.values()) and not config.sasl_enabled_mechanisms:
        raise ConfigurationError(
            "Option listeners has a listener with SASL, but sasl.enabled.mechanisms is empty. Set it to PLAIN or "
            "SCRAM-SHA-512."
        )
    return tuple(found.values())


def advertised_addresses(
    setting: Sequence[str], protocols: Sequence[str], node_count: int
) -> dict[str, tuple[Address, ...]]:
    """Returns the advertised addresses of the nodes by protocol; protocols without any are missing.

    Raises: ConfigurationError.
    """
    setting = [part if "://" in part else f"{protocols[0]}://{part}" for part in setting]
    found: dict[str, tuple[Address, ...]] = {}
    for protocol, address in _named_addresses(setting, "advertised.listeners"):
        if protocol not in protocols:
            raise ConfigurationError(
                f"Option advertised.listeners has {protocol}, the broker listens with {', '.join(protocols)}. Remove "
                "it or add it to listeners."
            )
        found[protocol] = (*found.get(protocol, ()), address)
    for addresses in found.values():
        if len(addresses) != node_count:
            raise ConfigurationError(
                f"Option advertised.listeners must have {node_count} addresses, one per node, got {len(addresses)}."
            )
    return found


def _named_addresses(entries: Sequence[str], option: str) -> list[tuple[str, Address]]:
    found = []
    for entry in entries:
        protocol, separator, text = entry.partition("://")
        protocol = protocol.strip().upper()
        if not separator or protocol not in PROTOCOLS:
            raise ConfigurationError(
                f"Option {option} must list PROTOCOL://HOST:PORT with PROTOCOL one of {', '.join(PROTOCOLS)}, got "
                f"{entry!r}."
            )
        if text.startswith(":"):  # all interfaces, as in Kafka
            text = f"0.0.0.0{text}"
        found.append((protocol, parse_listen_address(text, option)))
    return found


def server_tls(config: SecurityConfig) -> TlsSettings:
    """Returns the TLS settings of listeners. Raises: ConfigurationError without a certificate."""
    values = {
        key.name: value
        for attribute, key in config_keys(SecurityConfig).items()
        if key.name in _TLS_PARSERS and (value := getattr(config, attribute))
    }
    if not values.get("ssl.keystore.location") and not values.get("ssl.keystore.certificate.chain"):
        raise ConfigurationError(
            "Option listeners has a listener with TLS, but the broker has no certificate. Set ssl.keystore.location."
        )
    return parse_tls(values, "")
