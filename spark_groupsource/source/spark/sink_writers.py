"""Writers that Spark constructs: forward tasks and commits to the sink.

Spark pickles a writer to the tasks. A batch query commits with the same writer, a streaming query with a new one for
each micro-batch, so a writer has no state but its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Sequence, cast

import pyspark.sql.datasource as spark_datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from spark_groupsource.source.options.sink_options import SinkOptions
from spark_groupsource.source.spark.worker_connection import Pickled, acknowledge_task
from spark_groupsource.source.tracebacks import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_groupsource.source.sink.output_task import TaskOutput


class _Writer(Pickled):
    """What both kinds of writer do."""

    def __init__(self, options: SinkOptions, driver: int) -> None:
        self._options = options
        self._driver = driver

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge_task()
        self.__dict__.update(state)

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # the driver has this module too, and writes nothing
        from spark_groupsource.source.sink.output_task import write_records

        return write_records(self._options, iterator)

    @without_traceback
    def _publish(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        if self._options.transactional_id is None:
            # the tasks have written everything
            return
        from spark_groupsource.source.sink.output_commit import commit_outputs

        outputs = cast("list[TaskOutput]", [each for each in messages if each is not None])
        commit_outputs(self._options, outputs, batch_id, self._driver)


class SinkBatchWriter(_Writer, DataSourceArrowWriter):
    """Writer of one batch query."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._publish(messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Does nothing: records that were written remain, as in Spark's sink."""


# Spark 4.0 has rows only in streaming writers, but gives Arrow batches to each writer of the class for batch queries
_StreamBases: tuple[type, ...] = (
    (spark_datasource.DataSourceStreamArrowWriter,)
    if hasattr(spark_datasource, "DataSourceStreamArrowWriter")
    else (DataSourceArrowWriter, DataSourceStreamWriter)
)


class SinkStreamWriter(_Writer, *_StreamBases):  # type: ignore[misc]
    """Writer of one micro-batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._publish(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: records that were written remain, as in Spark's sink."""
