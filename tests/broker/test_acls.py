"""ACLs: decisions of StandardAuthorizer, filters, stored ACLs, authorization of each API."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Kind
from support.java_tools import JavaTools
from support.secured_broker import SECURED_CONFIG, Secured, login
from support.unauthorized_requests import cases, codes_of, logged_in

from spark_groupsource.broker.acls import (
    Acl,
    AclFilter,
    Authorizer,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
)
from spark_groupsource.broker.api.authorization import RULES, authorize
from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.security_config import SecurityConfig
from spark_groupsource.errors import ApiError, ConfigurationError, StorageError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
)

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL


def acl(
    name: str = "t", operation: int = READ, *, kind: int = TOPIC, prefixed: bool = False, deny: bool = False,
    principal: str = "User:ann", host: str = "*",
) -> Acl:  # fmt: skip
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return Acl(kind, name, pattern, principal, host, operation, Permission.DENY if deny else Permission.ALLOW)


def authorizer(*acls: Acl, **config: Any) -> Authorizer:
    made = Authorizer(SecurityConfig(**config))
    # private: entries without a data directory
    made._set(acls)
    return made


# --- decisions ---


@pytest.mark.parametrize(
    ("acls", "operation", "name", "expected"),
    [
        ([], READ, "t", False),
        ([acl()], READ, "t", True),
        ([acl()], READ, "tt", False),
        ([acl()], WRITE, "t", False),
        ([acl()], DESCRIBE, "t", True),
        ([acl(operation=Operation.ALTER)], DESCRIBE, "t", True),
        ([acl(operation=Operation.CREATE)], DESCRIBE, "t", False),
        ([acl(operation=Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "t", True),
        ([acl(operation=DESCRIBE)], Operation.DESCRIBE_CONFIGS, "t", False),
        ([acl(operation=ALL)], WRITE, "t", True),
        ([acl("*")], READ, "t", True),
        ([acl("te", prefixed=True)], READ, "test", True),
        ([acl("te", prefixed=True)], READ, "te", True),
        ([acl("te", prefixed=True)], READ, "t", False),
        ([acl("te")], READ, "test", False),
        ([acl("*", prefixed=True)], READ, "t", False),
        ([acl(), acl(deny=True)], READ, "t", False),
        ([acl(), acl("*", deny=True)], READ, "t", False),
        ([acl(), acl("", ALL, prefixed=True, deny=True)], READ, "t", True),
        ([acl(), acl("t", ALL, prefixed=True, deny=True)], READ, "t", False),
        # a denied READ does not deny DESCRIBE
        ([acl(), acl(deny=True)], DESCRIBE, "t", True),
        ([acl(principal="User:*")], READ, "t", True),
        ([acl(principal="User:bob")], READ, "t", False),
        ([acl(principal="Group:ann")], READ, "t", False),
        ([acl(host="1.2.3.4")], READ, "t", True),
        ([acl(host="1.2.3.5")], READ, "t", False),
        ([acl(kind=GROUP)], READ, "t", False),
    ],
)
def test_decisions(acls: list[Acl], operation: Operation, name: str, expected: bool) -> None:
    checked = authorizer(*acls)
    for _ in range(2):  # the second decision is a known one
        assert checked.authorize("User:ann", "1.2.3.4", operation, TOPIC, name) is expected


def test_super_users_and_resources_without_acls() -> None:
    checked = authorizer(
        acl(deny=True), super_users="User:root; User:CN=a,O=b", allow_everyone_if_no_acl_found=True
    )
    assert checked.authorize("User:root", "h", READ, TOPIC, "t")
    assert checked.authorize("User:CN=a,O=b", "h", READ, TOPIC, "t")
    assert not checked.authorize("User:bob", "h", READ, TOPIC, "t"), "the resource has an ACL"
    assert checked.authorize("User:bob", "h", READ, TOPIC, "other")
    bob = {"principal": "User:bob"}
    checked = authorizer(acl("a", WRITE), acl("*", WRITE, deny=True, **bob), acl("b", WRITE, **bob))
    assert checked.authorize_any("User:ann", "h", WRITE, TOPIC)
    assert not checked.authorize_any("User:ann", "h", READ, TOPIC)
    assert not checked.authorize_any("User:bob", "h", WRITE, TOPIC)


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([acl("a", WRITE), acl("a", WRITE, deny=True)], False),
        ([acl("a", WRITE), acl("b", WRITE, deny=True)], True),
        ([acl("abc", WRITE), acl("ab", ALL, prefixed=True, deny=True)], False),
        ([acl("abc", WRITE, prefixed=True), acl("ab", WRITE, prefixed=True, deny=True)], False),
        ([acl("abc", WRITE, prefixed=True), acl("abcd", WRITE, prefixed=True, deny=True)], True),
        ([acl("abc", WRITE, prefixed=True), acl("abc", WRITE, deny=True)], True),
        ([acl("*", WRITE), acl("a", WRITE, prefixed=True, deny=True)], True),
        ([acl("a", WRITE), acl("ab", WRITE), acl("ab", WRITE, prefixed=True, deny=True)], True),
        ([acl("hard", WRITE, prefixed=True), acl("h", WRITE, prefixed=True, deny=True)], False),
        ([acl("a", WRITE, principal="User:bob")], False),
    ],
)
def test_access_to_any_resource(acls: list[Acl], expected: bool) -> None:
    assert authorizer(*acls).authorize_any("User:ann", "h", WRITE, TOPIC) is expected


class CountedName(str):
    """A name that counts its comparisons and slices."""

    count = 0

    def __eq__(self, other: object) -> bool:
        CountedName.count += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__

    def __getitem__(self, key: Any) -> str:
        CountedName.count += 1
        return str.__getitem__(self, key)


def test_a_long_name_is_decided_in_few_steps_and_not_kept() -> None:
    checked = authorizer(acl("te", GROUP, prefixed=True), acl("test", READ, prefixed=True))
    CountedName.count = 0
    assert checked.authorize("User:ann", "h", READ, TOPIC, CountedName("test" + "x" * 30_000))
    assert CountedName.count <= 10
    # private: a kept decision has no effect but its memory
    assert not checked._decisions


NAMES = [CountedName(f"{'d' if number % 2 else 'a'}-{number}") for number in range(1_000)]
TOPICS = [MetadataRequest.MetadataRequestTopic(name=name) for name in NAMES]


def test_a_decision_does_not_visit_the_entries_of_other_principals() -> None:
    one = acl("t", READ, prefixed=True)
    checked = authorizer(*(one._replace(principal=f"User:{number}") for number in range(9_000)))
    began = time.thread_time()
    decisions = [checked.authorize("User:8999", one.host, READ, TOPIC, f"t-{name}") for name in range(500)]
    assert all(decisions) and time.thread_time() - began < 0.1


@pytest.mark.parametrize(
    ("api_key", "version", "request_", "field"),
    [
        (ApiKey.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1), "topic_names"),
        (ApiKey.METADATA, 9, MetadataRequest(topics=TOPICS, allow_auto_topic_creation=True), "topics"),
        (ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=NAMES), "groups_names"),
        (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=NAMES), "groups"),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=NAMES), "transactional_ids"),
        (ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES), "coordinator_keys"),
    ],
)
def test_authorization_takes_time_in_proportion_to_the_names(
    api_key: ApiKey, version: int, request_: Any, field: str
) -> None:
    kinds = (TOPIC, GROUP, ResourceType.TRANSACTIONAL_ID)
    allowing = [acl("a", ALL, kind=kind, prefixed=True) for kind in kinds] if api_key != ApiKey.METADATA else []
    describing = acl("*", DESCRIBE, kind=TOPIC)  # every topic is described, none is created
    partitions = SimpleNamespace(topics={name: None for name in NAMES[::2]})
    broker: Any = SimpleNamespace(
        authorizer=authorizer(describing, *allowing), partitions=partitions,
        config=SimpleNamespace(auto_create_topics_enable=True),
    )  # fmt: skip
    context = ApiRequestContext(1, api_key, version, "c", "h", 1, principal="User:ann")
    CountedName.count = 0
    left = getattr(authorize(broker, context, request_).request, field)
    assert [getattr(each, "name", each) for each in left] == NAMES[::2]
    assert CountedName.count <= 20_000


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        (None, PatternType.ANY, {"foo", "fo*", "*", "other"}),
        ("foo", PatternType.LITERAL, {"foo"}),
        ("foo", PatternType.ANY, {"foo"}),
        ("fo", PatternType.ANY, {"fo*"}),
        ("fo", PatternType.PREFIXED, {"fo*"}),
        ("foo", PatternType.MATCH, {"foo", "fo*", "*"}),
        (None, PatternType.PREFIXED, {"fo*"}),
        ("*", PatternType.LITERAL, {"*"}),
    ],
)
def test_filters_of_resources(name: str | None, pattern: PatternType, expected: set[str]) -> None:
    stored = authorizer(acl("foo"), acl("fo", prefixed=True), acl("*"), acl("other"))
    wanted = AclFilter(TOPIC, name, pattern, None, None, Operation.ANY, Permission.ANY)
    found = {each.resource_name + "*" * (each.pattern_type == PatternType.PREFIXED) for each in stored.matching(wanted)}
    assert found == expected
    assert stored.matching(wanted._replace(principal="User:bob")) == []
    assert stored.matching(wanted._replace(operation=WRITE)) == stored.matching(wanted._replace(host="h")) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (acl(kind=CLUSTER), "only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(""), "Invalid empty resource name"),
        (acl(kind=1), "Invalid resourceType"),
        (acl(kind=99), "Invalid resourceType"),
        (acl(operation=1), "Invalid operation"),
        (acl()._replace(pattern_type=PatternType.MATCH), "Invalid patternType"),
        (acl()._replace(permission=1), "Invalid permissionType"),
        (acl(principal="ann"), "Could not parse principal"),
        (acl(host=""), "Invalid empty host"),
        (acl("x" * 1001), "more than 1000 characters"),
    ],
)
def test_invalid_acls(wrong: Acl, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        check_acl(wrong)


# --- a broker ---

@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with EmbeddedBroker(config=SECURED_CONFIG) as broker:
        yield Secured(broker)


def test_every_api_has_a_rule() -> None:
    without = set(SERVED) - set(RULES)
    assert without == {
        ApiKey.FETCH, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }  # fmt: skip
    assert all(callable(rule) and (inspect.isfunction(rule) or rule.operation) for rule in RULES.values())


def test_each_api_rejects_a_user_without_acls(secured: Secured, topic: str, group: str) -> None:
    secured.broker.produce(topic, [b"1"])
    with logged_in(secured.broker.bootstrap_servers, "ann", "secret") as connection:
        found = {
            f"{number} {name}": (codes_of(connection.call(request, version), version), codes)
            for number, (name, request, version, codes) in enumerate(cases(topic, group))
        }
    # topics that other tests permitted are in Metadata of all topics
    assert {name: pair for name, pair in found.items() if pair[0] - {0} != pair[1] - {0}} == {}
    assert not any("Unexpected error" in line or "unexpected error" in line for line in secured.broker.reports)


def test_a_large_request_is_authorized_as_a_small_one(secured: Secured, topic: str) -> None:
    secured.broker.produce(topic, [b"1"])
    secured.permit(Kind.TOPIC, topic, AclOperation.DESCRIBE)
    names = [topic, *(f"{topic}-{'x' * 80}-{number}" for number in range(3_000))]
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    with logged_in(secured.broker.bootstrap_servers, "ann", "secret") as connection:
        found = {each.name: each.error_code for each in connection.call(request, 8).topics}
    assert found == {name: 0 if name == topic else 29 for name in names}


def test_each_entry_of_a_group_has_the_offsets_that_may_be_read(secured: Secured, topic: str, group: str) -> None:
    for name in (topic, f"{topic}-secret"):
        secured.broker.produce(name, [b"1"])
    offsets = [TopicPartition(name, 0, 1) for name in (topic, f"{topic}-secret")]
    for committed in secured.root.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)]).values():
        committed.result(20)
    secured.permit(Kind.TOPIC, topic, AclOperation.DESCRIBE)
    secured.permit(Kind.GROUP, group, AclOperation.DESCRIBE)
    entry: Any = OffsetFetchRequest.OffsetFetchRequestGroup
    named = [entry.OffsetFetchRequestTopics(name=each.topic, partition_indexes=[0]) for each in offsets]
    groups = [entry(group_id=group, topics=asked) for asked in (None, named, named[:1])]
    with logged_in(secured.broker.bootstrap_servers, "ann", "secret") as connection:
        found = connection.call(OffsetFetchRequest(groups=groups), 8).groups
    codes = [{each.name: each.partitions[0].error_code for each in entry.topics} for entry in found]
    assert codes == [{topic: 0}, {topic: 0, f"{topic}-secret": 29}, {topic: 0}]


@pytest.mark.parametrize(("attributes", "code"), [(0x10, 53), (0, 29)])
def test_transactional_records_need_their_transactional_id(
    secured: Secured, topic: str, attributes: int, code: int
) -> None:
    data: Any = ProduceRequest.TopicProduceData
    records = bytes(22) + bytes((attributes,)) + bytes(60)
    partition = data.PartitionProduceData(index=0, records=records)
    topics = [data(name=topic, partition_data=[partition])]
    request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=topics)
    with logged_in(secured.broker.bootstrap_servers, "ann", "secret") as connection:
        assert codes_of(connection.call(request, 9), 9) == {code}


@pytest.mark.slow
def test_a_producer_and_a_consumer_need_their_permissions(secured: Secured, topic: str, group: str) -> None:
    secured.broker.produce(topic, [b"1", b"2"])
    codes: list[int] = []

    def produce() -> int:
        producer = Producer({**login(secured.broker, "ann"), "message.timeout.ms": 4000})
        reported: list[int] = []
        producer.produce(topic, b"v", on_delivery=lambda error, _: reported.append(error.code() if error else 0))
        producer.flush(20)
        return reported[0]

    assert produce() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT)
    secured.permit(Kind.TOPIC, topic, AclOperation.WRITE)
    assert produce() == 0

    def consume() -> list[int]:
        consumer = Consumer({**login(secured.broker, "ann"), "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        try:
            for _ in range(100):
                message = consumer.poll(0.2)
                if message is not None:
                    return [message.error().code() if message.error() else 0]
        finally:
            consumer.close()
        return codes

    assert consume() == [KafkaError.GROUP_AUTHORIZATION_FAILED]
    secured.permit(Kind.GROUP, group, AclOperation.READ)
    assert consume() == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    secured.permit(Kind.TOPIC, topic, AclOperation.READ)
    assert consume() == [0]


def result(future: Any) -> Any:
    """Returns the result of a request, or the name of its error."""
    try:
        return future.result(20)
    except KafkaException as error:
        return error.args[0].name()


def test_topics_and_groups_of_an_administrator(secured: Secured, topic: str, group: str) -> None:
    ann, root = secured.ann, secured.root
    denied = "TOPIC_AUTHORIZATION_FAILED"
    assert result(ann.create_topics([NewTopic(topic, 1, 1)])[topic]) == denied
    secured.permit(Kind.TOPIC, topic, AclOperation.CREATE)
    assert result(ann.create_topics([NewTopic(topic, 1, 1)])[topic]) is None
    assert topic not in ann.list_topics(timeout=20).topics and topic in root.list_topics(timeout=20).topics
    assert result(ann.delete_topics([topic])[topic]) == denied
    secured.permit(Kind.TOPIC, topic, AclOperation.DELETE)
    assert topic in ann.list_topics(timeout=20).topics, "DELETE implies DESCRIBE"
    assert result(ann.delete_topics([topic])[topic]) is None
    assert result(ann.describe_consumer_groups([group])[group]) == "GROUP_AUTHORIZATION_FAILED"
    assert result(ann.delete_consumer_groups([group])[group]) == "GROUP_AUTHORIZATION_FAILED"
    secured.permit(Kind.GROUP, group, AclOperation.DESCRIBE)
    assert result(ann.describe_consumer_groups([group])[group]).group_id == group
    binding = AclBinding(
        Kind.TOPIC, topic, ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.ALL, AclPermissionType.ALLOW
    )
    assert result(ann.create_acls([binding])[binding]) == "CLUSTER_AUTHORIZATION_FAILED"


def test_acls_are_stored_and_described(tmp_path: Path) -> None:
    config = {**SECURED_CONFIG, "allow.everyone.if.no.acl.found": "true"}
    with EmbeddedBroker(tmp_path, config=config) as broker:
        secured = Secured(broker)
        secured.permit(Kind.TOPIC, "t", AclOperation.READ, AclOperation.WRITE)
        anything = AclBindingFilter(
            Kind.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert len(result(secured.root.describe_acls(anything))) == 2
        invalid = AclBinding(
            Kind.TOPIC, "t", ResourcePatternType.LITERAL, "ann", "*", AclOperation.READ, AclPermissionType.ALLOW
        )
        assert result(secured.root.create_acls([invalid])[invalid]) == "INVALID_REQUEST"
    assert (tmp_path / "acls.json").stat().st_mode & 0o777 == 0o600
    with EmbeddedBroker(tmp_path, config=config) as broker:
        assert len(result(Secured(broker).root.describe_acls(anything))) == 2
    (tmp_path / "acls.json").write_text("{")
    with pytest.raises(StorageError, match="acls.json is corrupt"):
        EmbeddedBroker(tmp_path, config=config).start()


def test_another_authorizer_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="authorizer.class.name must be .*StandardAuthorizer or empty"):
        EmbeddedBroker(config={"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"})


@pytest.mark.kafka
def test_kafka_acls(secured: Secured, java: JavaTools, tmp_path: Path, topic: str) -> None:
    path = tmp_path / "root.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security."
        'plain.PlainLoginModule required username="root" password="secret";\n'
    )

    def tool(*arguments: str) -> str:
        where = ["--bootstrap-server", secured.broker.bootstrap_servers, "--command-config", str(path)]
        return java.run("org.apache.kafka.tools.AclCommand", *where, *arguments)

    given = ["--allow-principal", "User:ann", "--topic", topic]
    added = tool("--add", *given, "--producer")
    assert "Adding ACLs for resource" in added and "operation=WRITE, permissionType=ALLOW" in added
    listed = tool("--list", "--topic", topic)
    assert listed.count("principal=User:ann, host=*, operation=") == 3
    assert "Current ACLs" not in tool("--remove", "--force", *given, "--producer")
    assert "principal=User:ann" not in tool("--list", "--topic", topic)
