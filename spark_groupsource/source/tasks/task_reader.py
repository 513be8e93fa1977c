"""Read task on an executor: fetches ranges, sends heartbeats for one member.

A task depends only on its `GroupInputPartition`. Connections are cached per worker process. A task returns every record
of its ranges or raises, because Spark cannot detect a short read.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Callable, ContextManager, Iterator, Protocol

import pyarrow as pa

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.outage import Outage
from spark_groupsource.client.records.fetcher import FetchedBlock, PartitionFetcher
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import DataLossError, ErrorCode, GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition, bounded_names
from spark_groupsource.records.columns.arrow import columns_schema, decode_fetched
from spark_groupsource.source.options.schema import SelectedColumns
from spark_groupsource.source.positions.data_loss import ACCEPT_LOSS, DataLossPolicy
from spark_groupsource.source.tasks.garbage_collection import exempt_from_collection
from spark_groupsource.source.tasks.kept_clients import kept_client
from spark_groupsource.source.tasks.task_partition import GroupInputPartition, TaskMembership
from spark_groupsource.source.tracebacks import strip_traceback

if TYPE_CHECKING:
    from spark_groupsource.source.tasks.dead_letters import DeadLetterQueue
    from spark_groupsource.values.typed_columns import MalformedRecords

_log = logging.getLogger(__name__)
_Finish = Callable[[pa.RecordBatch, TopicPartition], pa.RecordBatch]

_clusters: dict[ClientSettings, ClusterClient] = {}


class Heartbeat(Protocol):
    """Heartbeat of a task; both methods raise GenerationMismatchError once they know that the member is fenced."""

    def check(self) -> None:
        """Raises the error that no further heartbeat can end, if any; sends no request."""

    def check_now(self) -> None:
        """Sends heartbeats until the coordinator accepts one, or fences the member, or an outage lasts too long."""


class _NoHeartbeat:
    def check(self) -> None:
        """Does nothing: a task without membership cannot be fenced."""

    def check_now(self) -> None:
        """Does nothing: a task without membership cannot be fenced."""


def read_task(partition: GroupInputPartition, columns: SelectedColumns) -> Iterator[pa.RecordBatch]:
    """Yields the records of a task's ranges as Arrow batches of the selected columns.

    Raises: GenerationMismatchError when the member is fenced, also after the last record; DataLossError when records
    no longer exist and failOnDataLoss is true; BrokerError, NetworkError.
    """
    exempt_from_collection()
    cluster = _cluster(partition)
    try:
        with open_heartbeat(cluster, partition.membership, _outage(cluster, partition)) as heartbeat:
            dead_letters = _dead_letters(cluster, partition, columns)
            finish = _finisher(columns, None if dead_letters is None else dead_letters.add)
            yield from _read(cluster, partition, columns, heartbeat, finish)
            if dead_letters is not None and dead_letters.has_pending:
                # a fenced task should not write what another one will
                heartbeat.check_now()
                dead_letters.flush()
            heartbeat.check_now()
    except GroupSourceError as error:
        # a connection may have caused the error; the next attempt opens new ones
        _discard(cluster)
        raise strip_traceback(error, partition.settings.security) from None


def _cluster(partition: GroupInputPartition) -> ClusterClient:
    settings = partition.settings
    cluster = kept_client(
        _clusters, settings, lambda: ClusterClient(settings.bootstrap, settings), ClusterClient.close
    )
    cluster.add_known_brokers(partition.known_brokers)
    return cluster


def _discard(cluster: ClusterClient) -> None:
    if _clusters.get(cluster.settings) is cluster:
        del _clusters[cluster.settings]
    cluster.close()


def open_heartbeat(
    cluster: ClusterClient, membership: TaskMembership | None, outage: Outage | None = None
) -> ContextManager[Heartbeat]:
    """Returns the heartbeat of a task; without membership it does nothing."""
    if membership is None:
        return nullcontext(_NoHeartbeat())
    from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat

    heartbeat: ContextManager[Heartbeat] = TaskHeartbeat(
        cluster,
        group_id=membership.group_id,
        member_id=membership.member_id,
        generation_id=membership.generation_id,
        group_instance_id=membership.group_instance_id,
        heartbeat_interval_ms=membership.heartbeat_interval_ms,
        retains_partitions=membership.retains_partitions,
        outage=outage,
    )
    return heartbeat


def _read(
    cluster: ClusterClient,
    partition: GroupInputPartition,
    columns: SelectedColumns,
    heartbeat: Heartbeat,
    finish: _Finish,
) -> Iterator[pa.RecordBatch]:
    fetcher = PartitionFetcher(
        cluster,
        partition.settings,
        topic_ids=partition.topic_ids,
        leader_epochs=partition.leader_epochs,
        outage=_outage(cluster, partition),
        check=heartbeat.check,
    )
    data_loss = _data_loss_policy(partition)
    pending = {r.topic_partition: r for r in partition.ranges if r.end > r.start}
    while pending:
        before = dict(pending)
        for block in fetcher.fetch_blocks(list(pending.values())):
            heartbeat.check()
            expected = pending[block.topic_partition]
            if block.error:
                _shrink(pending, expected, block, data_loss)
                continue
            if block.diverging_offset is not None:
                data_loss.truncated_before_read(expected, block.diverging_offset)
                continue
            decoded = decode_fetched(
                block.data,
                topic_partition=block.topic_partition,
                columns=columns.names,
                start_offset=expected.start,
                end_offset=expected.end,
                read_committed=partition.settings.read_committed,
                aborted=block.aborted,
            )
            _advance(pending, expected, block.next_offset)
            for batch in decoded.batches:
                finished = finish(batch, block.topic_partition)
                if finished.num_rows:
                    yield finished
        _check_moved(before, pending)


def _outage(cluster: ClusterClient, partition: GroupInputPartition) -> Outage:
    names = bounded_names(r.topic_partition for r in partition.ranges)
    longest_ms = partition.settings.default_api_timeout_ms
    return Outage(
        f"partition={names}", cluster.clock, limit_ms=partition.max_outage_ms, report_after_ms=longest_ms
    )


def _data_loss_policy(partition: GroupInputPartition) -> DataLossPolicy:
    membership = partition.membership
    return DataLossPolicy(
        fail=partition.fail_on_data_loss,
        is_batch=partition.is_batch,
        group_id=partition.group_id,
        member_id=None if membership is None else membership.member_id,
    )


def _dead_letters(
    cluster: ClusterClient, partition: GroupInputPartition, columns: SelectedColumns
) -> DeadLetterQueue | None:
    topic = None if columns.typed is None else columns.typed.dead_letter_topic
    if topic is None:
        return None
    # it loads the producer
    from spark_groupsource.source.tasks.dead_letters import DeadLetterQueue

    membership = partition.membership
    return DeadLetterQueue(cluster, topic, partition.settings.client_id if membership is None else membership.group_id)


def _finisher(columns: SelectedColumns, report: Callable[[MalformedRecords], None] | None) -> _Finish:
    """Returns the conversion of a decoded batch into the columns of the query.

    Args:
        report: called with malformed records.
    """
    if columns.typed is not None:
        return columns.typed.converter(report).convert
    schema = _required_schema(columns)
    if schema is None:
        return lambda batch, _: batch
    return lambda batch, _: pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _required_schema(columns: SelectedColumns) -> pa.Schema | None:
    """Returns the Arrow schema if the user declared columns NOT NULL, else None."""
    if not columns.not_null:
        return None
    fields = columns_schema(columns.names)
    return pa.schema([field.with_nullable(field.name not in columns.not_null) for field in fields])


def _advance(pending: dict[TopicPartition, OffsetRange], expected: OffsetRange, next_offset: int) -> None:
    if next_offset >= expected.end:
        del pending[expected.topic_partition]
    else:
        pending[expected.topic_partition] = expected._replace(start=next_offset)


def _shrink(
    pending: dict[TopicPartition, OffsetRange],
    expected: OffsetRange,
    block: FetchedBlock,
    data_loss: DataLossPolicy,
) -> None:
    """Removes the missing part of a range if failOnDataLoss is false; the rest is fetched again.

    Raises: DataLossError.
    """
    tp = expected.topic_partition
    if block.error == ErrorCode.UNKNOWN_TOPIC_ID:
        data_loss.recreated_before_read(expected)
        del pending[tp]
    elif block.error != ErrorCode.OFFSET_OUT_OF_RANGE:
        data_loss.deleted_before_read(expected)
        del pending[tp]
    elif block.log_start_offset > expected.start:
        data_loss.start_deleted(expected, block.log_start_offset)
        _advance(pending, expected, block.log_start_offset)
    else:
        data_loss.ends_early(expected, block.high_watermark)
        del pending[tp]


def _check_moved(before: dict[TopicPartition, OffsetRange], pending: dict[TopicPartition, OffsetRange]) -> None:
    """Checks that a round of fetches advanced every range; otherwise the task would never end."""
    for tp, rest in pending.items():
        if rest == before[tp]:
            message = f"No record of {tp} was returned for offsets [{rest.start}, {rest.end})."
            raise DataLossError("COULD_NOT_READ_OFFSET_RANGE", message, f"Run the read again. {ACCEPT_LOSS}")
