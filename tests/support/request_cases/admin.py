"""Cases of topics, configs, log directories and cluster metadata."""

from __future__ import annotations

import uuid
from typing import Any

from support.compared_brokers import Case, ComparedBroker

from spark_groupsource.wire import messages

TOPIC, BROKER = 2, 4
_WantedTopic = messages.MetadataRequest.MetadataRequestTopic


def metadata(*names: str, by_id: bool = False, both: bool = False, **flags: bool) -> Any:
    def build(broker: ComparedBroker) -> Any:
        wanted = []
        for short in names:
            topic_id = broker.id(short) if by_id or both else uuid.UUID(int=0)
            wanted.append(_WantedTopic(name=None if by_id else broker.name(short), topic_id=topic_id))
        return messages.MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False,
            include_cluster_authorized_operations=flags.get("cluster", False),
            include_topic_authorized_operations=flags.get("topic", False),
        )  # fmt: skip

    return build


# before version 4 a client cannot disable auto-creation
METADATA = [
    Case("one", metadata("read")),
    Case("two", metadata("read", "cut")),
    Case("not there", metadata("gone"), 4),
    Case("an illegal name", metadata("a/b"), 4),
    Case("a name too long", metadata("a" * 250), 4),
    Case("one twice", metadata("read", "read")),
    Case("none", metadata(), 1),
    Case("authorized operations", metadata("read", cluster=True, topic=True)),
    Case("authorized operations of one that is not there", metadata("gone", topic=True), 4),
    Case("by id", metadata("read", by_id=True), 12),
    Case("by an id that is not there", metadata("gone", by_id=True), 12),
    Case("authorized operations by an id that is not there", metadata("gone", by_id=True, topic=True), 12),
    Case("two by id, one there", metadata("read", "gone", by_id=True), 12),
    Case("by id and by name", metadata("read", both=True), 12),
]


def describe_cluster(operations: bool = False, endpoint: int = 1, fenced: bool = False) -> Any:
    return lambda broker: messages.DescribeClusterRequest(
        include_cluster_authorized_operations=operations, endpoint_type=endpoint, include_fenced_brokers=fenced
    )


DESCRIBE_CLUSTER = [
    Case("defaults", describe_cluster()),
    Case("authorized operations", describe_cluster(operations=True)),
    Case("controllers", describe_cluster(endpoint=2), 1),
    Case("an unknown kind", describe_cluster(endpoint=9), 1),
    Case("fenced ones too", describe_cluster(fenced=True), 2),
]


def create(
    *names: str, partitions: int = 1, replicas: int = 1, assignments: tuple[tuple[int, list[int]], ...] = (),
    validate: bool = False, full: bool = False, **settings: str | None,
) -> Any:  # fmt: skip
    """`full`: names without prefix."""

    def build(broker: ComparedBroker) -> Any:
        topic = messages.CreateTopicsRequest.CreatableTopic
        for short in names:
            broker.forget(short)
        return messages.CreateTopicsRequest(
            topics=[
                topic(
                    name=short if full else broker.name(short),
                    num_partitions=partitions,
                    replication_factor=replicas,
                    assignments=[
                        topic.CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
                        for number, brokers in assignments
                    ],
                    configs=[
                        topic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in settings.items()
                    ],
                )
                for short in names
            ],
            timeout_ms=20_000,
            validate_only=validate,
        )

    return build


