"""Missing permissions of a query: the error, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.direct_readers import BatchQuery, StreamQuery

from spark_groupsource.broker.acls import Acl, Operation, PatternType, Permission, ResourceType
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.errors import GroupSourceError

pytestmark = pytest.mark.usefixtures("in_process")

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'
    ),
    "offsets.topic.num.partitions": "1",
}
READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=CONFIG) as running:
        yield running


def permit(broker: EmbeddedBroker, *permissions: tuple[ResourceType, str, Operation]) -> None:
    """Replaces all ACLs."""
    authorizer = broker.call(lambda b: b.authorizer)
    assert authorizer is not None
    acls = [
        Acl(kind, name, PatternType.LITERAL, "User:ann", "*", operation, Permission.ALLOW)
        for kind, name, operation in permissions
    ]
    # private: the ACLs to remove, without a request for each
    authorizer.change(acls, set(authorizer._acls) - set(acls))


def options(topic: str, group: str | None = None) -> dict[str, str]:
    given = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "secret",
        "kafka.default.api.timeout.ms": "5000",
    }
    return given if group is None else {**given, "kafka.group.id": group}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_topic", "on_group", "message"),
    [
        ([], READ, "as User:ann failed: TOPIC_AUTHORIZATION_FAILED .*DESCRIBE and READ .*--allow-principal User:ann"),
        ([DESCRIBE], READ, "Fetch .* as User:ann failed: TOPIC_AUTHORIZATION_FAILED .* user READ on the topic"),
        ([READ], None, " as User:ann failed: GROUP_AUTHORIZATION_FAILED .* READ .*on the group|on the group: READ"),
        ([READ], DESCRIBE, " as User:ann failed: GROUP_AUTHORIZATION_FAILED .*READ on the group"),
    ],
    ids=["nothing on the topic", "DESCRIBE on the topic", "nothing on the group", "DESCRIBE on the group"],
)
def test_missing_permission_of_a_stream(
    broker: EmbeddedBroker, topic: str, group: str, on_topic: list[Operation], on_group: Operation | None, message: str
) -> None:
    broker.produce(topic, [b"1", b"2"])
    allowed = [(TOPIC, topic, each) for each in on_topic] + ([(GROUP, group, on_group)] if on_group else [])
    permit(broker, *allowed)
    cluster: Any = SimpleNamespace(bootstrap_servers=broker.bootstrap_servers)
    with StreamQuery(cluster, options(topic, group)) as query:
        with pytest.raises(GroupSourceError, match=message) as raised:
            for _ in range(50):
                query.trigger()
        assert "\n" not in str(raised.value)
        assert topic in str(raised.value) or group in str(raised.value)
    permit(broker, (TOPIC, topic, READ), (GROUP, group, READ))
    with StreamQuery(cluster, options(topic, group)) as query:
        while len(query.rows) < 2:
            query.trigger()
        assert sorted(bytes(row["value"]) for row in query.rows) == [b"1", b"2"]


@pytest.mark.slow
def test_missing_permission_of_a_batch_query(broker: EmbeddedBroker, topic: str) -> None:
    broker.produce(topic, [b"1"])
    cluster: Any = SimpleNamespace(bootstrap_servers=broker.bootstrap_servers)
    permit(broker, (TOPIC, topic, DESCRIBE))
    with pytest.raises(GroupSourceError, match=f"{topic}.* as User:ann failed: TOPIC_AUTHORIZATION.*READ on the topic"):
        BatchQuery(cluster, options(topic))
    permit(broker, (TOPIC, topic, READ))
    assert len(BatchQuery(cluster, options(topic)).rows) == 1
