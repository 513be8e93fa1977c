"""Background work and dynamic settings: retention, compaction, altered settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from real_kafka import ToolRun
from support.java_tools import CONFIGS, JavaTools
from support.partition_logs import batch
from support.raw_broker import BrokerProcess, RawConnection, create_topic, fetch, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.messages import (
    AlterConfigsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
)

SOON = {"log.cleaner.backoff.ms": "20", "log.retention.check.interval.ms": "20", "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0"}  # fmt: skip
SET, DELETE, APPEND, SUBTRACT = range(4)


def put(connection, topic, key, value, **options):
    response = produce(connection, topic, encode_batch([Record(key, value, options.pop("stamp", 1_000))], **options))
    assert response.error_code == 0, response.error_message
    return response.base_offset


def read_all(connection, topic):
    """(offset, key, value) of every record, read by a consumer."""
    found, offset, end = [], list_offset(connection, topic, -2), list_offset(connection, topic, -1)
    while offset < end:
        response = fetch(connection, topic, offset)
        assert response.error_code == 0 and response.records
        data = bytes(response.records)
        for header in iter_batches(data):
            found += [(r.offset, r.key, r.value) for r in decode_records(data, header) if r.offset >= offset]
            offset = header.next_offset
    return found


def list_offset(connection, topic, timestamp):
    entry = ListOffsetsRequest.ListOffsetsTopic
    wanted = entry.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[entry(name=topic, partitions=[wanted])])
    return connection.call(request, 7).topics[0].partitions[0].offset


def delete_records(connection, topic, offset):
    entry = DeleteRecordsRequest.DeleteRecordsTopic
    partition = entry.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[entry(name=topic, partitions=[partition])], timeout_ms=1000)
    return connection.call(request, 2).topics[0].partitions[0]


def alter(connection, topic, *changes, kind=2, validate_only=False):
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in changes]
    resources = [resource(resource_type=kind, resource_name=topic, configs=configs)]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    return connection.call(request, 1).responses[0]


def settings(connection, topic):
    """Settings of a topic that were set explicitly, by name."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = resource(resource_type=2, resource_name=topic, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True, include_documentation=True)
    found = connection.call(request, 4).results[0].configs
    assert not any(config.read_only for config in found)
    return {config.name: config.value for config in found if config.config_source == 1}


def segments(broker, topic, partition=0):
    return broker.call(lambda b: [s.size for s in b.partitions.partition(topic, partition).log.segments])


def passes(broker):
    return broker.call(lambda b: b.cleaner.completed_passes)


# --- rolling and retention ---


def test_expired_segments_are_deleted_including_the_active_one(tmp_path):
    now = SystemClock().timestamp_ms()
    with EmbeddedBroker(tmp_path, config=SOON) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", retention_ms="3600000", segment_bytes="1024")
        create_topic(connection, "young", retention_ms="3600000")
        for number in range(20):
            put(connection, "t", b"k", b"x" * 200, stamp=now - 7_200_000 + number)
            put(connection, "young", b"k", b"x" * 200, stamp=now)
        wait_until(lambda: segments(broker, "t") == [0], "the removal of old segments")
        assert list_offset(connection, "t", -2) == list_offset(connection, "t", -1) == 20
        assert fetch(connection, "t", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert put(connection, "t", b"k", b"new", stamp=now) == 20
        assert read_all(connection, "t") == [(20, b"k", b"new")]
        assert len(read_all(connection, "young")) == 20
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert read_all(connection, "t") == [(20, b"k", b"new")]


# --- compaction ---


def test_a_topic_is_compacted_during_produce_and_fetch(tmp_path):
    with EmbeddedBroker(tmp_path, config=SOON) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0.1")
        for number in range(200):
            put(connection, "t", b"key %d" % (number % 5), b"value %d" % number, codec=number % 5)
        wait_until(lambda: len(read_all(connection, "t")) < 50, "compaction")
        found = read_all(connection, "t")
        assert {key: value for _, key, value in found} == {b"key %d" % k: b"value %d" % (195 + k) for k in range(5)}
        assert all(value == b"value %d" % offset for offset, _, value in found)
        assert list_offset(connection, "t", -2) == 0 and list_offset(connection, "t", -1) == 200
        assert delete_records(connection, "t", 100).error_code == ErrorCode.POLICY_VIOLATION
        refused = produce(connection, "t", batch(b"no key"))
        assert refused.error_code == ErrorCode.INVALID_RECORD and "without key" in refused.error_message
        both = (("cleanup.policy", SET, "compact,delete"), ("retention.ms", SET, "-1"))
        assert alter(connection, "t", *both).error_code == 0
        assert delete_records(connection, "t", 197).low_watermark == 197
        expected = [each for each in found if each[0] >= 197]
        assert read_all(connection, "t") == expected and list_offset(connection, "t", 0) == 197
    for config in ({}, {"log.cleaner.enable": "false"}):
        with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
            assert read_all(connection, "t") == expected and list(broker.reports) == []


@pytest.mark.slow
def test_offsets_and_groups_survive_the_compaction_of_the_offsets_topic(tmp_path):
    config = {**SOON, "offsets.topic.segment.bytes": "2000", "log.cleaner.min.cleanable.ratio": "0.01"}
    with EmbeddedBroker(tmp_path, config=config) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "t", 3)
        for group in ("g1", "g2"):
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
            for offset in range(60):
                consumer.commit(offsets=[TopicPartition("t", p, offset + p) for p in range(3)], asynchronous=False)
            consumer.close()
        wait_until(lambda: passes(broker) >= 2, "a pass")

        def size():
            return sum(sum(segments(broker, "__consumer_offsets", p)) for p in range(2))

        wait_until(lambda: size() < 8_000, "compaction of __consumer_offsets")
    for clean in (True, False):
        with BrokerProcess(tmp_path, "offsets.topic.num.partitions=2") as process:
            for group in ("g1", "g2"):
                consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": group})
                found = consumer.committed([TopicPartition("t", p) for p in range(3)], 10)
                assert [each.offset for each in found] == [59, 60, 61]
                consumer.close()
            process.terminate() if clean else process.kill()
            problems = ("damaged", "cannot", "failed")
            assert [line for line in process.lines if any(problem in line for problem in problems)] == []


