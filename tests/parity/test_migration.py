"""Jobs that change between Spark's Kafka source and groupsource.

They keep their checkpoint; see docs/migration.md.
"""

import shutil

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import functions as F
from support.both_sources import GROUP_SOURCE, SPARK_SOURCE
from support.topics import create_topic

from spark_groupsource.cli.main import main
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL

WORDS = "the quick brown fox jumps over the lazy dog and the cat".split()


class WordCount:
    """Counts in a state store; each run writes the counts that changed."""

    mode = "update"

    @staticmethod
    def frame(rows):
        return rows.groupBy(F.col("value").cast("string").alias("word")).count()

    @staticmethod
    def write(frame, batch_id, rows):
        rows.update({row.word: row["count"] for row in frame.collect()})

    @staticmethod
    def expected(words):
        return {word: words.count(word) for word in words}


class Windows(WordCount):
    """Counts of windows of ten seconds that a watermark has closed; one record a second."""

    mode = "append"

    @staticmethod
    def frame(rows):
        windows = rows.withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "10 seconds"))
        return windows.count().select(F.col("window.start").cast("long").alias("word"), "count")

    @staticmethod
    def write(frame, batch_id, rows):
        for row in frame.collect():
            assert row.word not in rows
            rows[row.word] = row["count"]

    @staticmethod
    def expected(words):
        return {begin: 10 for begin in range(0, (len(words) - 2) // 10 * 10, 10)}


class Upsert(WordCount):
    """The newest position of each word, written by ``foreachBatch``; a repeated record would count twice."""

    mode = "append"

    @staticmethod
    def frame(rows):
        return rows.select(F.col("value").cast("string").alias("word"))

    @staticmethod
    def write(frame, batch_id, rows):
        for row in frame.collect():
            rows[row.word] = rows.get(row.word, 0) + 1


@pytest.mark.parametrize(
    "job", [Windows, pytest.param(WordCount, marks=pytest.mark.soak), pytest.param(Upsert, marks=pytest.mark.soak)]
)
def test_job_moves_to_the_group_and_back_on_its_checkpoint(sources, topic, group, tmp_path, job):
    create_topic(sources.bootstrap_servers, topic, 2)
    words, rows = [], {}

    def more(count):
        begin = len(words)
        words.extend(WORDS[n % len(WORDS)] for n in range(begin, begin + count))
        producer = Producer({"bootstrap.servers": sources.bootstrap_servers})
        for n in range(begin, len(words)):
            producer.produce(topic, words[n].encode(), partition=n % 2, timestamp=n * 1000 + 1)
        assert not producer.flush(30)

    def run(source, checkpoint):
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        options["kafka.bootstrap.servers"] = sources.bootstrap_servers
        named = {"kafka.group.id": group} if source == GROUP_SOURCE else {}
        frame = job.frame(sources.spark.readStream.format(source).options(**options, **named).load())
        writer = frame.writeStream.outputMode(job.mode).option("checkpointLocation", str(checkpoint))
        writer = writer.foreachBatch(lambda each, number: job.write(each, number, rows))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120), query.status

    moved, back = tmp_path / "moved", tmp_path / "back"
    more(30)
    run(SPARK_SOURCE, moved)
    more(40)
    run(GROUP_SOURCE, moved)
    settings = ClientSettings.parse({"bootstrap.servers": sources.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as cluster:
        # without admission control, the next run commits the batch
        committed = len(words) if HAS_ADMISSION_CONTROL else 30
        assert sum(commit.offset for commit in cluster.fetch_committed(group).values()) == committed
    result = CliRunner().invoke(main, ["checkpoint", "export", str(moved), str(back)])
    assert result.exit_code == 0, result.output
    shutil.rmtree(moved)
    more(50)
    run(SPARK_SOURCE, back)
    assert rows == job.expected(words)