CREATE_TOPICS = [
    Case("one", create("one")),
    Case("again", create("one")),
    Case("again, validated", create("one", validate=True)),
    Case("validated", create("never", partitions=3, validate=True, retention_ms="5000")),
    Case("two partitions", create("two", partitions=2, retention_ms="5000", cleanup_policy="compact")),
    Case("by default", create("default", partitions=-1, replicas=-1), 4),
    Case("no partitions", create("bad", partitions=0)),
    Case("-2 partitions", create("bad", partitions=-2)),
    Case("no replicas", create("bad", replicas=0)),
    Case("too many replicas", create("bad", replicas=3)),
    Case("one name twice", create("twice", "twice")),
    Case("one name twice, and another", create("twice", "twice", "alone")),
    Case("no name", create("", full=True)),
    Case("a dot", create(".", full=True)),
    Case("two dots", create("..", full=True)),
    Case("an illegal name", create("a/b")),
    Case("a name too long", create("a" * 250, full=True)),
    Case("a name that looks like another", create("x.y_z", validate=True)),
    Case("a topic with a dot", create("p.q")),
    Case("the same with a line", create("p_q")),
    Case("__consumer_offsets", create("__consumer_offsets", full=True)),
    Case("nothing", create()),
    Case("with replicas", create("returned", partitions=-1, replicas=-1, assignments=((0, [1]), (1, [1])))),
    Case("replicas and numbers", create("bad", partitions=1, replicas=1, assignments=((0, [1]),))),
    Case("replicas and a number", create("bad", partitions=2, replicas=-1, assignments=((0, [1]),))),
    Case("a replica on an unknown broker", create("bad", partitions=-1, replicas=-1, assignments=((0, [7]),))),
    Case("replicas on one twice", create("bad", partitions=-1, replicas=-1, assignments=((0, [1, 1]),))),
    Case("replicas of no partition", create("bad", partitions=-1, replicas=-1, assignments=((0, []),))),
    Case("replicas from 1", create("bad", partitions=-1, replicas=-1, assignments=((1, [1]),))),
    Case("replicas of one twice", create("bad", partitions=-1, replicas=-1, assignments=((0, [1]), (0, [1])))),
    Case("an unknown setting", create("bad", no_such="1")),
    Case("an invalid value", create("bad", retention_ms="soon")),
    Case("a value too low", create("bad", retention_ms="-5")),
    Case("a null value", create("bad", retention_ms=None)),
    Case("an unknown policy", create("bad", cleanup_policy="keep")),
    Case("no policy at all", create("kept", cleanup_policy="")),
    Case("two policies", create("both", cleanup_policy="compact,delete")),
    Case("two policies, one unknown", create("bad", cleanup_policy="compact,keep")),
    Case("a setting without effect", create("harmless", file_delete_delay_ms="1000")),
    Case("again, with an invalid value", create("one", retention_ms="soon")),
    Case("again, without replicas", create("one", replicas=0)),
    Case("an invalid value, no replicas", create("bad", replicas=0, retention_ms="soon")),
    Case("too many replicas of no partitions", create("bad", partitions=0, replicas=3)),
    Case("negative sizes", create("sizes", retention_bytes="-5")),
    Case("an invalid level", create("bad", compression_gzip_level="0")),
    Case("settings that contradict each other", create("bad", min_compaction_lag_ms="5", max_compaction_lag_ms="4")),
    Case("throttled replicas", create("throttled", leader_replication_throttled_replicas="0:1,1:1")),
    Case("invalid throttled replicas", create("bad", leader_replication_throttled_replicas="x")),
    Case("settings of tiered storage", create(
        "tiered", remote_log_copy_disable="false", remote_log_delete_on_disable="false")),
    Case("settings of every kind", create(
        "kinds", compression_type="producer", max_message_bytes="2000", segment_ms="1000000", min_insync_replicas="1",
        message_timestamp_type="LogAppendTime", preallocate="false", unclean_leader_election_enable="false")),
]  # fmt: skip


def delete(*names: str, ids: tuple[str, ...] = (), both: tuple[str, ...] = (), full: bool = False) -> Any:
    def build(broker: ComparedBroker) -> Any:
        state = messages.DeleteTopicsRequest.DeleteTopicState
        called = [short if full else broker.name(short) for short in names]
        states = [state(name=name) for name in called]
        states += [state(name=None, topic_id=broker.id(short)) for short in ids]
        states += [state(name=broker.name(short), topic_id=broker.id(short)) for short in both]
        return messages.DeleteTopicsRequest(topics=states, topic_names=called, timeout_ms=20_000)

    return build


DELETE_TOPICS = [
    Case("one", delete("away1")),
    Case("again", delete("away1")),
    Case("two, one there", delete("away2", "gone")),
    Case("one twice", delete("away3", "away3")),
    Case("by id", delete(ids=("away4",)), 6),
    Case("by an id that is not there", delete(ids=("gone",)), 6),
    Case("by ids that are not there", delete(ids=("gone", "gone-too")), 6),
    Case("by id twice", delete(ids=("away5", "away5")), 6),
    Case("by id and name", delete(both=("away5",)), 6),
    Case("an illegal name", delete("a/b")),
    Case("no name", delete("", full=True)),
    Case("nothing", delete()),
]