def test_an_idempotent_producer_continues_after_its_records_are_compacted(tmp_path):
    config = {**SOON, "log.cleaner.min.cleanable.ratio": "0.01"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", cleanup_policy="compact", segment_bytes="1024")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("t", key=b"k", value=b"first")
        assert producer.flush(10) == 0
        for number in range(40):
            put(connection, "t", b"k", b"x" * 100)
        wait_until(lambda: len(read_all(connection, "t")) < 20, "compaction")
        producer.produce("t", key=b"k", value=b"second")
        assert producer.flush(10) == 0
        assert [value for _, _, value in read_all(connection, "t") if value in (b"first", b"second")] == [b"second"]


def test_a_topic_can_be_deleted_during_its_compaction(tmp_path):
    with EmbeddedBroker(tmp_path, config=SOON) as broker, RawConnection(broker.bootstrap_servers) as connection:
        for number in range(10):
            name = f"t{number}"
            create_topic(connection, name, cleanup_policy="compact", segment_bytes="1024")
            for item in range(30):
                put(connection, name, b"k%d" % item, b"x" * 200)
            broker.call(lambda b: b.cleaner.start_next_pass())
            broker.call(lambda b, name=name: run_at_once(b.delete_topic(name)))
        create_topic(connection, "last", cleanup_policy="compact", segment_bytes="1024")
        for item in range(30):
            put(connection, "last", b"k", b"x" * 200)
        wait_until(lambda: len(read_all(connection, "last")) < 15, "compaction")
        assert list(broker.reports) == []
    assert not list(tmp_path.glob("t?-0"))


# --- settings ---


def test_altered_topic_settings_survive_a_restart(tmp_path):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", retention_ms="1000")
        assert alter(connection, "t", ("segment.bytes", SET, "2048"), ("retention.ms", DELETE, None)).error_code == 0
        assert settings(connection, "t") == {"segment.bytes": "2048"}
        assert alter(connection, "t", ("cleanup.policy", APPEND, "compact")).error_code == 0
        assert settings(connection, "t")["cleanup.policy"] == "delete,compact"
        assert alter(connection, "t", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
        assert alter(connection, "t", ("segment.bytes", SET, "4096"), validate_only=True).error_code == 0
        expected = {"segment.bytes": "2048", "cleanup.policy": "compact"}
        assert settings(connection, "t") == expected
        for item in range(30):
            put(connection, "t", b"k", b"x" * 200)
        assert max(segments(broker, "t")) <= 2048  # it holds at once
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert settings(connection, "t") == expected
        resource = AlterConfigsRequest.AlterConfigsResource
        configs = [resource.AlterableConfig(name="segment.ms", value="7")]
        resources = [resource(resource_type=2, resource_name="t", configs=configs)]
        response = connection.call(AlterConfigsRequest(resources=resources, validate_only=False), 2)
        assert response.responses[0].error_code == 0 and settings(connection, "t") == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ([("retention.msec", SET, "1")], ErrorCode.INVALID_CONFIG, "closest name is retention.ms"),
        ([("retention.ms", SET, "-5")], ErrorCode.INVALID_CONFIG, "between -1"),
        ([("min.cleanable.dirty.ratio", SET, "1.5")], ErrorCode.INVALID_CONFIG, "between 0 and 1"),
        ([("min.cleanable.dirty.ratio", SET, "nan")], ErrorCode.INVALID_CONFIG, "between 0 and 1"),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "Null value"),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG, "not LIST"),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST, "Unknown operation"),
        ([("cleanup.policy", SET, "keep")], ErrorCode.INVALID_CONFIG, "a list of"),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST, "duplicate"),
    ],
)
def test_an_invalid_alteration_changes_nothing(tmp_path, changes, code, text):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        response = alter(connection, "t", ("segment.bytes", SET, "2048"), *changes)
        assert response.error_code == code and text in response.error_message
        assert settings(connection, "t") == {}


