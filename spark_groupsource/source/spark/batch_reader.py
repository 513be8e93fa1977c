"""Batch queries: resolves offset ranges and splits them into read tasks.

A batch query does not join a group.
"""

from __future__ import annotations

import logging
from typing import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition, bounded_names
from spark_groupsource.source.options.position_spec import PositionSpec
from spark_groupsource.source.options.source_options import EARLIEST, SourceOptions
from spark_groupsource.source.positions.data_loss import DataLossPolicy
from spark_groupsource.source.positions.offset_lookup import OffsetLookup, Offsets, check_listed
from spark_groupsource.source.positions.planning import plan_batch_tasks
from spark_groupsource.source.positions.schema_changes import SchemaChanges
from spark_groupsource.source.process.spark_parallelism import driver_parallelism
from spark_groupsource.source.spark.worker_connection import PickledReader
from spark_groupsource.source.tasks.task_partition import GroupInputPartition
from spark_groupsource.source.tracebacks import without_traceback

_log = logging.getLogger(__name__)


class GroupBatchReader(PickledReader, DataSourceReader):
    """Reader of one batch query."""

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        from spark_groupsource.source.process.embedded_address import resolve_bootstrap

        options = self._options
        for name in options.ignored:
            _log.warning("[option=%s] The option has no effect in a batch query.", name)
        settings = options.client_settings(resolve_bootstrap(options.bootstrap_servers, self._driver))
        with ClusterClient(settings.bootstrap, settings) as cluster:
            ranges = plan_ranges(cluster, options)
            SchemaChanges(options.values).check_planned()
            lookup = OffsetLookup(cluster, options)
            lookup.check_dead_letter_topic()
            topic_ids = lookup.topic_ids({r.topic_partition.topic for r in ranges})
            leader_epochs = cluster.cached_leader_epochs(r.topic_partition for r in ranges)
            tasks = plan_batch_tasks(
                ranges,
                lambda: driver_parallelism(self._driver).tasks,
                min_partitions=options.min_partitions,
                max_records=options.max_records_per_partition,
            )
            known_brokers = [cluster.task_brokers(r.topic_partition for r in task.ranges) for task in tasks]
        return [
            GroupInputPartition(
                ranges=task.ranges,
                settings=options.task_settings(settings),
                fail_on_data_loss=options.fail_on_data_loss,
                topic_ids=topic_ids,
                leader_epochs=leader_epochs,
                known_brokers=addresses,
                max_outage_ms=settings.default_api_timeout_ms,
                is_batch=True,
            )
            for task, addresses in zip(tasks, known_brokers)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, GroupInputPartition):
            # Spark adds a partition of its own type to an empty plan
            return iter(())
        # the planner has this module too, and reads nothing
        from spark_groupsource.source.tasks.task_reader import read_task

        return read_task(partition, self._columns)


def plan_ranges(cluster: ClusterClient, options: SourceOptions) -> list[OffsetRange]:
    """Returns the ranges that a batch query reads.

    Raises: ConfigurationError for start and end positions that contradict each other or the topics; DataLossError for a
    listed end offset beyond the log end offset.
    """
    lookup = OffsetLookup(cluster, options)
    partitions = lookup.partitions()
    starting = options.starting or PositionSpec("startingOffsets", default=EARLIEST)
    committed: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
    if starting.uses_group:
        topic_ids = lookup.topic_ids({p.topic for p in partitions})
        group_id = options.group_id or ""
        cluster.confirm_coordinator(group_id)
        committed = cluster.fetch_committed(group_id, partitions, topic_ids=topic_ids)
    for spec in (starting, options.ending):
        check_listed(spec, partitions)
    begins = lookup.resolve(starting, partitions, committed)
    ends = _check_ends(lookup, options, lookup.resolve(options.ending, partitions, {}))
    backward = [p for p in partitions if begins[p] > ends[p]]
    if backward:
        first = backward[0]
        raise ConfigurationError(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The read of {bounded_names(backward)} would start after "
            f"its end: {first} starts at {begins[first]} and ends at {ends[first]}. Correct startingOffsets or "
            "endingOffsets."
        )
    return [OffsetRange(p, begins[p], ends[p]) for p in partitions]


def _check_ends(lookup: OffsetLookup, options: SourceOptions, ends: Offsets) -> Offsets:
    """Replaces listed end offsets beyond the log end offset by it, or fails, according to failOnDataLoss."""
    listed = [p for p in ends if options.ending.listed(p) is not None and not options.ending.by_time]
    latest = lookup.latest(listed)
    beyond = [p for p in listed if ends[p] > latest[p]]
    if beyond:
        # the log of a former leader may end earlier
        lookup.confirm_leaders({p.topic for p in beyond})
        latest.update(lookup.latest(beyond))
    data_loss = DataLossPolicy(fail=options.fail_on_data_loss, is_batch=True)
    for p in listed:
        if ends[p] > latest[p]:
            data_loss.beyond_log_end(options.ending.option, p, ends[p], latest[p])
            ends[p] = latest[p]
    return ends