def more(*wanted: tuple[str, int], assignments: list[list[int]] | None = None, validate: bool = False) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.CreatePartitionsRequest.CreatePartitionsTopic
        returned = None
        if assignments is not None:
            returned = [topic.CreatePartitionsAssignment(broker_ids=each) for each in assignments]
        topics = [topic(name=broker.name(short), count=count, assignments=returned) for short, count in wanted]
        return messages.CreatePartitionsRequest(topics=topics, timeout_ms=20_000, validate_only=validate)

    return build


CREATE_PARTITIONS = [
    Case("validated", more(("grows", 2), validate=True)),
    Case("one more", more(("grows", 2))),
    Case("as many", more(("grows", 2))),
    Case("fewer", more(("grows", 1))),
    Case("none", more(("grows", 0))),
    Case("a negative number", more(("grows", -1))),
    Case("not there", more(("gone", 2))),
    Case("with replicas", more(("grows", 3), assignments=[[1]])),
    Case("replicas of too many partitions", more(("grows", 4), assignments=[[1], [1]])),
    Case("replicas of no partition", more(("grows", 4), assignments=[])),
    Case("a replica on an unknown broker", more(("grows", 4), assignments=[[9]])),
    Case("no replicas", more(("grows", 4), assignments=[[]])),
    Case("two, one there", more(("grows", 4), ("gone", 4))),
    Case("one twice", more(("grows", 5), ("grows", 6))),
    Case("nothing", more()),
]


def describe_configs(*resources: tuple[int, str, list[str] | None], synonyms: bool = False) -> Any:
    def build(broker: ComparedBroker) -> Any:
        resource = messages.DescribeConfigsRequest.DescribeConfigsResource
        wanted = [
            resource(
                resource_type=kind,
                resource_name=broker.name(of) if kind == TOPIC and of else of,
                configuration_keys=keys,
            )
            for kind, of, keys in resources
        ]
        return messages.DescribeConfigsRequest(
            resources=wanted, include_synonyms=synonyms, include_documentation=False
        )

    return build


SOME = ["retention.ms", "cleanup.policy", "max.message.bytes", "compression.type"]
SOME_OF_BROKERS = ["num.partitions", "group.max.size", "delete.topic.enable", "offsets.retention.minutes"]
DESCRIBE_CONFIGS = [
    Case("a topic", describe_configs((TOPIC, "set", SOME))),
    Case("a topic, all of it", describe_configs((TOPIC, "set", None))),
    Case("a topic, with synonyms", describe_configs((TOPIC, "set", None), synonyms=True)),
    Case("a topic that sets some itself, with synonyms", describe_configs((TOPIC, "compacted", None), synonyms=True)),
    Case("an empty list of keys", describe_configs((TOPIC, "set", []))),
    Case("an unknown key", describe_configs((TOPIC, "set", ["no.such"]))),
    Case("a topic that is not there", describe_configs((TOPIC, "gone", None))),
    Case("an illegal name", describe_configs((TOPIC, "a/b", None))),
    Case("no name", describe_configs((TOPIC, "", None))),
    Case("a broker", describe_configs((BROKER, "1", SOME_OF_BROKERS))),
    Case("a broker, with synonyms", describe_configs((BROKER, "1", SOME_OF_BROKERS), synonyms=True)),
    Case("a setting of one broker", describe_configs((BROKER, "1", ["node.id"]), synonyms=True)),
    Case("all brokers", describe_configs((BROKER, "", None))),
    Case("all brokers, one setting", describe_configs((BROKER, "", ["num.partitions"]))),
    Case("another broker", describe_configs((BROKER, "2", SOME_OF_BROKERS))),
    Case("a broker that is no number", describe_configs((BROKER, "x", SOME_OF_BROKERS))),
    Case("an unknown kind", describe_configs((99, "1", None))),
    Case("kind 0", describe_configs((0, "1", None))),
    Case("one twice", describe_configs((TOPIC, "set", ["retention.ms"]), (TOPIC, "set", ["retention.ms"]))),
    Case("nothing", describe_configs()),
]


