"""The executor's part: one task reads its ranges and acts for one member while it does.

Everything it needs is in its `GroupInputPartition`; nothing of the reader process reaches it. Connections outlive tasks
in their worker process. A task gives every record of its ranges or raises: Spark takes a short read for a whole one.
"""

from __future__ import annotations

import gc
import logging
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ContextManager, Iterator, Protocol, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.records.fetcher import FetchedBlock, PartitionFetcher
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import DataLossError, ErrorCode, GroupSourceError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.arrow import columns_schema, decode_fetched
from spark_groupsource.source.data_loss import DataLossPolicy
from spark_groupsource.source.schema import SelectedColumns
from spark_groupsource.source.tracebacks import strip_traceback

_log = logging.getLogger(__name__)

_clusters: dict[ClientSettings, Cluster] = {}
_frozen = False


@dataclass(frozen=True)
class TaskMembership:
    """The member a task acts for, as it was when the batch was planned.

    `claiming`: a round was on its way then, in which the member keeps what is read; it says nothing of who owns what.
    """

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None
    heartbeat_interval_ms: int
    claiming: bool = field(default=False, compare=False)


class GroupInputPartition(InputPartition):
    """What one task reads, and for whom; `membership` is None for batch reads, `assign` and replays."""

    def __init__(
        self,
        *,
        ranges: Sequence[OffsetRange],
        settings: ClientSettings,
        fail_on_data_loss: bool,
        membership: TaskMembership | None = None,
    ) -> None:
        self.ranges = tuple(ranges)
        self.settings = settings
        self.fail_on_data_loss = fail_on_data_loss
        self.membership = membership

    def __repr__(self) -> str:
        read = ", ".join(f"{r.topic_partition} [{r.start}, {r.end})" for r in self.ranges)
        return f"GroupInputPartition({read})"


class Heartbeat(Protocol):
    """What a task asks of its heartbeat; both raise GenerationMismatchError once the member is fenced."""

    def check(self) -> None:
        """Raises what the last heartbeat brought, without asking."""

    def check_now(self) -> None:
        """Asks the coordinator."""


class _NoHeartbeat:
    def check(self) -> None:
        """A task without membership cannot be fenced."""

    def check_now(self) -> None:
        """A task without membership cannot be fenced."""


def read_task(partition: GroupInputPartition, columns: SelectedColumns) -> Iterator[pa.RecordBatch]:
    """Yields the records of a task's ranges as Arrow batches of the wanted columns.

    Raises: GenerationMismatchError when the member is fenced, also after the last record; DataLossError when records
    are gone and failOnDataLoss is true; BrokerError, NetworkError.
    """
    _freeze_once()
    cluster = _cluster(partition.settings)
    try:
        with _heartbeat(cluster, partition.membership) as heartbeat:
            yield from _read(cluster, partition, columns, heartbeat)
            heartbeat.check_now()
    except GroupSourceError as error:
        # what went wrong may be the connection's fault; the next attempt starts with fresh ones
        _discard(cluster)
        raise strip_traceback(error) from None


def _freeze_once() -> None:
    # Spark's daemon collects garbage after each task; over everything imported that takes about 15 ms
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


def _cluster(settings: ClientSettings) -> Cluster:
    cluster = _clusters.get(settings)
    if cluster is None:
        cluster = _clusters[settings] = Cluster(settings.bootstrap, settings)
    return cluster


def _discard(cluster: Cluster) -> None:
    if _clusters.get(cluster.settings) is cluster:
        del _clusters[cluster.settings]
    cluster.close()


def _heartbeat(cluster: Cluster, membership: TaskMembership | None) -> ContextManager[Heartbeat]:
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
        retains_partitions=membership.claiming,
    )
    return heartbeat


def _read(
    cluster: Cluster, partition: GroupInputPartition, columns: SelectedColumns, heartbeat: Heartbeat
) -> Iterator[pa.RecordBatch]:
    schema = _required_schema(columns)
    fetcher = PartitionFetcher(cluster, partition.settings)
    losses = _losses(partition)
    pending = {r.topic_partition: r for r in partition.ranges if r.end > r.start}
    while pending:
        before = dict(pending)
        for block in fetcher.fetch_blocks(list(pending.values())):
            heartbeat.check()
            wanted = pending[block.topic_partition]
            if block.error:
                _shrink(pending, wanted, block, losses)
                continue
            decoded = decode_fetched(
                block.data,
                topic_partition=block.topic_partition,
                columns=columns.names,
                start_offset=wanted.start,
                end_offset=wanted.end,
                read_committed=partition.settings.read_committed,
                aborted=block.aborted,
            )
            _advance(pending, wanted, block.next_offset)
            for batch in decoded.batches:
                yield batch if schema is None else pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        _check_moved(before, pending)


def _losses(partition: GroupInputPartition) -> DataLossPolicy:
    who = partition.membership
    fail = partition.fail_on_data_loss
    if who is None:
        return DataLossPolicy(fail=fail)
    return DataLossPolicy(fail=fail, group_id=who.group_id, member_id=who.member_id)


def _required_schema(columns: SelectedColumns) -> pa.Schema | None:
    """The Arrow schema with NOT NULL columns where the user declared some."""
    if not columns.not_null:
        return None
    fields = columns_schema(columns.names)
    return pa.schema([field.with_nullable(field.name not in columns.not_null) for field in fields])


def _advance(pending: dict[TopicPartition, OffsetRange], wanted: OffsetRange, next_offset: int) -> None:
    if next_offset >= wanted.end:
        del pending[wanted.topic_partition]
    else:
        pending[wanted.topic_partition] = wanted._replace(start=next_offset)


def _shrink(
    pending: dict[TopicPartition, OffsetRange],
    wanted: OffsetRange,
    block: FetchedBlock,
    losses: DataLossPolicy,
) -> None:
    """Fails, or leaves out what is gone of one range; the rest is fetched again.

    Raises: DataLossError.
    """
    tp = wanted.topic_partition
    if block.error != ErrorCode.OFFSET_OUT_OF_RANGE:
        losses.deleted_unread(wanted)
        del pending[tp]
    elif block.log_start_offset > wanted.start:
        losses.aged_out(wanted, block.log_start_offset)
        _advance(pending, wanted, block.log_start_offset)
    else:
        losses.ends_early(wanted, block.high_watermark)
        del pending[tp]


def _check_moved(before: dict[TopicPartition, OffsetRange], pending: dict[TopicPartition, OffsetRange]) -> None:
    """A round of fetching ends with every range read or shrunk; anything else would be a short read, or never end."""
    for tp, rest in pending.items():
        if rest == before[tp]:
            raise DataLossError("COULD_NOT_READ_OFFSET_RANGE", f"no record of {tp} came, [{rest.start}, {rest.end}).")
