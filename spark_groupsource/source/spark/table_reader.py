"""Readers of tables: one task on an executor reads the cluster."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.monitor.offsets.offsets_log import log_partitions
from spark_groupsource.monitor.tables.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.tables.table_rows import Row, TableQuery, offsets_log_rows, read_rows
from spark_groupsource.source.options.table_options import TableOptions
from spark_groupsource.source.spark.worker_connection import Pickled
from spark_groupsource.source.tracebacks import strip_traceback, without_traceback
from spark_groupsource.wire.group_records import OFFSETS_TOPIC


class TablePartition(InputPartition):
    """What one task reads: the table, or `rows` that were read on the driver, or `ranges` of `__consumer_offsets`."""

    def __init__(
        self,
        settings: ClientSettings,
        rows: Sequence[Row] | None = None,
        ranges: Sequence[OffsetRange] | None = None,
    ) -> None:
        self.settings = settings
        self.rows = rows
        self.ranges = ranges


class TableReader(Pickled, DataSourceReader):
    """Reader of one batch query; Spark pickles it to the executors."""

    def __init__(self, options: TableOptions, columns: Sequence[str], driver: int) -> None:
        self._options = options
        self._columns = list(columns)
        self._driver = driver

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        from spark_groupsource.source.process.embedded_address import resolve_bootstrap
        from spark_groupsource.source.process.queries import drain_readers, query_rows

        options = self._options
        if options.table.name == "queries":
            # the control sockets of the readers are on the driver's machine
            readers = None
            if options.drain is not None:
                readers = drain_readers(self._driver, options.drain, options.drained_offsets or ())
            return [TablePartition(options.client, query_rows(self._driver, options.groups, readers))]
        settings = options.client_settings(resolve_bootstrap(options.bootstrap_servers, self._driver))
        return [TablePartition(settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        return _read(partition, self._options, self._columns)


class OffsetsLogStreamReader(Pickled, DataSourceStreamReader):
    """Reader of a stream of table offsets_log; an offset is ``{"<partition>": <offset>}``."""

    def __init__(self, options: TableOptions, columns: Sequence[str], driver: int) -> None:
        self._options = options
        self._columns = list(columns)
        self._driver = driver
        self._cluster: ClusterClient | None = None
        self._initial: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    @without_traceback
    def initialOffset(self) -> dict[str, int]:
        # Spark calls it twice
        if self._initial is None:
            self._initial = self._offsets(EARLIEST if self._options.starting_offsets == "earliest" else LATEST)
        return self._initial

    @without_traceback
    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:
        return self._offsets(LATEST)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        ranges = [
            # a partition that was added starts at 0
            OffsetRange(TopicPartition(OFFSETS_TOPIC, int(number)), start.get(number, 0), stop)
            for number, stop in end.items()
            if start.get(number, 0) < stop
        ]
        return [TablePartition(self._open().settings, ranges=ranges)]

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: the checkpoint of the query has its position."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        return _read(partition, self._options, self._columns)

    def _offsets(self, timestamp: int) -> dict[str, int]:
        cluster = self._open()
        partitions = log_partitions(cluster, self._options.groups)
        found = cluster.list_offsets({tp: timestamp for tp in partitions}, read_committed=False)
        return {str(tp.partition): found[tp].offset for tp in partitions}

    def _open(self) -> ClusterClient:
        if self._cluster is None:
            from spark_groupsource.source.process.embedded_address import resolve_bootstrap

            options = self._options
            settings = options.client_settings(resolve_bootstrap(options.bootstrap_servers, self._driver))
            self._cluster = ClusterClient(settings.bootstrap, settings)
        return self._cluster


def _read(partition: TablePartition, options: TableOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(options.table, columns)
    if partition.rows is not None:
        yield from record_batches(partition.rows, schema)
        return
    try:
        with ClusterClient(partition.settings.bootstrap, partition.settings) as cluster:
            rows: Iterator[Row]
            if partition.ranges is None:
                query = TableQuery(options.table.name, frozenset(columns), options.groups, options.topic)
                rows = read_rows(cluster, query)
            else:
                rows = (row for part in partition.ranges for row in offsets_log_rows(cluster, part, options.groups))
            yield from record_batches(rows, schema)
    except GroupSourceError as error:
        raise strip_traceback(error) from None
