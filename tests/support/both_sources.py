"""Runs a query through Spark's Kafka source and through groupsource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from chispa import assert_df_equality
from kafka_jars import spark_connector_jars

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPARK_SOURCE, GROUP_SOURCE = "kafka", "groupsource"


def add_connector(spark: SparkSession) -> None:
    """Adds ``format("kafka")`` to a running session; idempotent."""
    for jar in spark_connector_jars():
        spark.sql(f"ADD JAR '{jar}'").collect()


class Run(NamedTuple):
    """Rows that a stream has written, and its query."""

    frame: DataFrame
    query: StreamingQuery

    @property
    def batches(self) -> list[dict[str, object]]:
        """The source's part of each progress with rows."""
        reports = [json.loads(p["sources"][0].json) for p in self.query.recentProgress]
        return [report for report in reports if report["numInputRows"]]


class BothSources:
    """Runs queries through one source or both, with the same options; groupsource also gets a group."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, directory: Path) -> None:
        self.spark, self.bootstrap_servers, self.directory = spark, bootstrap_servers, directory

    def read(self, source: str, options: Mapping[str, str]) -> DataFrame:
        return self.spark.read.format(source).options(**self._common(), **options).load()

    def _common(self) -> dict[str, str]:
        # with the default of 500 ms every task of Spark's source takes about 500 ms longer
        return {"kafka.bootstrap.servers": self.bootstrap_servers, "kafka.fetch.max.wait.ms": "5"}

    def stream(
        self,
        source: str,
        options: Mapping[str, str],
        *,
        checkpoint: Path | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> Run:
        """Runs a stream to its end.

        `checkpoint` is the directory of rows and checkpoint, so that one source can continue the query of the other.
        """
        directory = checkpoint or self.directory / uuid4().hex
        reader = self.spark.readStream.format(source).options(**self._common())
        if source == GROUP_SOURCE and "assign" not in options:
            reader = reader.option("kafka.group.id", f"g-{uuid4().hex}")
        frame = reader.options(**options).load()
        # few files, even for a topic with many partitions
        writer = frame.coalesce(2).writeStream.format("parquet").option("path", str(directory / "rows"))
        writer = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(
            **(trigger or {"availableNow": True})
        )
        query = writer.start()
        try:
            assert query.awaitTermination(120), query.status
        finally:
            query.stop()
        return Run(self.spark.read.schema(frame.schema).parquet(str(directory / "rows")), query)

    def check_batch(self, **options: str) -> DataFrame:
        """Asserts that both sources return the same rows with the same schema; returns those of groupsource."""
        expected, actual = self.read(SPARK_SOURCE, options), self.read(GROUP_SOURCE, options)
        check_equal(expected, actual)
        return actual

    def check_stream(self, **options: str) -> tuple[Run, Run]:
        """Asserts the same for streams with availableNow; returns the runs of Spark's source and groupsource."""
        expected, actual = self.stream(SPARK_SOURCE, options), self.stream(GROUP_SOURCE, options)
        check_equal(expected.frame, actual.frame)
        return expected, actual


def check_equal(expected: DataFrame, actual: DataFrame) -> None:
    """Asserts that names, types, nullability, and rows in the order of their positions are equal."""
    assert_df_equality(expected, actual, transforms=[_in_order])


def _in_order(frame: DataFrame) -> DataFrame:
    # one task: a sort over several tasks would read the topic twice, once for a sample
    return frame.coalesce(1).sortWithinPartitions("topic", "partition", "offset")


def positions_only(offset: Mapping[str, object]) -> dict[str, object]:
    """Returns an offset of groupsource in the form of Spark's Kafka source."""
    return {topic: partitions for topic, partitions in offset.items() if topic != "@group"}
