"""`GroupDataSource`: what Spark finds under ``format("groupsource")``.

Importing this module must stay cheap: Spark imports it at every look-up of a data source. The rest loads when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from spark_groupsource.source.tracebacks import without_traceback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = "headers array<struct<key:string,value:binary>>"


class GroupDataSource(DataSource):
    """Reads Kafka topics as a member of a Kafka consumer group.

    Name: ``groupsource``. Options: those of Spark's own Kafka source, the Kafka client's under ``kafka.``, and
    ``members``, ``onGroupReset``, ``rebalanceLog``; the table is `spark_groupsource.source.options.OPTIONS`.

    Schema: that of Spark's Kafka source. A schema given by the user chooses among its columns, and only those are
    decoded: ``.schema("value binary")``.

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
    """Tasks Spark runs at a time, known where `register` was called."""

    @without_traceback
    def __init__(self, options: dict[str, str]) -> None:
        from spark_groupsource.source.driver_process import driver_pid
        from spark_groupsource.source.options import parse_options

        super().__init__(options)
        self._options = dict(options)
        # refuses what is wrong in any kind of query while load() can still say so plainly
        self._include_headers = bool(parse_options(self._options)["includeHeaders"])
        self._driver = driver_pid()

    @classmethod
    def name(cls) -> str:
        return "groupsource"

    def schema(self) -> str:
        return f"{_SCHEMA}, {_HEADERS}" if self._include_headers else _SCHEMA

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_groupsource.source.batch_reader import GroupBatchReader
        from spark_groupsource.source.options import parse_options
        from spark_groupsource.source.schema import select_columns

        parse_options(self._options, "batch")
        columns = select_columns(schema, self._include_headers)
        return GroupBatchReader(self._options, columns, self._driver, self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_groupsource.errors import ConfigurationError
        from spark_groupsource.source.options import parse_options
        from spark_groupsource.source.schema import select_columns
        from spark_groupsource.source.stream_reader import GroupStreamReader, InvalidStreamReader

        try:
            parse_options(self._options, "stream")
            columns = select_columns(schema, self._include_headers)
        except ConfigurationError as error:
            # Spark hides an error of this method behind one of its own; an error of the first callback it shows
            return InvalidStreamReader(error)
        return GroupStreamReader(self._options, columns, self._driver, self.parallelism)


def register(spark: SparkSession) -> None:
    """Registers the source with one session, telling it how many tasks run at a time.

    ``format("groupsource")`` is found without this; then ``members=auto`` goes by the driver's processors.
    """
    known: dict[str, Any] = {"parallelism": spark.sparkContext.defaultParallelism, "__doc__": GroupDataSource.__doc__}
    # a class made at run time is pickled with its attributes, an importable one by its name alone
    spark.dataSource.register(type("GroupDataSource", (GroupDataSource,), {**known, "__module__": "__main__"}))
