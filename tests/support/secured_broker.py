"""An embedded broker with an authorizer, and clients of its users."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Kind

from spark_groupsource.broker.embedded import EmbeddedBroker

USERS = " ".join(f'user_{name}="secret"' for name in ("root", "ann"))
SECURED_CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"
    ),
    "offsets.topic.num.partitions": "1",
}


def login(broker: EmbeddedBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": "secret",
    }


class Secured:
    """A broker with an authorizer, and clients of its users."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.root = AdminClient(login(broker, "root"))
        self.ann = AdminClient(login(broker, "ann"))

    def permit(self, kind: Kind, name: str, *operations: AclOperation) -> None:
        """Lets ann perform exactly these operations on a resource."""
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        every = AclBindingFilter(kind, name, literal, "User:ann", "*", AclOperation.ANY, AclPermissionType.ANY)
        for future in self.root.delete_acls([every]).values():
            future.result(20)
        added = [AclBinding(kind, name, literal, "User:ann", "*", operation, allow) for operation in operations]
        for future in (self.root.create_acls(added) if added else {}).values():
            future.result(20)
