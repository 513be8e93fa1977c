"""TLS of the broker's listeners: contexts, principals of client certificates.

Source: Kafka `SslPrincipalMapper`, `DefaultKafkaPrincipalBuilder`; RFC 2253, RFC 4519 (names of attributes).
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple

from spark_groupsource.broker.network.client_connection import Connection, ConnectionOwner
from spark_groupsource.broker.security_config import SecurityConfig, server_tls
from spark_groupsource.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_groupsource.broker.network.tls_handshakes import HandshakeQueue
    from spark_groupsource.broker.network.tls_transport import TlsTransport

# names of Python's ssl -> keywords of Java's X500Principal.getName(RFC2253)
_KEYWORDS: Mapping[str, str] = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL, _IA5_STRING = "1.2.840.113549.1.9.1", 0x16
_RULE = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class ServerTls:
    """The certificate and the authorities of TLS listeners; replaced files apply to new connections.

    Raises: ConfigurationError if they cannot be loaded.
    """

    def __init__(self, config: SecurityConfig) -> None:
        # imported here, because most brokers have no TLS
        from spark_groupsource.broker.network import tls_transport
        from spark_groupsource.common.tls_contexts import tls_context

        self._transport = tls_transport.TlsTransport
        self._mapper = PrincipalMapper(config.ssl_principal_mapping_rules)
        self._load = partial(tls_context, server_tls(config), config.client_auth)
        try:
            self._load()
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("kafka.ssl.", "ssl.")) from error

    def new_transport(
        self, connection: Connection, owner: ConnectionOwner, handshakes: HandshakeQueue
    ) -> TlsTransport:
        """Returns the protocol of a client's socket, which decrypts for `connection`."""

        def on_handshake(certificate: Mapping[str, Any] | None) -> None:
            # with SASL the principal is that of SASL, as in Kafka
            if owner.protocol == "SSL" and certificate:
                connection.principal = self._mapper.principal(distinguished_name(certificate))

        return self._transport(connection, owner, self._load(), handshakes, on_handshake)


def distinguished_name(certificate: Mapping[str, Any] | None) -> str:
    """Returns the subject of a certificate (`SSLObject.getpeercert`) as Java prints it, empty without one."""
    subject = (certificate or {}).get("subject", ())
    return ",".join("+".join(_attribute(*pair) for pair in relative) for relative in reversed(subject))


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":
        encoded = value.encode()
        return f"{_EMAIL}=#{bytes((_IA5_STRING, len(encoded))).hex()}{encoded.hex()}"
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    if escaped[-1:] == " " and len(escaped) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return f"{_KEYWORDS.get(name, name)}={escaped}"


class _MappingRule(NamedTuple):
    """One rule; `pattern` is None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str


class PrincipalMapper:
    """Maps distinguished names by the first rule whose pattern matches the whole name. Raises: ConfigurationError."""

    def __init__(self, rules: str) -> None:
        self._rules = tuple(_parse_rules(rules.strip() or "DEFAULT"))

    def principal(self, name: str) -> str:
        """Returns ``User:NAME``; a name that no rule matches is a principal of its own, which ACLs can name."""
        for rule in self._rules:
            if rule.pattern is None:
                break
            if rule.pattern.fullmatch(name):
                name = rule.pattern.sub(rule.replacement, name, count=1)
                name = name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
                break
        return f"User:{name}"


def _parse_rules(text: str) -> list[_MappingRule]:
    rules, position = [], 0
    while position < len(text):
        found = _RULE.match(text, position)
        try:
            if found is None:
                raise ValueError("a rule is DEFAULT or RULE:pattern/replacement/[LU]")
            position = found.end()
            if found[1]:
                rules.append(_MappingRule(None, "", ""))
            else:
                # Java's $1 is Python's \1
                replacement = re.sub(r"\$(\d)", r"\\\1", found[3].replace(r"\/", "/"))
                rules.append(_MappingRule(re.compile(found[2].replace(r"\/", "/")), replacement, found[4]))
            separator = re.compile(r"\s*(,\s*|$)").match(text, position)
            if separator is None:
                raise ValueError("rules are separated by commas")
        except (ValueError, re.error) as error:
            raise ConfigurationError(
                f"Option ssl.principal.mapping.rules is invalid at {text[position:]!r}: {error}. Correct the rule."
            ) from error
        position = separator.end()
    return rules
