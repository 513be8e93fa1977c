"""Spark data source registered under ``format("groupsource")``.

Spark imports this module whenever any data source is looked up, so everything heavy is imported inside the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from spark_groupsource.source.tracebacks import without_traceback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class GroupDataSource(DataSource):
    """Reads Kafka topics as a Kafka consumer group.

    Name: ``groupsource``. Options: those of Spark's Kafka source, Kafka client settings with the prefix ``kafka.``, and
    the options of consumer groups; the table is `spark_groupsource.source.options.OPTIONS`.

    Schema: that of Spark's Kafka source. A schema given by the user selects columns, and only these are decoded:
    ``.schema("value binary")``.

    Examples:
        >>> stream = (
        ...     spark.readStream.format("groupsource")
        ...     .option("kafka.bootstrap.servers", "localhost:9092")
        ...     .option("subscribe", "orders")
        ...     .option("kafka.group.id", "billing")
        ...     .load()
        ... )
    """

    parallelism: ClassVar[int | None] = None
    """Number of tasks Spark runs at a time; None unless the source was registered with `register`."""

    @without_traceback
    def __init__(self, options: dict[str, str]) -> None:
        from spark_groupsource.source.driver_process import driver_pid
        from spark_groupsource.source.options import parse_options

        super().__init__(options)
        self._options = dict(options)
        # checks what does not depend on the kind of query, so that load() fails and not the start of the query
        self._include_headers = parse_options(self._options).include_headers
        self._driver = driver_pid()

    @classmethod
    def name(cls) -> str:
        return "groupsource"

    def schema(self) -> StructType:
        from spark_groupsource.source.schema import spark_schema

        return spark_schema(self._include_headers)

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_groupsource.source.batch_reader import GroupBatchReader
        from spark_groupsource.source.options import parse_options
        from spark_groupsource.source.schema import select_columns

        options = parse_options(self._options, "batch")
        columns = select_columns(schema, self._include_headers)
        return GroupBatchReader(options, columns, self._driver, self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_groupsource.errors import ConfigurationError
        from spark_groupsource.source.options import parse_options
        from spark_groupsource.source.schema import select_columns
        from spark_groupsource.source.stream_reader import GroupStreamReader, InvalidStreamReader

        try:
            options = parse_options(self._options, "stream")
            columns = select_columns(schema, self._include_headers)
        except ConfigurationError as error:
            # Spark replaces the message of an error raised here, but not that of an error in the first callback
            return InvalidStreamReader(error)
        return GroupStreamReader(options, columns, self._driver, self.parallelism)


def register(spark: SparkSession) -> None:
    """Registers the source with a Spark session, with the session's default parallelism for ``members=auto``.

    ``format("groupsource")`` works without registration; then ``members=auto`` is the driver's number of processors.
    """
    attributes: dict[str, Any] = {
        "parallelism": spark.sparkContext.defaultParallelism,
        "__doc__": GroupDataSource.__doc__,
        # a class in __main__ is pickled with its attributes, an importable class by its name alone
        "__module__": "__main__",
    }
    spark.dataSource.register(type("GroupDataSource", (GroupDataSource,), attributes))
