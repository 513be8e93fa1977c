"""Errors as users of Spark see them: every class, every data loss.

Spark prints the traceback of a Python worker before the message of its error, which buries the message. Errors of this
package have no traceback. An error inside foreachBatch has those of Spark and of the user's function.
"""

import json
import re
import socket
import struct
import sys
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_jars import spark_connector_jars
from schema_registry import SchemaRegistryServer
from support.members import LibrdkafkaMember
from support.query_harness import QueryHarness
from support.topics import create_topic, produce

from spark_groupsource import errors
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.errors import GroupSourceError

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}

HOOKS = '''
import confluent_kafka
import confluent_kafka.admin
from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.wire.messages import LeaveGroupRequest

SERVERS, TOPIC, GROUP = {servers!r}, {topic!r}, {group!r}

class Listener:
    def on_partitions_assigned(self, partitions):
        pass

    on_partitions_revoked = on_partitions_assigned

class Removing(Listener):
    def on_partitions_assigned(self, partitions):
        with ClusterClient(SERVERS, ClientSettings.parse({{"bootstrap.servers": SERVERS}})) as client:
            members = describe_groups(client, [GROUP])[GROUP].members
            row, reason = LeaveGroupRequest.MemberIdentity, "removed by an operator"
            rows = [row(member_id=each.member_id, group_instance_id=None, reason=reason) for each in members]
            client.call_coordinator(GROUP, LeaveGroupRequest(group_id=GROUP, members=rows), min_version=3)

class Replacing(Listener):
    """Another process joins with the group.instance.id of a member."""

    def on_partitions_assigned(self, partitions):
        self.other = confluent_kafka.Consumer(
            {{"bootstrap.servers": SERVERS, "group.id": GROUP, "group.instance.id": "worker-0",
             "partition.assignment.strategy": "range", "auto.offset.reset": "earliest"}}
        )
        self.other.subscribe([TOPIC])
        assert self.other.poll(30) is not None

class Deleting(Listener):
    def on_partitions_assigned(self, partitions):
        admin = confluent_kafka.admin.AdminClient({{"bootstrap.servers": SERVERS}})
        admin.delete_topics([TOPIC + "-b"])[TOPIC + "-b"].result(30)
'''


