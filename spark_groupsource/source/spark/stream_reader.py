"""Stream reader that Spark constructs: forwards Spark's callbacks to a `ReaderProcess`.

Spark creates two copies: one in the reader process receives every callback, the other is pickled to the executors for
`read`. So the constructor keeps plain values, and `_process` is not pickled.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Iterator, NoReturn, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.process.group_claims import record_first_record, record_query
from spark_groupsource.source.spark.admission_control import (
    HAS_ADMISSION_CONTROL,
    InferredStart,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from spark_groupsource.source.spark.worker_connection import PickledReader
from spark_groupsource.source.tasks.task_partition import GroupInputPartition
from spark_groupsource.source.tracebacks import strip_traceback, without_traceback

if TYPE_CHECKING:
    from spark_groupsource.source.process.reader_process import ReaderProcess

_log = logging.getLogger(__name__)

_READER_MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
"""Main module of a reader process."""
_NO_LIMIT = ReadMaxRows(2**63 - 1)
"""Default limit without options; for the trigger `once`, Spark replaces any limit by `ReadAllAvailable`."""


class InvalidStreamReader(DataSourceStreamReader):
    """Reader for invalid options: raises their error in every callback."""

    def __init__(self, error: GroupSourceError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> Any:
        self._fail()

    def initialOffset(self) -> dict[str, Any]:
        self._fail()

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, Any]:
        self._fail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._fail()

    def read(self, partition: InputPartition) -> NoReturn:
        self._fail()

    def _fail(self) -> NoReturn:
        raise strip_traceback(self._error) from None


class BaseStreamReader(PickledReader, DataSourceStreamReader):
    """Reader of one streaming query, without the calls that depend on admission control."""

    _process: ReaderProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}

    def initialOffset(self) -> dict[str, Any]:
        # no partition: the first end offset contains the start of each partition, so batch 0 can be replayed
        return {}

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        process = self._open()
        tasks = process.session().input_partitions(start, end)
        for task in tasks:
            task.query_file = process.query_file
        return tasks

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        self._open().session().commit()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # the reader process and the planner have this module too, and read nothing
        from spark_groupsource.source.tasks.task_reader import read_task

        assert isinstance(partition, GroupInputPartition)
        if partition.query_file is not None:
            record_query(partition.query_file)
        batches = read_task(partition, self._columns)
        if partition.query_file is None or partition.membership is None:
            return batches
        return _recording_first(batches, partition.query_file, partition.membership.generation_id)

    def _open(self) -> ReaderProcess:
        if self._process is None:
            from spark_groupsource.source.process.reader_process import ReaderProcess

            self._process = ReaderProcess(self._options, self._driver)
        return self._process


class GroupStreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Reader for a Spark with admission control."""

    @without_traceback
    def getDefaultReadLimit(self) -> ReadLimit:
        self._open()
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return _NO_LIMIT

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._open().prepare_available_now()

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from spark_groupsource.source.positions.batch_planner import Limits

        # Spark passes the limit of getDefaultReadLimit, or ReadAllAvailable for the trigger once
        min_offsets, max_bytes = self._options.min_offsets_per_trigger, self._options.max_bytes_per_trigger
        if isinstance(limit, ReadAllAvailable):
            self._open().warn_trigger_once()
            limits = Limits()
        elif limit == _NO_LIMIT:
            limits = Limits()
        elif isinstance(limit, ReadMaxRows):
            limits = Limits(limit.max_rows, min_offsets, max_bytes)
        elif isinstance(limit, ReadMinRows):
            limits = Limits(None, limit.min_rows, max_bytes)
        else:
            assert isinstance(limit, ReadMaxBytes)
            limits = Limits(None, min_offsets, limit.max_bytes)
        return self._open().latest_offset(start, limits)

    @without_traceback
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._open().session().report_latest()


class InferringStreamReader(BaseStreamReader):
    """Reader for a Spark without admission control; see `InferredStart`."""

    def __init__(self, options: SourceOptions, columns: SelectedColumns, driver: int) -> None:
        super().__init__(options, columns, driver)
        self._inferred = InferredStart()
        self._has_planned = False
        # Spark creates the readers of a query before it calls the first: co-readers must find each other, because
        # the trigger availableNow calls each once
        if _main_module() == _READER_MODULE:
            self._open()

    @without_traceback
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        from spark_groupsource.source.positions.batch_planner import Limits

        inferred, options = self._inferred, self._options
        if inferred.planned is not None:
            return inferred.planned
        limits = Limits(options.max_offsets_per_trigger, options.min_offsets_per_trigger, options.max_bytes_per_trigger)
        end = self._open().latest_offset(inferred.start, limits)
        inferred.end_returned(end)
        if end and not self._has_planned:
            self._has_planned = True
            self._report_single_batch(end)
        return end

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._inferred.partitions_called(start, end)
        # Spark passes the position of its checkpoint at a restart
        return [] if start == end else super().partitions(start, end)

    def _report_single_batch(self, end: dict[str, Any]) -> None:
        """Logs what the triggers availableNow and once leave out; when the query ends, Spark reads no log any more."""
        latest = self._open().session().report_latest() or {}
        left = sum(
            max(int(offset) - int(end.get(topic, {}).get(number, offset)), 0)
            for topic, offsets in latest.items()
            for number, offset in offsets.items()
        )
        if left:
            _log.warning(
                "[group=%s] The limits of a batch leave %d of the available records to the next batch. With trigger "
                "availableNow or once, this Spark ends the query before that batch: without these records, without a "
                "commit, and without the windows that this batch completes. Other triggers and "
                "spark_groupsource.run_available_now(writer) continue.",
                self._options.group_id,
                left,
            )
        else:
            _log.info(
                "[group=%s] With trigger availableNow or once, this Spark ends the query after one batch: without a "
                "commit, which the next run makes, and without the windows that the batch completes. "
                "spark_groupsource.run_available_now(writer) has both.",
                self._options.group_id,
            )


def _main_module() -> str | None:
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    return getattr(specification, "name", None)


def stream_reader_class() -> type[BaseStreamReader]:
    """Returns the reader for the Spark of this process."""
    return GroupStreamReader if HAS_ADMISSION_CONTROL else InferringStreamReader


def _recording_first(
    batches: Iterator[pa.RecordBatch], query_file: str, generation_id: int
) -> Iterator[pa.RecordBatch]:
    first = next(batches, None)
    if first is not None:
        record_first_record(query_file, generation_id, SystemClock().timestamp_ms())
        yield first
        yield from batches
