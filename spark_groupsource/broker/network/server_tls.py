"""TLS of the broker's listeners: contexts, principals of client certificates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Mapping

from spark_groupsource.broker.network.client_connection import Connection, ConnectionOwner
from spark_groupsource.broker.network.principals import PrincipalMapper, distinguished_name
from spark_groupsource.broker.security_config import SecurityConfig, server_tls
from spark_groupsource.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_groupsource.broker.network.tls_handshakes import HandshakeQueue
    from spark_groupsource.broker.network.tls_transport import TlsTransport


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