def config_resources(*kinds: int) -> Any:
    return lambda broker: messages.ListConfigResourcesRequest(resource_types=list(kinds))


# version 0 has no resource types
LIST_CONFIG_RESOURCES = [
    Case("all kinds", config_resources()),
    Case("topics", config_resources(TOPIC), 1),
    Case("brokers and their loggers", config_resources(BROKER, 8), 1),
    Case("client metrics", config_resources(16), 1),
    Case("groups", config_resources(32), 1),
    Case("an unknown kind", config_resources(TOPIC, 99), 1),
]


def alter(*resources: tuple[int, str, dict[str, str | None]], validate: bool = False) -> Any:
    def build(broker: ComparedBroker) -> Any:
        resource = messages.AlterConfigsRequest.AlterConfigsResource
        wanted = [
            resource(
                resource_type=kind,
                resource_name=broker.name(of) if kind == TOPIC else of,
                configs=[resource.AlterableConfig(name=name, value=value) for name, value in settings.items()],
            )
            for kind, of, settings in resources
        ]
        return messages.AlterConfigsRequest(resources=wanted, validate_only=validate)

    return build


ALTER_CONFIGS = [
    Case("a topic", alter((TOPIC, "set", {"retention.ms": "7000"}))),
    Case("validated", alter((TOPIC, "set", {"retention.ms": "9000"}), validate=True)),
    Case("a topic that is not there", alter((TOPIC, "gone", {"retention.ms": "7000"}))),
    Case("an unknown setting", alter((TOPIC, "set", {"no.such": "7000"}))),
    Case("an invalid value", alter((TOPIC, "set", {"retention.ms": "soon"}))),
    Case("an invalid value of one that is not there", alter((TOPIC, "gone", {"retention.ms": "soon"}))),
    Case("a null value", alter((TOPIC, "set", {"retention.ms": None}))),
    Case("no settings", alter((TOPIC, "set", {}))),
    Case("another broker", alter((BROKER, "7", {"num.partitions": "1"}))),
    Case("an unknown kind", alter((99, "1", {"num.partitions": "1"}))),
    Case("nothing", alter()),
]
Operations = list[tuple[str, int, "str | None"]]


def change(*resources: tuple[int, str, Operations], validate: bool = False) -> Any:
    def build(broker: ComparedBroker) -> Any:
        resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
        wanted = [
            resource(
                resource_type=kind,
                resource_name=broker.name(of) if kind == TOPIC else of,
                configs=[
                    resource.AlterableConfig(name=name, config_operation=operation, value=value)
                    for name, operation, value in operations
                ],
            )
            for kind, of, operations in resources
        ]
        return messages.IncrementalAlterConfigsRequest(resources=wanted, validate_only=validate)

    return build


