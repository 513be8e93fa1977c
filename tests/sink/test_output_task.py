"""What a write task does in its worker process, without Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from real_kafka import RealKafka
from support.clients import open_cluster, open_cluster_at
from support.faulty_broker import fail_metadata, faulty_broker
from support.read_back import read_back
from support.topics import create_topic, delete_topic

from spark_groupsource.client.cluster import error_rules
from spark_groupsource.client.cluster.error_rules import UNKNOWN_TOPIC_TIMEOUT_MS
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.options.sink_options import SinkOptions, parse_sink_options
from spark_groupsource.source.process.driver_process import heap_of_command
from spark_groupsource.source.sink import output_commit, output_task
from spark_groupsource.source.sink.output_commit import commit_outputs
from spark_groupsource.source.sink.output_task import write_records


@pytest.fixture(autouse=True)
def own_producers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    producers: dict[Any, BatchProducer] = {}
    monkeypatch.setattr(output_task, "_producers", producers)
    # what is exempt in the process of the tests remains so
    monkeypatch.setattr(output_task, "exempt_from_collection", lambda: None)
    yield
    for each in producers.values():
        each.cluster.close()


def options(address: object, topic: str, **kafka: str) -> SinkOptions:
    settings = {f"kafka.{name.replace('_', '.')}": text for name, text in kafka.items()}
    return parse_sink_options({"kafka.bootstrap.servers": str(address), "topic": topic, **settings}, "stream")


def values(*texts: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": list(texts)})


def test_tasks_of_a_worker_share_a_producer_and_its_connection(embedded: Any, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy:
        for _ in range(3):
            # as unpickled by each task
            output = write_records(options(proxy.address, topic), values("a", "b"))
            assert (output.batches, output.record_count, output.query_id) == ((), 2, None)
        names = [name for name, _, _ in proxy.requests]
        assert names.count("Produce") == 3
        # one connection each for metadata and the producer id, and for the leader
        assert names.count("InitProducerId") == 1 and names.count("ApiVersions") <= 2
    assert len(read_back(embedded.bootstrap_servers, topic, 1)[0]) == 6


def test_a_failed_task_leaves_no_producer(embedded: Any, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    code: ErrorCode | None = ErrorCode.INVALID_RECORD
    with faulty_broker(embedded.bootstrap_servers, lambda: code) as proxy:
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            write_records(options(proxy.address, topic), values("a"))
        code = None
        write_records(options(proxy.address, topic), values("b"))
        assert [name for name, _, _ in proxy.requests].count("InitProducerId") == 2
    assert [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]] == [b"b"]


def test_a_transactional_task_sends_nothing_and_returns_its_batches(embedded: Any, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy:
        output = write_records(options(proxy.address, topic, transactional_id="t"), values("a", "b"))
        assert not {"Produce", "InitProducerId"} & {name for name, _, _ in proxy.requests}
    assert [(each.topic_partition, each.record_count) for each in output.batches] == [(TopicPartition(topic, 0), 2)]
    assert output.record_count == 2
    assert read_back(embedded.bootstrap_servers, topic, 1) == {0: []}


@pytest.mark.parametrize("records", [20, 21, 26])
def test_a_batch_that_the_driver_may_not_hold_is_an_error_or_warned_of(
    embedded: Any, topic: str, caplog: pytest.LogCaptureFixture, records: int
) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    given = options(embedded.bootstrap_servers, topic, transactional_id=f"T-{topic}", batch_size="0")
    given = replace(given, driver_heap_bytes=101_000_000)
    batches = values(*["x" * 1_000_000] * records)
    if records == 26:
        with pytest.raises(ConfigurationError, match="more than 24 MB .* heap of 96 MB. Limit a batch"):
            write_records(given, batches)
    else:
        commit_outputs(given, [write_records(given, batches)], None, 0)
        assert ("has a heap of 96 MB: larger batches may end it. Limit" in caplog.text) == (records > 20)


@pytest.mark.parametrize(
    ("arguments", "heap"),
    [("java -Xmx1g -cp x", 1 << 30), ("java -Xmx1g -Xmx512M", 512 << 20), ("java -Xmx2048", 2048), ("java -Xmx", None)],
)
def test_heap_of_a_driver(arguments: str, heap: int | None) -> None:
    assert heap_of_command(arguments.split()) == heap


def test_a_version_is_written_once_to_each_topic(embedded: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # as in the example of Delta Lake, which writes one batch to two tables with one txnAppId and txnVersion
    clusters: dict[Any, Any] = {}
    monkeypatch.setattr(output_commit, "_clusters", clusters)
    names = [topic, f"{topic}-b"]
    for name in names:
        create_topic(embedded.bootstrap_servers, name, 1)
    for version in ("0", "0", "1"):
        for chosen in ({"topic": names[0]}, {"topic": names[1]}, {}):
            given = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "kafka.transactional.id": f"T-{topic}"}
            parsed = parse_sink_options({**given, "txnAppId": "app", "txnVersion": version, **chosen}, "batch")
            batch = pa.RecordBatch.from_pydict({"value": [version], "topic": [names[0]]})
            commit_outputs(parsed, [write_records(parsed, [batch])], None, 0)
    for each in clusters.values():
        each.close()
    found = [[value for _, value, _ in read_back(embedded.bootstrap_servers, name, 1)[0]] for name in names]
    assert found == [[b"0", b"0", b"1", b"1"], [b"0", b"1"]]


def test_a_batch_size_of_zero_makes_a_batch_of_each_record(embedded: Any, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 2)
    output = write_records(
        options(embedded.bootstrap_servers, topic, transactional_id="t", batch_size="0"), values("a", "b", "c")
    )
    assert [each.record_count for each in output.batches] == [1, 1, 1]


def test_a_partition_that_was_added_is_written(embedded: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    given = options(embedded.bootstrap_servers, topic)
    rows = [pa.RecordBatch.from_pydict({"value": ["a"], "partition": pa.array([n], pa.int32())}) for n in (0, 2, 3)]
    # metadata with one partition are cached
    write_records(given, rows[:1])
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    write_records(given, rows[1:2])
    assert {number: len(found) for number, found in read_back(embedded.bootstrap_servers, topic, 3).items()} == {
        0: 1, 1: 0, 2: 1
    }  # fmt: skip
    monkeypatch.setattr(error_rules, "UNKNOWN_TOPIC_TIMEOUT_MS", 50)
    with pytest.raises(ConfigurationError, match="Column partition is 3 in a row of topic .* which has 3 partitions"):
        write_records(given, rows[2:])
    # max.block.ms ends before the time that a partition may be unknown
    monkeypatch.setattr(error_rules, "UNKNOWN_TOPIC_TIMEOUT_MS", 600_000)
    given = options(embedded.bootstrap_servers, topic, max_block_ms="500")
    with pytest.raises(BrokerError, match=f"Describing partition {topic}-3 failed: UNKNOWN_TOPIC_OR_PARTITION"):
        write_records(given, rows[2:])


def test_a_transactional_task_knows_a_topic_that_was_recreated_with_fewer_partitions(embedded: Any, topic: str) -> None:
    given = options(embedded.bootstrap_servers, topic, transactional_id="t")
    rows = pa.RecordBatch.from_pydict({"key": [str(number) for number in range(20)], "value": ["a"] * 20})
    partitions = []
    for count in (3, 1):
        create_topic(embedded.bootstrap_servers, topic, count)
        partitions.append({batch.topic_partition.partition for batch in write_records(given, [rows]).batches})
        delete_topic(embedded.bootstrap_servers, topic)
    assert partitions == [{0, 1, 2}, {0}]


@pytest.mark.parametrize(
    ("given", "message"),
    [("option", "Create it, or correct option topic."), ("column", "Create it, or correct column topic.")],
)
def test_a_missing_topic_is_an_error_after_three_seconds(
    embedded: Any, topic: str, given: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_rules, "UNKNOWN_TOPIC_TIMEOUT_MS", 50)
    chosen = {"topic": topic} if given == "option" else {}
    parsed = parse_sink_options({"kafka.bootstrap.servers": embedded.bootstrap_servers, **chosen}, "batch")
    batch = pa.RecordBatch.from_pydict({"value": ["a"], "topic": [topic]})
    with pytest.raises(ConfigurationError, match=f"Topic {topic} does not exist. {message}"):
        write_records(parsed, [batch])


def test_a_topic_that_is_unknown_after_an_outage_is_looked_up_again(embedded: Any, topic: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 2)
    clock = ManualClock(1)
    with (
        faulty_broker(embedded.bootstrap_servers, lambda: None) as proxy,
        open_cluster_at(clock, str(proxy.address)) as client,
    ):
        fail_metadata(proxy, [*[ErrorCode.LEADER_NOT_AVAILABLE] * 10, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
        found = output_task.topic_partitions(client, topic, options(proxy.address, topic), 1)
    assert found.total == 2 and clock.now_ms() > UNKNOWN_TOPIC_TIMEOUT_MS


@pytest.mark.parametrize("topics", [["\xff"], ["\xff", "\xfe"]])
def test_a_topic_that_is_no_text_is_an_invalid_name(embedded: Any, topics: list[str]) -> None:
    # a binary column that was cast to a string
    column = pa.array([name.encode("latin-1") for name in topics], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(["a"] * len(topics)), column], ["value", "topic"])
    parsed = parse_sink_options({"kafka.bootstrap.servers": embedded.bootstrap_servers}, "batch")
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION.* A topic name has 1 to 249 letters"):
        write_records(parsed, [batch])


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_is_killed_and_restarted_has_each_record_once(topic: str) -> None:
    with RealKafka() as kafka, open_cluster(kafka.bootstrap_servers) as client:
        create_topic(kafka.bootstrap_servers, topic, 3)

        def numbered() -> Iterator[EncodedBatch]:
            for number in range(300):
                if number == 150:
                    # requests are in flight
                    kafka.kill()
                    kafka.restart()
                # a broker forgets producers with old timestamps at its start
                records = [Record(None, b"%d" % number, client.clock.timestamp_ms())]
                yield EncodedBatch(TopicPartition(topic, number % 3), encode_batch(records), 1)

        BatchProducer(client).send(numbered())
        found = read_back(kafka.bootstrap_servers, topic, 3)
    for partition, records in found.items():
        assert [int(value or b"") for _, value, _ in records] == list(range(partition, 300, 3))
