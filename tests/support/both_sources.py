"""Runs a query through Spark's Kafka source and through groupsource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from chispa.rows_comparer import assert_basic_rows_equality
from chispa.schema_comparer import assert_schema_equality
from kafka_jars import spark_connector_jars
from pyspark.sql.functions import lit

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
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

    def read_all(self, source: str, *cases: Mapping[str, str]) -> DataFrame:
        """Returns the rows of several reads; each case is the options of one, numbered in the column ``case``."""
        return _union([self.read(source, options) for options in cases])

    def _common(self) -> dict[str, str]:
        # with the default of 500 ms every task of Spark's source takes about 500 ms longer
        return {"kafka.bootstrap.servers": self.bootstrap_servers, "kafka.fetch.max.wait.ms": "5"}

    def stream(
        self,
        source: str,
        *cases: Mapping[str, str],
        checkpoint: Path | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> Run:
        """Runs one query to its end; each case is the options of one of its streams, numbered in the column ``case``.

        `checkpoint` is the directory of rows and checkpoint, so that one source can continue the query of the other.
        """
        directory = checkpoint or self.directory / uuid4().hex
        # few files, even for a topic with many partitions
        frame = _union([self._open(source, options) for options in cases]).coalesce(2)
        writer = frame.writeStream.format("parquet").option("path", str(directory / "rows"))
        writer = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(
            **(trigger or {"availableNow": True})
        )
        query = writer.start()
        try:
            assert query.awaitTermination(120), query.status
        finally:
            query.stop()
        return Run(self.spark.read.schema(frame.schema).parquet(str(directory / "rows")), query)

    def _open(self, source: str, options: Mapping[str, str]) -> DataFrame:
        reader = self.spark.readStream.format(source).options(**self._common())
        if source == GROUP_SOURCE and "assign" not in options:
            reader = reader.option("kafka.group.id", f"g-{uuid4().hex}")
        return reader.options(**options).load()

    def check_batch(self, *cases: Mapping[str, str]) -> list[list[Row]]:
        """Asserts that both sources return the same rows with the same schema in `read_all`, which is one Spark job.

        Returns groupsource's rows of each case.
        """
        rows = check_equal(*(self.read_all(source, *cases) for source in (SPARK_SOURCE, GROUP_SOURCE)))
        return [[row for row in rows if row["case"] == number] for number in range(len(cases))]

    def check_stream(self, *cases: Mapping[str, str], checkpoint: Path | None = None) -> tuple[Run, Run]:
        """Asserts the same for a query with availableNow; returns the runs of Spark's source and groupsource.

        `checkpoint` is the parent of one directory for each source.
        """
        expected, actual = (
            self.stream(source, *cases, checkpoint=checkpoint / source if checkpoint else None)
            for source in (SPARK_SOURCE, GROUP_SOURCE)
        )
        check_equal(expected.frame, actual.frame)
        return expected, actual


def _union(frames: list[DataFrame]) -> DataFrame:
    numbered = [frame.withColumn("case", lit(number)) for number, frame in enumerate(frames)]
    return reduce(lambda all_, frame: all_.unionByName(frame), numbered)


def check_equal(expected: DataFrame, actual: DataFrame) -> list[Row]:
    """Asserts that names, types, nullability, and rows in the order of their positions are equal; returns the rows."""
    assert_schema_equality(expected.schema, actual.schema)
    expected_rows, actual_rows = _in_order(expected), _in_order(actual)
    assert_basic_rows_equality(expected_rows, actual_rows)
    return actual_rows


def _in_order(frame: DataFrame) -> list[Row]:
    position = [name for name in ("case", "topic", "partition", "offset") if name in frame.columns]
    # few tasks, even for a topic with many partitions
    return sorted(frame.coalesce(2).collect(), key=lambda row: [row[name] for name in position])


def positions_only(offset: Mapping[str, object]) -> dict[str, object]:
    """Returns an offset of groupsource in the form of Spark's Kafka source."""
    return {topic: partitions for topic, partitions in offset.items() if topic != "@group"}
