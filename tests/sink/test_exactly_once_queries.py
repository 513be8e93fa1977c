"""Queries that write exactly once: triggers, sources, replays, SQL, errors."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from support.clients import open_cluster
from support.clusters import Cluster
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import LATEST
from spark_groupsource.model import TopicPartition

pytestmark = [pytest.mark.slow, pytest.mark.spark]

Run = Callable[..., Any]


def log_end(bootstrap_servers: str, topic: str) -> int:
    """Returns the end offset of a topic of one partition, which has no open transaction."""
    with open_cluster(bootstrap_servers) as client:
        tp = TopicPartition(topic, 0)

        def ends() -> list[int]:
            return [client.list_offsets({tp: LATEST}, read_committed=each)[tp].offset for each in (False, True)]

        # without an open transaction, the last stable offset is the end of the log; Kafka writes markers after EndTxn
        wait_until(lambda: len(set(ends())) == 1, "the last transaction has its marker")
        return ends()[0]


def committed_values(bootstrap_servers: str, topic: str) -> list[str]:
    """Returns what a read_committed consumer sees of a topic of one partition, sorted."""
    log_end(bootstrap_servers, topic)
    settings = {"group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **settings, "enable.partition.eof": True})
    consumer.assign([Assigned(topic, 0, 0)])
    found: list[str] = []
    while True:
        message: Any = consumer.poll(30)
        assert message is not None, "neither a record nor the end of the partition within 30 s"
        if message.error():
            break
        found.append(message.value().decode())
    consumer.close()
    return sorted(found, key=lambda text: (len(text), text))


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


class Copy:
    """A query that copies topics to `output` with ``availableNow``, each record once."""

    def __init__(self, spark: Any, servers: str, topic: str, directory: Path) -> None:
        self.spark, self.servers, self.output, self.directory = spark, servers, f"{topic}-out", directory
        self.transactional_id = f"T-{topic}"
        self.options = {
            "kafka.bootstrap.servers": servers,
            "kafka.transactional.id": self.transactional_id,
        }
        create_topic(servers, self.output, 1)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def stream(self, topic: str, group: str, **options: str) -> Any:
        given = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest", "members": "1", **options}
        rows = self.spark.readStream.format("groupsource").options(**self.options, **given).load()
        return rows.selectExpr("cast(value as string) as value")

    def start(self, frame: Any) -> Any:
        writer = frame.writeStream.format("groupsource").options(**self.options, topic=self.output)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self, frame: Any) -> Any:
        query = self.start(frame)
        assert query.awaitTermination(300)
        return query

    def values(self) -> list[str]:
        return committed_values(self.servers, self.output)


@pytest.fixture
def copy(spark: Any, servers: str, topic: str, tmp_path: Path) -> Copy:
    return Copy(spark, servers, topic, tmp_path)


def fill(servers: str, topic: str, first: int, end: int, partitions: int = 2) -> None:
    if first == 0:
        create_topic(servers, topic, partitions)
    produce(servers, topic, [(number % partitions, None, b"%d" % number) for number in range(first, end)])


def numbers(end: int) -> list[str]:
    return [str(number) for number in range(end)]


def committed_offsets(servers: str, group: str) -> int:
    with open_cluster(servers) as client:
        return sum(commit.offset for commit in client.fetch_committed(group).values() if commit is not None)


def test_what_is_available_is_written_once_in_each_run(copy: Copy, servers: str, topic: str, group: str) -> None:
    for first, end in ((0, 30), (30, 31), (31, 31)):
        if end > first:
            fill(servers, topic, first, end)
        copy.run(copy.stream(topic, group, maxOffsetsPerTrigger="10"))
        assert copy.values() == numbers(end)
        assert committed_offsets(servers, group) == end


# without the fixture `cluster`, which has one cluster in a plain run: no other test has this row of the failure table
@pytest.mark.parametrize(
    ("broker", "killed"),
    [("embedded", "worker"), ("embedded", "task"), pytest.param("kafka", "task", marks=pytest.mark.kafka)],
)
def test_a_task_that_is_killed_leaves_nothing_of_its_attempt(
    spark: Any, request: pytest.FixtureRequest, broker: str, killed: str, topic: str, group: str, tmp_path: Path
) -> None:
    servers = request.getfixturevalue(broker).bootstrap_servers
    copy = Copy(spark, servers, topic, tmp_path)
    fill(servers, topic, 0, 10)
    reached = tmp_path / "reached"

    def stop_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if not reached.exists():
                # the writer of this attempt has a record
                (tmp_path / "attempt").write_text(str(TaskContext.get().taskAttemptId()))  # type: ignore[union-attr]
                (tmp_path / "attempt").rename(reached)
                if killed == "worker":
                    os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

    # each record is a batch of its own, between the tasks' workers, too
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        rows = copy.stream(topic, group).mapInArrow(stop_once, "value string")
        query = copy.start(rows)
        wait_until(reached.exists, "a task has written a record", 60, 0.05)
        if killed == "task":
            assert log_end(servers, copy.output) == 0
            # private: PySpark has no method for it; Spark runs the task again, as after the loss of an executor
            spark.sparkContext._jsc.sc().killTaskAttempt(int(reached.read_text()), True, "test")
            assert query.awaitTermination(300)
        else:
            with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
                query.awaitTermination(300)
            assert log_end(servers, copy.output) == 0
            copy.run(rows)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert copy.values() == numbers(10)
    assert committed_offsets(servers, group) == 10
    # with the marker of one transaction
    assert log_end(servers, copy.output) == 11


def test_a_query_with_two_groups_commits_both_with_its_output(
    copy: Copy, servers: str, topic: str, group: str
) -> None:
    fill(servers, topic, 0, 10)
    fill(servers, f"{topic}-b", 0, 5)
    produce(servers, f"{topic}-b", [(0, None, b"%d" % number) for number in range(10, 15)])
    sources = [copy.stream(topic, group), copy.stream(f"{topic}-b", f"{group}-b").where("int(value) >= 10")]
    copy.run(sources[0].union(sources[1]))
    assert copy.values() == numbers(15)
    assert (committed_offsets(servers, group), committed_offsets(servers, f"{group}-b")) == (10, 10)
    # the second batch has records of one source only; at the replay of a published batch neither is written again
    fill(servers, topic, 15, 20)
    copy.run(sources[0].union(sources[1]))
    (copy.checkpoint / "commits" / "1").unlink()
    (copy.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    copy.run(sources[0].union(sources[1]))
    assert copy.values() == numbers(20)
    assert (committed_offsets(servers, group), committed_offsets(servers, f"{group}-b")) == (15, 10)


def test_a_query_with_another_source_writes_its_records_once_too(
    copy: Copy, spark: Any, servers: str, topic: str, group: str, tmp_path: Path
) -> None:
    fill(servers, topic, 0, 10)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_text("10\n11\n")

    def run() -> None:
        copy.run(copy.stream(topic, group).union(spark.readStream.format("text").load(str(tmp_path / "files"))))

    run()
    (tmp_path / "files" / "b").write_text("12\n")
    run()
    # killed after the publication of the batch of the file alone, and before Spark's commit log
    last = max(int(path.name) for path in (copy.checkpoint / "commits").glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (copy.checkpoint / "commits" / name).unlink(missing_ok=True)
    run()
    assert copy.values() == numbers(13)
    assert committed_offsets(servers, group) == 10


def test_a_record_above_the_limit_of_the_topic_ends_the_query_and_shows_nothing(
    copy: Copy, servers: str, topic: str, group: str
) -> None:
    narrow = f"{topic}-narrow"
    create_topic(servers, narrow, 1, {"max.message.bytes": "2000"})
    fill(servers, topic, 0, 10)
    rows = copy.stream(topic, group).selectExpr("if(value = '7', repeat('x', 3000), value) as value")
    copy.output = narrow
    with pytest.raises(PySparkException) as raised:
        copy.run(rows)
    assert "MESSAGE_TOO_LARGE" in str(raised.value)
    assert "A record of 30" in str(raised.value)
    assert f"is larger than max.message.bytes=2000 of topic {narrow}. Increase" in str(raised.value)
    assert (committed_values(servers, narrow), committed_offsets(servers, group)) == ([], 0)
    # corrected: the logged batch is finished without records, and the next one has them
    for _ in range(2):
        copy.run(copy.stream(topic, group))
        assert (committed_values(servers, narrow), committed_offsets(servers, group)) == (numbers(10), 10)
        finished = sorted(path for path in (copy.checkpoint / "commits").iterdir() if path.name.isdigit())
        assert [path.name for path in finished] == ["0", "1"]
        # killed before its entry in the commit log: the batch is read again, and not written again
        finished[1].unlink()
        (finished[1].parent / f".{finished[1].name}.crc").unlink(missing_ok=True)


def test_a_write_in_foreach_batch_is_skipped_when_its_version_is_published(
    copy: Copy, servers: str, topic: str, group: str
) -> None:
    def publish(batch: Any, batch_id: int) -> None:
        writer = batch.write.format("groupsource").mode("append").options(**copy.options, topic=copy.output)
        writer.option("txnAppId", "copies").option("txnVersion", batch_id).save()

    def run() -> None:
        options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.group.id": group}
        rows = copy.spark.readStream.format("groupsource").options(**options, startingOffsets="earliest").load()
        writer = rows.selectExpr("string(value) as value").writeStream.foreachBatch(publish)
        writer = writer.option("checkpointLocation", str(copy.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    fill(servers, topic, 0, 10)
    run()
    # as a process leaves it that is killed after the publication
    for name in ("0", ".0.crc"):
        (copy.checkpoint / "commits" / name).unlink(missing_ok=True)
    fill(servers, topic, 10, 12)
    run()
    assert copy.values() == numbers(12)


def test_writes_in_foreach_batch_with_the_transactional_id_of_the_source(
    copy: Copy, servers: str, topic: str, group: str
) -> None:
    outputs = [copy.output, f"{copy.output}-2"]
    create_topic(servers, outputs[1], 1)

    def publish(batch: Any, batch_id: int) -> None:
        for name in outputs:
            writer = batch.write.format("groupsource").mode("append").options(**copy.options, topic=name)
            writer.option("txnAppId", "copies").option("txnVersion", batch_id).save()

    for first, end in ((0, 10), (10, 12)):
        fill(servers, topic, first, end)
        writer = copy.stream(topic, group, maxOffsetsPerTrigger="4").writeStream.foreachBatch(publish)
        writer = writer.option("checkpointLocation", str(copy.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)
        assert committed_offsets(servers, group) == end
    assert [committed_values(servers, name) for name in outputs] == [numbers(12)] * 2


def test_sql_inserts_into_a_typed_view_and_into_a_table_in_a_transaction(spark: Any, servers: str, topic: str) -> None:
    create_topic(servers, topic, 1)
    name = topic.replace("-", "_")
    options = f"`kafka.bootstrap.servers` '{servers}', topic '{topic}', `kafka.transactional.id` 'T-{topic}'"
    columns = "key STRING, value STRUCT<id: BIGINT, name: STRING>"
    spark.sql(
        f"CREATE TEMPORARY VIEW view_{name} ({columns}) USING groupsource OPTIONS ({options}, `value.format` 'json')"
    )
    spark.sql(f"CREATE TABLE table_{name} USING groupsource OPTIONS ({options}, `value.format` 'json')")
    try:
        spark.sql(f"INSERT INTO view_{name} VALUES ('k', named_struct('id', 1L, 'name', 'a'))")
        # a table has the columns of Spark's sink: its values are bytes
        with pytest.raises(PySparkException, match="CANNOT_SAFELY_CAST"):
            spark.sql(f"INSERT INTO table_{name} (value) VALUES (named_struct('id', 2L, 'name', 'b'))")
    finally:
        spark.sql(f"DROP TABLE table_{name}")
        spark.sql(f"DROP VIEW view_{name}")
    spark.sql(f"CREATE TABLE table_{name} USING groupsource OPTIONS ({options})")
    try:
        text = "to_json(named_struct('id', 2L, 'name', 'b'))"
        spark.sql(f"INSERT INTO table_{name} (value) VALUES (cast({text} AS BINARY))")
    finally:
        spark.sql(f"DROP TABLE table_{name}")
    assert [json.loads(text) for text in committed_values(servers, topic)] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
    ]
