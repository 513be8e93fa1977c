"""The same job through Spark's own Kafka source and through ours, on one Spark session and one Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from chispa import assert_df_equality
from kafka_jars import spark_connector_jars

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

THEIRS, OURS = "kafka", "groupsource"


def add_connector(spark: SparkSession) -> None:
    """Makes ``format("kafka")`` known to a session that runs already; a second time it changes nothing."""
    for jar in spark_connector_jars():
        spark.sql(f"ADD JAR '{jar}'").collect()


class Run(NamedTuple):
    """What a stream wrote, and how Spark reported it."""

    frame: DataFrame
    query: StreamingQuery

    @property
    def batches(self) -> list[dict[str, object]]:
        """The source's part of each progress that read something."""
        reports = [json.loads(p["sources"][0].json) for p in self.query.recentProgress]
        return [report for report in reports if report["numInputRows"]]


class Rivals:
    """Runs jobs through one source or through both; options are the same, but for the group ours must name."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, directory: Path) -> None:
        self.spark, self.bootstrap_servers, self.directory = spark, bootstrap_servers, directory

    def read(self, source: str, options: Mapping[str, str]) -> DataFrame:
        return self.spark.read.format(source).options(**self._common(), **options).load()

    def _common(self) -> dict[str, str]:
        # with the default, 500 ms, every task of Spark's source takes about that much longer
        return {"kafka.bootstrap.servers": self.bootstrap_servers, "kafka.fetch.max.wait.ms": "5"}

    def stream(
        self,
        source: str,
        options: Mapping[str, str],
        *,
        checkpoint: Path | None = None,
        trigger: Mapping[str, object] | None = None,
    ) -> Run:
        """Runs a stream to its end; what it wrote is the frame.

        `checkpoint` is the directory of the whole query, so one source may go on where the other stopped.
        """
        home = checkpoint or self.directory / uuid4().hex
        reader = self.spark.readStream.format(source).options(**self._common())
        if source == OURS and "assign" not in options:
            reader = reader.option("kafka.group.id", f"g-{uuid4().hex}")
        frame = reader.options(**options).load()
        # few files, also for a topic of many partitions
        writer = frame.coalesce(2).writeStream.format("parquet").option("path", str(home / "rows"))
        writer = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(
            **(trigger or {"availableNow": True})
        )
        query = writer.start()
        try:
            assert query.awaitTermination(120), query.status
        finally:
            query.stop()
        return Run(self.spark.read.schema(frame.schema).parquet(str(home / "rows")), query)

    def check_batch(self, **options: str) -> DataFrame:
        """Asserts that both sources give the same rows under the same schema; returns ours."""
        theirs, ours = self.read(THEIRS, options), self.read(OURS, options)
        check_equal(theirs, ours)
        return ours

    def check_stream(self, **options: str) -> tuple[Run, Run]:
        """The same for a stream that reads what is there; returns theirs and ours."""
        theirs, ours = self.stream(THEIRS, options), self.stream(OURS, options)
        check_equal(theirs.frame, ours.frame)
        return theirs, ours


def check_equal(theirs: DataFrame, ours: DataFrame) -> None:
    """Rows in the order of their positions, names, types and nullability are equal."""
    assert_df_equality(theirs, ours, transforms=[_in_order])


def _in_order(frame: DataFrame) -> DataFrame:
    # one task, because sorting over several would read the topic twice: once for a sample
    return frame.coalesce(1).sortWithinPartitions("topic", "partition", "offset")


def positions_only(offset: Mapping[str, object]) -> dict[str, object]:
    """An offset of ours as Spark's own source would write it."""
    return {topic: partitions for topic, partitions in offset.items() if topic != "@group"}