def test_resources_without_settings_are_rejected(tmp_path):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert alter(connection, "nowhere", ("retention.ms", SET, "1")).error_code == 3
        refused = alter(connection, "1", ("num.partitions", SET, "1"), kind=4)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "dynamically: [num.partitions]" in refused.error_message
        broker.call(lambda b: b.group_coordinator.shards.ensure_topic())
        refused = alter(connection, "__consumer_offsets", ("cleanup.policy", SET, "delete"))
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert alter(connection, "__consumer_offsets", ("segment.bytes", SET, "5000")).error_code == 0
        refused = delete_records(connection, "__consumer_offsets", -1)
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_librdkafka_alters_settings(tmp_path):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        entry = ConfigEntry("retention.ms", "1234", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(10)
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")]).values()
        assert future.result(10)["retention.ms"].value == "1234"


# --- Kafka's own tools ---


def java_tool(java: JavaTools, main_class: str, *arguments: str) -> ToolRun:
    done = java.call(main_class, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.kafka
def test_the_java_tools_alter_settings_and_describe_the_log_directory(tmp_path: Path, java: JavaTools):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        address = ["--bootstrap-server", broker.bootstrap_servers]
        create_topic(connection, "t", 2, retention_ms="77")
        put(connection, "t", b"k", b"v")
        topic = ["--entity-type", "topics", "--entity-name", "t"]
        change = ["--add-config", "segment.ms=60000,cleanup.policy=[compact,delete]", "--delete-config", "retention.ms"]
        altered = java_tool(java, CONFIGS, *address, "--alter", *topic, *change)
        assert "Completed updating config for topic t." in altered.stdout
        assert settings(connection, "t") == {"segment.ms": "60000", "cleanup.policy": "compact,delete"}
        described = java_tool(java, CONFIGS, *address, "--describe", *topic)
        assert "segment.ms=60000" in described.stdout and "retention.ms" not in described.stdout
        listed = ["--describe", "--topic-list", "t"]
        directories = java_tool(java, "org.apache.kafka.tools.LogDirsCommand", *address, *listed)
        size = segments(broker, "t")[0]
        assert f'"size":{size}' in directories.stdout and str(tmp_path) in directories.stdout


@pytest.mark.kafka
def test_the_dump_tool_reads_compacted_segments_without_errors(tmp_path: Path, java: JavaTools):
    config = {**SOON, "offsets.topic.segment.bytes": "2000", "log.cleaner.min.cleanable.ratio": "0.01",
              "log.segment.bytes": "2048", "log.index.interval.bytes": "200"}  # fmt: skip
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", cleanup_policy="compact")
        for number in range(300):
            value = None if number % 7 == 0 else b"value %d" % number
            put(connection, "t", b"key %d" % (number % 30), value, codec=number % 5, stamp=1_000 + number)
            put(connection, "t", b"key %d" % (number % 5), value, producer_id=5, producer_epoch=0, base_sequence=number)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        for offset in range(60):
            consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
        consumer.close()
        wait_until(lambda: len(read_all(connection, "t")) < 200, "compaction")
        wait_until(lambda: passes(broker) >= 3, "a pass")
    files = sorted(str(path) for path in tmp_path.glob("*-*/0*"))
    groups = [name for name in files if "__consumer_offsets" in name]
    for names, decoder in (([name for name in files if name not in groups], []), (groups, ["--offsets-decoder"])):
        options = ["--deep-iteration", "--print-data-log", *decoder, "--files", ",".join(names)]
        dumped = java_tool(java, "org.apache.kafka.tools.DumpLogSegments", *options)
        lines = [line for line in dumped.stderr.splitlines() if line and not line.startswith(("SLF4J", "WARNING"))]
        # compaction leaves offset gaps, which the tool reports for Kafka's own files too
        assert [line for line in lines if "Non-consecutive" not in line and "is followed by" not in line] == []
        assert "isvalid: false" not in dumped.stdout
    assert '"group":"g"' in dumped.stdout
