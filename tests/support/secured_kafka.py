"""A real Apache Kafka with TLS, SASL and an authorizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from real_kafka import RealKafka, free_address
from support import certificates
from support.certificates import write_pem
from support.clusters import BROKER_CONFIG

USER, PASSWORD = "ann", "secret"
_LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "OAUTH": "SASL_SSL",
}


class SecuredKafka:
    """One broker with five listeners; a context manager.

    PLAINTEXT is for the super user, SASL for `USER`. OAUTH takes unsecured tokens, for sessions of 2 seconds. TLS,
    MUTUAL and OAUTH have the certificate `certificates.SERVER`; MUTUAL requires one of a client.
    """

    def __init__(self, directory: Path) -> None:
        self._addresses = {name: free_address() for name in (*_LISTENERS, "CONTROLLER")}
        self.authority = write_pem(directory / "ca.pem", certificates.CA)
        self.client_certificate = write_pem(directory / "client.pem", certificates.CLIENT, certificates.KEY)
        own = write_pem(directory / "server.pem", certificates.KEY, certificates.SERVER)
        protocols = {**_LISTENERS, "CONTROLLER": "PLAINTEXT"}
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        config = {
            "listeners": ",".join(f"{name}://{address}" for name, address in self._addresses.items()),
            "advertised.listeners": ",".join(f"{name}://{self._addresses[name]}" for name in _LISTENERS),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "controller.quorum.voters": f"1@{self._addresses['CONTROLLER']}",
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{login} required user_{USER}="{PASSWORD}";',
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": own,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "2000",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
                'unsecuredLoginStringClaim_sub="admin";'
            ),
        }
        self.kafka = RealKafka({**BROKER_CONFIG, **config}, self._addresses["PLAINTEXT"])

    def __enter__(self) -> SecuredKafka:
        self.kafka.start()
        self._admin = AdminClient({"bootstrap.servers": self.address("PLAINTEXT")})
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.stop()

    def address(self, listener: str) -> str:
        """``host:port`` of a listener."""
        return str(self._addresses[listener])

    def permit(self, kind: ResourceType, name: str, operations: Sequence[AclOperation]) -> None:
        """Lets `USER` perform exactly these operations on a topic or group."""
        anyone = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ANY, AclPermissionType.ANY
        )
        wanted = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW
            )
            for operation in operations
        ]
        for each in self._admin.delete_acls([anyone]).values():
            each.result(30)
        if wanted:
            for future in self._admin.create_acls(wanted).values():
                future.result(30)
