"""Read tasks with a scripted fetcher: completeness, data loss, heartbeats."""

import os
import pickle
from contextlib import nullcontext

import pytest
from support.clients import open_cluster
from support.task_connections import close_connections
from support.topics import create_topic, delete_topic, produce

from spark_groupsource.client.records.fetcher import FetchedBlock
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address
from spark_groupsource.errors import DataLossError, ErrorCode, GenerationMismatchError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.spark.batch_reader import GroupBatchReader
from spark_groupsource.source.tasks import garbage_collection, task_reader
from spark_groupsource.source.tasks.task_partition import GroupInputPartition, TaskMembership
from spark_groupsource.source.tasks.task_reader import read_task

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = ClientSettings((Address("h", 1),))


def block(p, first, count, next_offset=None):
    records = [Record(None, b"%d" % (first + n), 0) for n in range(count)]
    data = memoryview(encode_batch(records, base_offset=first))
    return FetchedBlock(p, data, first + count if next_offset is None else next_offset)


class Fetcher:
    """Yields one list of blocks per round of fetches; `rounds` records the requested ranges."""

    script: list = []
    rounds: list = []

    def __init__(self, cluster, settings, *, topic_ids, leader_epochs, outage, check):
        pass

    def fetch_blocks(self, ranges):
        self.rounds.append(sorted(ranges))
        yield from self.script.pop(0)


@pytest.fixture
def fetch(monkeypatch):
    def script(*rounds):
        Fetcher.script, Fetcher.rounds = list(rounds), []

    monkeypatch.setattr(task_reader, "PartitionFetcher", Fetcher)
    monkeypatch.setattr(task_reader, "exempt_from_collection", lambda: None)
    return script


def read(*ranges, fail=True, columns=SelectedColumns(("offset", "value")), membership=None):
    partition = GroupInputPartition(ranges=ranges, settings=SETTINGS, fail_on_data_loss=fail, membership=membership)
    partition = pickle.loads(pickle.dumps(partition))  # as Spark does
    return [(row["offset"], row["value"]) for batch in read_task(partition, columns) for row in batch.to_pylist()]


def test_blocks_are_cut_to_the_ranges(fetch):
    fetch([block(P0, 0, 5), block(P1, 8, 4), block(P0, 5, 5)])
    assert read(OffsetRange(P0, 2, 7), OffsetRange(P1, 9, 10), OffsetRange(P0._replace(partition=5), 3, 3)) == [
        *((n, b"%d" % n) for n in (2, 3, 4)),
        (9, b"9"),
        *((n, b"%d" % n) for n in (5, 6)),
    ]
    assert Fetcher.rounds == [[OffsetRange(P0, 2, 7), OffsetRange(P1, 9, 10)]]


def test_not_null_columns_are_declared(fetch):
    fetch([block(P0, 0, 1)])
    partition = GroupInputPartition(ranges=[OffsetRange(P0, 0, 1)], settings=SETTINGS, fail_on_data_loss=True)
    (batch,) = read_task(partition, SelectedColumns(("offset", "value"), frozenset({"offset"})))
    assert [field.nullable for field in batch.schema] == [False, True]


def test_short_read_fails(fetch):
    fetch([block(P0, 0, 3)], [])
    with pytest.raises(DataLossError, match=r"No record of t-0 was returned for offsets \[3, 9\)"):
        read(OffsetRange(P0, 0, 9))


def fetch_error(code, **known):
    return FetchedBlock(P0, memoryview(b""), 0, error=int(code), **known)


def out_of_range(log_start, end):
    return fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log_start, high_watermark=end)


@pytest.mark.parametrize(
    "response, error_class, rest",
    [
        (out_of_range(4, 20), "START_OFFSET_RESET", [(4, 9)]),
        (out_of_range(12, 20), "START_OFFSET_RESET", []),
        (out_of_range(0, 1), "COULD_NOT_READ_OFFSET_RANGE", []),
        (fetch_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "PARTITIONS_DELETED", []),
        (fetch_error(ErrorCode.UNKNOWN_TOPIC_ID), "PARTITIONS_DELETED", []),
    ],
)
@pytest.mark.conformance("FT-043")
def test_data_loss_fails_or_skips_the_missing_records(fetch, response, error_class, rest):
    fetch([response])
    with pytest.raises(DataLossError, match=f"KAFKA_DATA_LOSS.{error_class}.*t-0"):
        read(OffsetRange(P0, 2, 9))
    fetch([response], *[[block(P0, start, end - start)] for start, end in rest])
    expected = [(n, b"%d" % n) for start, end in rest for n in range(start, end)]
    assert read(OffsetRange(P0, 2, 9), fail=False) == expected


