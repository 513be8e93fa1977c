"""Pushed filters, which Spark keeps for other queries of the frame."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import datasource as spark_api

HAS_PUSHDOWN = hasattr(spark_api.DataSourceReader, "pushFilters")

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not HAS_PUSHDOWN, reason="this Spark pushes no filters down")]


def numbers() -> type[spark_api.DataSource]:
    """Returns a source of the numbers 0 to 9 that reads from a pushed lower bound; pickled by value."""

    class Reader(spark_api.DataSourceReader):
        lowest = 0

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
            for each in filters:
                if type(each).__name__ == "GreaterThanOrEqual":
                    self.lowest = each.value
                else:
                    yield each

        def partitions(self) -> list[spark_api.InputPartition]:
            return [spark_api.InputPartition(self.lowest)]

        def read(self, partition: spark_api.InputPartition) -> Iterator[tuple[int]]:
            yield from ((number,) for number in range(partition.value, 10))

    class Numbers(spark_api.DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushed_numbers"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    return Numbers


def test_spark_applies_a_pushed_filter_to_other_queries_of_the_frame(spark: SparkSession) -> None:
    """If this fails, Spark keeps the partitions of each scan (SPARK-58551): implement `pushFilters`."""
    conf = "spark.sql.python.filterPushdown.enabled"
    spark.dataSource.register(numbers())
    spark.conf.set(conf, "true")
    try:
        frame = spark.read.format("pushed_numbers").load()
        assert frame.where("number >= 7").count() == 3
        assert frame.count() == 3, "all ten rows are right"
    finally:
        spark.conf.unset(conf)


def test_a_reader_with_pushed_filters_fails_without_the_setting(spark: SparkSession) -> None:
    """So it would break every batch read of a session that leaves the setting at its default."""
    spark.dataSource.register(numbers())
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED|filterPushdown"):
        spark.read.format("pushed_numbers").load().count()