class FailureHarness(QueryHarness):
    """A topic with 10 records in each of 4 partitions, and ways to make a query on it fail."""

    def __init__(self, *args):
        super().__init__(*args)
        self.produce(40)
        self.admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})

    def run(self, trigger=NOW, **options):
        assert self.start("a", trigger, **options).awaitTermination(120)

    def read(self, schema=None, **options):
        reader = self.spark.read.format("groupsource")
        reader = reader.schema(schema) if schema else reader
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap_servers, "subscribe": self.topic, **options}
        reader.options(**given).load().collect()

    def offsets(self, *numbers):
        return {self.topic: {str(partition): number for partition, number in enumerate(numbers)}}

    def checkpoint(self, *ends, finished=1):
        """Writes a checkpoint of batches with these end offsets; the first `finished` are in the commit log."""
        checkpoint = self.directory / "a" / "checkpoint"
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid4())}))
        for number, end in enumerate(ends):
            head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
            (checkpoint / "offsets" / str(number)).write_text(f"v1\n{head}\n{json.dumps(end)}")
            if number < finished:
                (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def trim(self, partition, offset):
        for future in self.admin.delete_records([TopicPartition(self.topic, partition, offset)]).values():
            future.result(30)

    @contextmanager
    def hook(self, name):
        """Yields the option value of a rebalance listener that acts between assignment and planning."""
        module = f"hooks_{self.group.replace('-', '_')}"
        # Spark's Python processes get the driver's site directories
        path = Path(next(path for path in sys.path if path.endswith("site-packages"))) / f"{module}.py"
        path.write_text(
            HOOKS.format(servers=self.cluster.bootstrap_servers, topic=self.topic, group=self.group), encoding="utf-8"
        )
        try:
            yield f"{module}:{name}"
        finally:
            path.unlink()


@contextmanager
def server(respond):
    """Yields the address of a server on loopback that passes each connection to `respond`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve():
            while not ended.is_set():
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=respond, args=(peer, ended), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield "127.0.0.1:%d" % listener.getsockname()[1]
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)


def silent(peer, ended):
    with peer:
        ended.wait(60)


def http(peer, ended):
    with peer:
        peer.recv(4096)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def old_broker(peer, ended):
    """Supports only Metadata up to version 3."""
    with peer:
        while head := peer.recv(4):
            frame = peer.recv(struct.unpack(">i", head)[0])
            _, version, correlation = struct.unpack(">hhi", frame[:8])
            body = struct.pack(">ihi", correlation, 35 if version else 0, 2) + struct.pack(">6h", 18, 0, 0, 3, 0, 3)
            peer.sendall(struct.pack(">i", len(body)) + body)


def through(respond):
    def act(harness):
        with server(respond) as address:
            short = {"kafka.request.timeout.ms": "500", "kafka.default.api.timeout.ms": "3000"}
            harness.read(**{"kafka.bootstrap.servers": address, **short})

    return act


def no_common_assignor(harness):
    address = harness.cluster.bootstrap_servers
    strategy = {"partition_assignment_strategy": "roundrobin"}
    with LibrdkafkaMember(address, harness.group, harness.topic, **strategy) as other:
        other.wait_for_partitions(4)
        harness.run(**{"kafka.partition.assignment.strategy": "range"})


def operator_resets(harness):
    harness.checkpoint(harness.offsets(8, 8, 8, 8))
    harness.client.commit(harness.group, {p: o for p, o in commits(harness.topic, 3)})
    harness.run(onGroupReset="fail")


def commits(topic, offset):
    from spark_groupsource.model import OffsetAndMetadata
    from spark_groupsource.model import TopicPartition as Ours

    return [(Ours(topic, 0), OffsetAndMetadata(offset))]


def backward(harness):
    harness.checkpoint(harness.offsets(9, 9, 9, 9), harness.offsets(9, 3, 9, 9))
    harness.run()


def fenced(harness):
    with harness.hook("Removing") as listener:
        harness.run(rebalanceListener=listener)


def replaced(harness):
    static = {"kafka.group.instance.id": "worker", "kafka.partition.assignment.strategy": "range", "members": "1"}
    with harness.hook("Replacing") as listener:
        harness.run(rebalanceListener=listener, **static)


def records_deleted(harness):
    harness.checkpoint(harness.offsets(3, 3, 3, 3))
    harness.trim(0, 5)
    harness.run()


def partition_deleted(harness):
    harness.checkpoint({**harness.offsets(3, 3, 3, 3), f"{harness.topic}-gone": {"0": 7}})
    harness.run(subscribe=None, subscribePattern=f"{harness.topic}.*")


def added_partition(harness):
    harness.checkpoint(harness.offsets(1, 1, 1))
    harness.trim(3, 5)
    harness.run()


def deleted_before_lookup(harness):
    create_topic(harness.cluster.bootstrap_servers, f"{harness.topic}-b")
    # the partition existed when the query started
    counts = {harness.topic: 4, f"{harness.topic}-b": 1}
    group = {"acquired": {}, "generation": 1, "reader": "abc", "partitions": counts}
    harness.checkpoint({**harness.offsets(10, 10, 10, 10), "@group": group})
    with harness.hook("Deleting") as listener:
        harness.run(subscribe=f"{harness.topic},{harness.topic}-b", rebalanceListener=listener, members="1")


def far_timestamp(harness):
    config = {"message.timestamp.after.max.ms": str(2**62)}
    create_topic(harness.cluster.bootstrap_servers, f"{harness.topic}-far", 1, config)
    producer = Producer({"bootstrap.servers": harness.cluster.bootstrap_servers})
    producer.produce(f"{harness.topic}-far", b"fine", timestamp=1)
    producer.produce(f"{harness.topic}-far", b"nanoseconds", timestamp=1_700_000_000_000_000_000)
    assert not producer.flush(30)
    harness.read(subscribe=f"{harness.topic}-far")


def schema_changed(harness):
    with SchemaRegistryServer() as registry:
        for name in ("a", "b"):
            field = {"name": name, "type": "int"}
            registry.register(f"{harness.topic}-value", {"type": "record", "name": "r", "fields": [field]})
        options = {"value.format": "avro", "value.schema.registry.url": registry.url, "onSchemaChange": "fail"}
        harness.read(**options, **{"value.schema.version": "1"})


CONFIGURATION, LOSS = "ConfigurationError", "DataLossError"
RESTART = "The batch is not committed; restart the query to continue from its checkpoint"
# the advice that gives up records is the last one
GO_ON = "Only if the lost records are not needed, set failOnDataLoss to false to continue with those that exist.$"
NO_ADMIN = "Check kafka.bootstrap.servers"

# error class, cause, patterns in the message; T and G are the names of topic and group
FAILURES = {
    "unknown option": (CONFIGURATION, lambda s: s.stream(subscrib="x"), ["subscrib is unknown", "Did you mean"]),
    "setting not supported": (
        CONFIGURATION, lambda s: s.stream(**{"kafka.auto.offset.reset": "latest"}),
        ["kafka.auto.offset.reset is not supported", "startingOffsets"]),
    "stream without group": (
        CONFIGURATION, lambda s: s.run(**{"kafka.group.id": None}), ["kafka.group.id is missing", "Name the group"]),
    "option of batches": (CONFIGURATION, lambda s: s.run(endingOffsets="latest"), ["not allowed in a stream query"]),
    "listener": (
        CONFIGURATION, lambda s: s.run(rebalanceListener="no_such_module:Class"), ["rebalanceListener", "Python path"]),
    "schema": (CONFIGURATION, lambda s: s.read("value string"), ["value of the schema must be binary", "Cast it"]),
    "malformed value": (
        "MalformedRecordError", lambda s: s.read(**{"value.format": "json", "value.schema": "a struct<b: int>"}),
        ["MALFORMED_RECORD", r"the value of T-\d at offset 0 as json", "Set option mode to PERMISSIVE"]),
    "schema changed": (
        "SchemaChangedError", schema_changed, [r"\[SCHEMA_CHANGED\] .* subject T-value has version 2", "Set it to ig"]),
    "no topic": (CONFIGURATION, lambda s: s.read(subscribe="nope"), ["topic nope does not exist at .*. Create it"]),
    "no topic for a stream": (CONFIGURATION, lambda s: s.run(subscribe="nope"), ["topic nope does not exist at"]),
    "no time": (
        CONFIGURATION, lambda s: s.read(startingTimestamp="99999999999999"), ["T-0, T-1", "Choose an earlier time"]),
    "start after end": (
        CONFIGURATION, lambda s: s.read(startingOffsets=json.dumps(s.offsets(0, 12, 0, 0))),
        [r"\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] The read of T-1", "starts at 12 and ends at 10",
         "Correct startingOffsets"]),
    "no commit": (
        CONFIGURATION, lambda s: s.run(startingOffsets="group"),
        ["group G has no committed offset for T-0", "Use group-or-earliest or group-or-latest"]),
    "reset refused": (
        CONFIGURATION, operator_resets,
        ["committed offset of T-0 in group G", "reset by an operator to 3; the checkpoint is at 8",
         "Set onGroupReset to follow"]),
    "foreign checkpoint": (
        CONFIGURATION, lambda s: (s.checkpoint({"logOffset": 3}), s.run()), ["its own checkpoint location"]),
    "backward": (CONFIGURATION, backward, ["reads T-1 backward, from 9 to 3", "its own checkpoint location"]),
    "embedded broker": (
        CONFIGURATION, lambda s: s.read(**{"kafka.bootstrap.servers": f"embedded:{__file__}"}),
        ["the embedded broker did not start", Path(__file__).name]),
    "connection refused": (
        "NetworkError", lambda s: s.read(**{"kafka.bootstrap.servers": "127.0.0.1:1"}), ["127.0.0.1:1", NO_ADMIN]),
    "connection refused to a stream": (
        "NetworkError", lambda s: s.run(**{"kafka.bootstrap.servers": "127.0.0.1:1"}), ["127.0.0.1:1", NO_ADMIN]),
    "unknown name": (
        "NetworkError",
        lambda s: s.read(**{"kafka.bootstrap.servers": "nowhere.invalid:9092"}),
        ["nowhere.invalid"],
    ),
    "no answer": ("NetworkError", through(silent), ["No response within", NO_ADMIN]),
    "not Kafka": ("NetworkError", through(http), ["127.0.0.1", NO_ADMIN]),
    "old broker": ("UnsupportedVersionError", through(old_broker), ["Metadata"]),
    "session time-out": (
        "BrokerError", lambda s: s.run(**{"kafka.session.timeout.ms": "2000"}),
        ["group 'G'", "Set kafka.session.timeout.ms between the broker's", "INVALID_SESSION_TIMEOUT"]),
    "no common assignor": (
        "BrokerError", no_common_assignor, ["group 'G'", "Set kafka.partition.assignment.strategy to one of"]),
    "topic name": ("BrokerError", lambda s: s.read(subscribe="not a name"), ["not a name", "INVALID_TOPIC_EXCEPTION"]),
    "fenced": (
        "GenerationMismatchError", fenced,
        ["'G' fenced member 'groupsource-tests-[01]-.*", r"generation \d+ .the group's generation is now \d+",
         RESTART]),
    "replaced": (
        "GenerationMismatchError", replaced,
        # the error of the reader or of a task, whichever is first
        ["'G' fenced member '", "another process joined with .*group.instance.id", "FENCED_INST", RESTART]),
    "records deleted": (
        LOSS, records_deleted,
        ["KAFKA_DATA_LOSS.START_OFFSET_RESET", r"T-0 begins at offset 5 now; \[3, 10\)", "group G", GO_ON]),
    "truncated": (
        LOSS, lambda s: (s.checkpoint(s.offsets(3, 99, 3, 3)), s.run()),
        ["KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED", "T-1 ends at 10, not 99", "group G", GO_ON]),
    "deleted": (
        LOSS, partition_deleted,
        ["PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT", "T-gone-0 was deleted", "read to offset 7", "G", GO_ON]),
    "partition added": (
        LOSS, added_partition,
        ["ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", "T-3 begins at offset 5", "group G", GO_ON]),
    "deleted before lookup": (
        LOSS, deleted_before_lookup, ["INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", "T-b-0", "group G", GO_ON]),
    "end beyond the log": (
        LOSS, lambda s: s.read(endingOffsets=json.dumps(s.offsets(1, 1, 1, 50))),
        ["COULD_NOT_READ_OFFSET_RANGE", "T-3 is 50, but the log ends at 10", GO_ON]),
    "far timestamp": (
        "CorruptRecordError", far_timestamp,
        ["KAFKA_MALFORMED_RECORD_TIMESTAMP", "T-far-0.* offset 1 .*1700000000000000000", "leave the column timestamp"]),
}  # fmt: skip


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = FailureHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("case", FAILURES)
def test_message_is_first_and_names_cause_and_remedy(harness, case):
    error_class, provoke, patterns = FAILURES[case]
    with pytest.raises(Exception) as raised:
        provoke(harness)
    message = str(raised.value)
    before, found, after = message.partition(f"spark_groupsource.errors.{error_class}: ")
    assert found, message
    assert "Traceback" not in before and "File " not in before and len(before) < 500, before
    shown = after.split("\n")[0]
    for pattern in patterns:
        named = re.sub(r"\bG\b", harness.group, re.sub(r"\bT\b", harness.topic, pattern))
        assert re.search(named, shown), (named, shown)


def test_every_data_loss_class_of_spark_and_every_error_class_is_covered():
    (jar,) = (path for path in spark_connector_jars() if path.name.startswith("spark-sql-kafka"))
    with zipfile.ZipFile(jar) as archive:
        conditions = json.loads(archive.read("error/kafka-error-conditions.json"))
    covered = " ".join(pattern for _, _, patterns in FAILURES.values() for pattern in patterns)
    assert {name for name in conditions["KAFKA_DATA_LOSS"]["subClass"] if name not in covered} == set()
    within_others = {
        "RequestTimeoutError": "no answer",
        "RemoteProtocolError": "not Kafka",
        "UnresolvedNameError": "unknown name",
        "StorageError": "embedded broker",
    }
    # in other tests: authentication below, the end of an application in test_driver_exit.py, aborted transactions in
    # sink/; the embedded broker sends ApiError to its clients as an error code
    elsewhere = {"AuthenticationError", "ApplicationEndedError", "ApiError", "TransactionAbortedError"}
    classes = {
        name for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, GroupSourceError)
    }
    shown = {error_class for error_class, _, _ in FAILURES.values()} | set(within_others) | elsewhere
    assert classes - shown == {"GroupSourceError"} and set(within_others.values()) <= set(FAILURES)


def test_authentication_failure(spark, topic):
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    listener = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    config = {"sasl.enabled.mechanisms": "PLAIN", listener: f'{login} user_ann="right";'}
    with EmbeddedBroker(config=config) as broker:
        reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", broker.bootstrap_servers)
        security = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
        jaas = {"kafka.sasl.jaas.config": f'{login} username="ann" password="wrong";'}
        with pytest.raises(Exception) as raised:
            reader.options(subscribe=topic, **security, **jaas).load().collect()
    assert re.search("errors.AuthenticationError: .*ann", str(raised.value)), str(raised.value)
    assert "Traceback" not in str(raised.value) and "wrong" not in str(raised.value)


def test_corrupt_record_error_names_partition_and_offset(spark, request, cluster, topic):
    create_topic(cluster.bootstrap_servers, topic)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"some value %d" % n) for n in range(10)])
    running = request.getfixturevalue(cluster.name)
    directory = running.data_dir if cluster.name == "embedded" else running.data_directory
    (segment,) = (directory / f"{topic}-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"some value 7")] ^= 1
    segment.write_bytes(data)
    reader = spark.read.format("groupsource").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    with pytest.raises(Exception) as raised:
        reader.option("subscribe", topic).load().collect()
    message = str(raised.value)
    assert re.search(f"CorruptRecordError: {topic}-0: .* batch at offset 0 .* stored CRC", message), message
    assert "Traceback" not in message