_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
CHANGE_CONFIGS = [
    Case("set", change((TOPIC, "set", [("retention.ms", _SET, "7000")]))),
    Case("delete", change((TOPIC, "set", [("retention.ms", _DELETE, None)]))),
    Case("an invalid value of one that is not there", change((TOPIC, "gone", [("retention.ms", _SET, "soon")]))),
    Case("an illegal name", change((TOPIC, "a/b", [("retention.ms", _SET, "7000")]))),
    Case("delete what is not set", change((TOPIC, "set", [("segment.ms", _DELETE, None)]))),
    Case("append", change((TOPIC, "set", [("cleanup.policy", _APPEND, "compact")]))),
    Case("append again", change((TOPIC, "set", [("cleanup.policy", _APPEND, "compact")]))),
    Case("subtract", change((TOPIC, "set", [("cleanup.policy", _SUBTRACT, "compact")]))),
    Case("subtract what is not there", change((TOPIC, "set", [("cleanup.policy", _SUBTRACT, "compact")]))),
    Case("subtract the last", change((TOPIC, "set", [("cleanup.policy", _SUBTRACT, "delete")]))),
    Case("append to nothing", change((TOPIC, "set", [("cleanup.policy", _APPEND, "delete,compact")]))),
    Case("append an unknown value", change((TOPIC, "set", [("cleanup.policy", _APPEND, "keep")]))),
    Case("append to a number", change((TOPIC, "set", [("retention.ms", _APPEND, "1")]))),
    Case("an unknown setting", change((TOPIC, "set", [("no.such", _SET, "1")]))),
    Case("delete an unknown setting", change((TOPIC, "set", [("no.such", _DELETE, None)]))),
    Case("an invalid value", change((TOPIC, "set", [("retention.ms", _SET, "soon")]))),
    Case("a null value", change((TOPIC, "set", [("retention.ms", _SET, None)]))),
    Case("a setting twice", change((TOPIC, "set", [("retention.ms", _SET, "1"), ("retention.ms", _SET, "2")]))),
    Case("no settings", change((TOPIC, "set", []))),
    Case("validated", change((TOPIC, "set", [("retention.ms", _SET, "9000")]), validate=True)),
    Case("a topic that is not there", change((TOPIC, "gone", [("retention.ms", _SET, "7000")]))),
    Case("a fixed setting of a broker", change((BROKER, "1", [("node.id", _SET, "4")]))),
    Case("another broker", change((BROKER, "7", [("num.partitions", _SET, "1")]))),
    Case("an unknown kind", change((99, "1", [("num.partitions", _SET, "1")]))),
    Case("one twice", change((TOPIC, "set", []), (TOPIC, "set", []))),
    Case("nothing", change()),
]


def log_dirs(*wanted: tuple[str, list[int]]) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.DescribeLogDirsRequest.DescribableLogDirTopic
        return messages.DescribeLogDirsRequest(topics=[topic(topic=broker.name(of), partitions=n) for of, n in wanted])

    return build


LOG_DIRS = [
    Case("two", log_dirs(("read", [0, 1]), ("cut", [0]))),
    Case("one that is not there", log_dirs(("read", [0, 9]), ("gone", [0]))),
    Case("one without partitions", log_dirs(("read", []))),
    Case("nothing", log_dirs()),
]


def versions(name: str, version: str) -> Any:
    return lambda broker: messages.ApiVersionsRequest(client_software_name=name, client_software_version=version)


def expected_broker(same_cluster: bool, node_id: int = 0) -> Any:
    """ApiVersions of a client that expects this cluster or another one, and its broker plus `node_id` (KIP-1242)."""

    def build(broker: Any) -> Any:
        cluster_id, node = broker.identity()
        return messages.ApiVersionsRequest(
            client_software_name="a",
            client_software_version="1",
            cluster_id=cluster_id if same_cluster else "other",
            node_id=node + node_id,
        )

    return build


def half_of_a_broker(cluster_id: str | None, node_id: int) -> Any:
    return lambda broker: messages.ApiVersionsRequest(
        client_software_name="a", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )


API_VERSIONS = [
    Case("defaults", versions("a", "1")),
    Case("no name", versions("", "1")),
    Case("no version", versions("a", "")),
    Case("an illegal name", versions("a b", "1")),
    Case("an illegal version", versions("a", "-1-")),
    Case("a name with dots", versions("a.b-c", "1.0-x")),
    Case("this broker", expected_broker(True)),
    Case("another broker", expected_broker(True, 5)),
    Case("another cluster", expected_broker(False)),
    Case("a cluster without a node", half_of_a_broker("c", -1)),
    Case("a node without a cluster", half_of_a_broker(None, 1)),
    Case("an empty cluster id", half_of_a_broker("", 1)),
]


def producer_id(transactional_id: str | None = None, timeout_ms: int = 1_000, known: int = -1, epoch: int = -1) -> Any:
    return lambda broker: messages.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=known, producer_epoch=epoch
    )


INIT_PRODUCER_ID = [
    Case("a new one", producer_id()),
    Case("no timeout", producer_id(timeout_ms=0)),
    Case("a negative timeout", producer_id(timeout_ms=-1)),
    Case("the next epoch", producer_id(known=1, epoch=4), 3),
    Case("the last epoch", producer_id(known=1, epoch=32766), 3),
    Case("an id without an epoch", producer_id(known=1), 3),
    Case("an epoch without an id", producer_id(epoch=1), 3),
]