class FakeHeartbeat:
    def __init__(self, fail_at):
        self.fail_at, self.calls = fail_at, []

    def check(self):
        self._record("check")

    def check_now(self):
        self._record("check_now")

    def _record(self, name):
        self.calls.append(name)
        if name == self.fail_at:
            raise GenerationMismatchError(
                group_id="g", member_id="m", generation_id=4, current_generation=5, cause="removed"
            )


MEMBERSHIP = TaskMembership("g", "m", 4, None, 3000)


def test_heartbeat_is_checked_between_blocks_and_after_the_last_record(fetch, monkeypatch):
    heartbeat = FakeHeartbeat(None)
    monkeypatch.setattr(task_reader, "open_heartbeat", lambda *_: nullcontext(heartbeat))
    fetch([block(P0, 0, 5), block(P0, 5, 5)])
    assert len(read(OffsetRange(P0, 0, 10), membership=MEMBERSHIP)) == 10
    assert heartbeat.calls == ["check", "check", "check_now"]


@pytest.mark.parametrize("when", ["check", "check_now"])
def test_fenced_task_fails_naming_both_generations(fetch, monkeypatch, when):
    monkeypatch.setattr(task_reader, "open_heartbeat", lambda *_: nullcontext(FakeHeartbeat(when)))
    fetch([block(P0, 0, 5)])
    with pytest.raises(GenerationMismatchError, match="of generation 4 .the group's generation is now 5.: removed"):
        read(OffsetRange(P0, 0, 5), membership=MEMBERSHIP)
    # private: the cache of connections has no other reader; the next attempt must open new ones
    assert SETTINGS not in task_reader._clusters


def test_connections_of_a_worker_use_the_brokers_of_the_reader_process(fetch):
    fetch([block(P0, 0, 1)])
    known, added = Address("127.0.0.1", 5), []
    partition = GroupInputPartition(
        ranges=[OffsetRange(P0, 0, 1)], settings=SETTINGS, fail_on_data_loss=True, known_brokers=[known]
    )
    cluster = task_reader._cluster(partition)  # private: the cached connections
    cluster.add_known_brokers = added.append
    try:
        list(read_task(pickle.loads(pickle.dumps(partition)), SelectedColumns(("offset",))))
        assert added == [(known,)]
    finally:
        close_connections()


@pytest.mark.usefixtures("short_retries")
def test_task_of_a_batch_read_carries_what_the_planner_knows(monkeypatch, embedded, topic):
    servers = embedded.bootstrap_servers
    create_topic(servers, topic)
    produce(servers, topic, [(0, None, b"old")])
    options = parse_options({"kafka.bootstrap.servers": servers, "subscribe": topic}, "batch")
    reader = GroupBatchReader(options, SelectedColumns(("value",)), os.getpid())
    (task,) = reader.partitions()
    with open_cluster(servers) as cluster:
        p = TopicPartition(topic, 0)
        assert task.topic_ids == {topic: str(cluster.metadata([topic]).topics[topic].topic_id)}
        assert task.leader_epochs == cluster.cached_leader_epochs([p])
        assert task.known_brokers == cluster.task_brokers([p]) != ()
    delete_topic(servers, topic)
    create_topic(servers, topic)
    produce(servers, topic, [(0, None, b"new")])
    monkeypatch.setattr(task_reader, "exempt_from_collection", lambda: None)
    try:
        with pytest.raises(DataLossError, match=f"PARTITIONS_DELETED.*{topic}-0 was deleted and recreated"):
            list(reader.read(pickle.loads(pickle.dumps(task))))
    finally:
        close_connections()


def test_tasks_exempt_what_is_alive_from_collection_ever_less_often(monkeypatch):
    monkeypatch.setattr(garbage_collection, "_task_count", 0)
    frozen, collected, tasks = [], [], range(1, 20)
    monkeypatch.setattr(garbage_collection.gc, "freeze", lambda: frozen.append(number))
    monkeypatch.setattr(garbage_collection.gc, "collect", lambda: collected.append(number))
    for number in tasks:
        garbage_collection.exempt_from_collection()
    # Spark's daemon has collected garbage before the later ones
    assert frozen == [1, 2, 4, 8, 16] and collected == [1]
