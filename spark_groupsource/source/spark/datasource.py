"""Spark data source registered under ``format("groupsource")``.

Spark imports this module whenever any data source is looked up, so everything heavy is imported inside the methods.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from spark_groupsource.source.tracebacks import without_traceback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_groupsource.source.options.sink_options import SinkOptions
    from spark_groupsource.source.options.source_options import QueryKind, SourceOptions
    from spark_groupsource.source.options.table_options import TableOptions
    from spark_groupsource.values.registry.subjects import ReaderSchema

# options that only reads have
_SUBSCRIPTIONS = frozenset({"table", "subscribe", "subscribepattern", "assign"})


class GroupDataSource(DataSource):
    """Reads Kafka topics as a Kafka consumer group, and writes to topics.

    Name: ``groupsource``. Options of reads: those of Spark's Kafka source, Kafka client settings with the prefix
    ``kafka.``, and the options of consumer groups; the table is
    `spark_groupsource.source.options.source_options.OPTIONS`.

    Schema: that of Spark's Kafka source. A schema given by the user selects columns, and only these are decoded:
    ``.schema("value binary")``. With the option ``table`` it reads a table of groups, lag and so on; see
    `spark_groupsource.monitor.tables.definitions.TABLES`.

    Writes have the columns of Spark's Kafka sink and the options
    `spark_groupsource.source.options.sink_options.SINK_OPTIONS`.

    Examples:
        >>> stream = (
        ...     spark.readStream.format("groupsource")
        ...     .option("kafka.bootstrap.servers", "localhost:9092")
        ...     .option("subscribe", "orders")
        ...     .option("kafka.group.id", "billing")
        ...     .load()
        ... )
    """

    @without_traceback
    def __init__(self, options: dict[str, str]) -> None:
        from spark_groupsource.source.process.driver_process import driver_pid
        from spark_groupsource.source.spark.catalog_tables import is_catalog_table, table_options

        super().__init__(options)
        self._options = table_options(options)
        self._is_catalog_table = is_catalog_table(options)
        self._driver = driver_pid()
        # schemas of a registry, which every copy of this object must use
        self._reader_schemas: Mapping[str, ReaderSchema] = {}
        # a table of the catalog has no options yet; its schema completes them. A write has others.
        if any(name.lower() in _SUBSCRIPTIONS for name in self._options):
            # checks what does not depend on the kind of query, so that load() fails and not the start of the query
            self._reader_schemas = _reader_schemas(self._parsed(self._options))

    @classmethod
    def name(cls) -> str:
        return "groupsource"

    @without_traceback
    def schema(self) -> StructType | str:
        from spark_groupsource.source.options.schema import loaded_schema, table_schema
        from spark_groupsource.source.options.secret_options import warn_of_shown_secrets
        from spark_groupsource.source.options.table_options import TableOptions
        from spark_groupsource.source.spark.catalog_tables import with_options

        names = {name.lower() for name in self._options}
        if self._is_catalog_table and "topic" in names and not names & _SUBSCRIPTIONS:
            from spark_groupsource.source.options.sink_columns import TABLE_SCHEMA
            from spark_groupsource.source.options.sink_options import parse_sink_options

            parse_sink_options(self._options, "batch")
            return with_options(TABLE_SCHEMA, self._options, in_every_column=True)
        options = self._parsed(self._options, is_declared=False)
        self._reader_schemas = _reader_schemas(options)
        if isinstance(options, TableOptions):
            found: StructType | str = table_schema(options.table)
        else:
            found = loaded_schema(options.include_headers, options.values)
            warn_of_shown_secrets(self._options)
        if not self._is_catalog_table:
            return found
        versions = {f"{column}.schema.version": str(each.version) for column, each in self._reader_schemas.items()}
        return with_options(found, {**self._options, **versions})

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_groupsource.source.options.schema import select_columns, select_table_columns
        from spark_groupsource.source.options.table_options import TableOptions

        options = self._parsed(self._completed(schema), "batch")
        if isinstance(options, TableOptions):
            from spark_groupsource.source.spark.table_reader import TableReader

            return TableReader(options, select_table_columns(schema, options.table), self._driver)
        from spark_groupsource.source.spark.batch_reader import GroupBatchReader

        columns = select_columns(schema, options.include_headers, options.values)
        return GroupBatchReader(options, columns, self._driver)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _exempt_from_collection()
        from spark_groupsource.errors import ConfigurationError
        from spark_groupsource.source.options.schema import select_columns, select_table_columns
        from spark_groupsource.source.options.table_options import TableOptions
        from spark_groupsource.source.process.driver_process import application_label
        from spark_groupsource.source.spark.stream_reader import InvalidStreamReader, stream_reader_class

        try:
            given = self._completed(schema)
            options = self._parsed(given, "stream")
            if isinstance(options, TableOptions):
                from spark_groupsource.source.spark.table_reader import OffsetsLogStreamReader

                return OffsetsLogStreamReader(options, select_table_columns(schema, options.table), self._driver)
            columns = select_columns(schema, options.include_headers, options.values)
            options = _with_columns(options, schema)
            label = application_label(self._driver)
            if label and not any(name.lower() == "kafka.client.id" for name in given):
                # so that the members of two applications can be distinguished in every tool
                options = options.with_client_id(label)
        except ConfigurationError as error:
            # Spark replaces the message of an error raised here, but not that of an error in the first callback
            return InvalidStreamReader(error)
        return stream_reader_class()(options, columns, self._driver)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_groupsource.source.spark.sink_writers import SinkBatchWriter

        return SinkBatchWriter(self._sink_options(schema, overwrite, "batch"), self._driver)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_groupsource.source.spark.sink_writers import SinkStreamWriter

        writer: DataSourceStreamWriter = SinkStreamWriter(
            self._sink_options(schema, overwrite, "stream"), self._driver
        )
        return writer

    def _sink_options(self, schema: StructType, overwrite: bool, kind: QueryKind) -> SinkOptions:
        """Returns the options of a write, with the address of an embedded broker.

        Raises: ConfigurationError also for columns that cannot be written.
        """
        from dataclasses import replace

        from spark_groupsource.errors import ConfigurationError
        from spark_groupsource.source.options.sink_columns import check_columns
        from spark_groupsource.source.options.sink_options import parse_sink_options
        from spark_groupsource.source.process.driver_process import (
            application_label,
            driver_command,
            heap_of_command,
        )
        from spark_groupsource.source.process.embedded_address import create_missing, resolve_bootstrap
        from spark_groupsource.source.spark.catalog_tables import stored_options

        if overwrite and kind == "batch":
            # in a stream it is the output mode complete, whose rows Spark's sink appends, too
            raise ConfigurationError("A topic cannot be overwritten. Use df.write.mode('append').")
        given = {**stored_options(schema), **self._options}
        if not given:
            raise ConfigurationError(
                "Writing failed: there are no options. Spark passes none when it writes to a table of the catalog: use "
                "INSERT INTO table WITH (`kafka.bootstrap.servers`='...', topic='...'), or a temporary view with "
                "columns."
            )
        options = parse_sink_options(given, kind)
        check_columns(schema, options.topic, options.formats)
        label = application_label(self._driver)
        if label and not any(name.lower() == "kafka.client.id" for name in given):
            options = replace(options, client=replace(options.client, client_id=label))
        if options.transactional_id is not None:
            options = replace(options, driver_heap_bytes=heap_of_command(driver_command(self._driver)))
        options = options.with_address(resolve_bootstrap(options.bootstrap_servers, self._driver))
        if options.is_embedded and options.topic is not None:
            create_missing(options.client, [options.topic])
        return options

    def _parsed(
        self, given: Mapping[str, str], query: QueryKind | None = None, is_declared: bool = True
    ) -> SourceOptions | TableOptions:
        """Returns the options, with the schemas of a registry; see `with_reader_schemas`."""
        from spark_groupsource.source.options.table_options import TableOptions

        options = _parse(given, query)
        if isinstance(options, TableOptions) or not options.values.of_subjects:
            return options
        from spark_groupsource.source.options.reader_schemas import with_reader_schemas

        return with_reader_schemas(options, self._reader_schemas, _schemas_in_checkpoint, is_declared)

    def _completed(self, schema: StructType) -> dict[str, str]:
        """Returns the options, with those that are stored with a table of the catalog.

        Raises: ConfigurationError if there are none.
        """
        from spark_groupsource.errors import ConfigurationError
        from spark_groupsource.source.spark.catalog_tables import stored_options

        found = {**stored_options(schema), **self._options}
        if not found:
            raise ConfigurationError(
                "Reading failed: there are no options. Set kafka.bootstrap.servers and subscribe or table. Spark drops "
                "the options of a catalog table with columns: use CREATE TABLE without columns, or CREATE TEMP VIEW."
            )
        return found


def _parse(options: Mapping[str, str], query: QueryKind | None = None) -> SourceOptions | TableOptions:
    """Raises: ConfigurationError."""
    from spark_groupsource.source.options.option_parser import parse_options
    from spark_groupsource.source.options.table_options import is_table, parse_table_options

    return parse_table_options(options, query) if is_table(options) else parse_options(options, query)


def _reader_schemas(options: SourceOptions | TableOptions) -> dict[str, ReaderSchema]:
    from spark_groupsource.source.options.table_options import TableOptions

    if isinstance(options, TableOptions):
        return {}
    return {each.column: each.reader for each in options.values.of_subjects if each.reader is not None}


def _with_columns(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Returns the options, which know whether the query declares its columns."""
    values = options.values
    # without a schema of the subject, the query declares the columns
    if not values.of_subjects or any(each.reader is None for each in values.of_subjects):
        return options
    from dataclasses import replace

    from spark_groupsource.source.options.schema import query_schema

    found = query_schema(options.include_headers, values)
    has_own_columns = not isinstance(found, str) and schema.simpleString() != found.simpleString()
    return replace(options, values=replace(values, has_own_columns=has_own_columns))


def _schemas_in_checkpoint(path: str) -> list[Mapping[str, ReaderSchema]]:
    from spark_groupsource.source.positions.checkpoint import schemas_in_checkpoint

    return schemas_in_checkpoint(path)


def _exempt_from_collection() -> None:
    """Exempts the modules of PySpark from the garbage collections that the following imports cause, once per process.

    They take a fifth of the processor time of these imports.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def register(spark: SparkSession) -> None:
    """Registers the source with a Spark session; its streaming queries then commit a batch when it ends.

    Without it they commit at the next trigger. They also take part in rebalances between two triggers.
    ``format("groupsource")`` works without registration.

    Raises: ConfigurationError for another object.
    """
    if not hasattr(spark, "dataSource"):
        # Spark imports this module at every lookup
        from spark_groupsource.common.arguments import shown
        from spark_groupsource.errors import ConfigurationError

        raise ConfigurationError(f"Argument spark must be a Spark session, got {shown(spark)}.")
    from pyspark.errors import AnalysisException

    from spark_groupsource.source.spark.batch_listener import report_finished_batches

    report_finished_batches(spark)
    try:
        spark.dataSource.register(GroupDataSource)
    except AnalysisException as error:
        # Spark 4.0 does not replace a data source that it has found, which is this one
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
