"""Batch reads: every wanted range resolved on the driver, split into tasks, read without a group's membership."""

from __future__ import annotations

import logging
import os
from typing import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition, bounded_names
from spark_groupsource.source.data_loss import DataLossPolicy
from spark_groupsource.source.offset_lookup import OffsetLookup, Offsets, check_listed
from spark_groupsource.source.options import EARLIEST, SourceOptions, parse_options
from spark_groupsource.source.planning import pack_tasks, split_tasks
from spark_groupsource.source.position_spec import PositionSpec
from spark_groupsource.source.schema import SelectedColumns
from spark_groupsource.source.task_reader import GroupInputPartition, read_task
from spark_groupsource.source.tracebacks import without_traceback

_log = logging.getLogger(__name__)

# tasks of one read per processor: more than that only costs task starts, about 30 ms each
_TASKS_PER_PROCESSOR = 4


class GroupBatchReader(DataSourceReader):
    """Plans and reads one batch query; pickled to the executors, so it holds plain values only."""

    def __init__(
        self, options: Mapping[str, str], columns: SelectedColumns, driver: int, parallelism: int | None = None
    ) -> None:
        self._options = dict(options)
        self._columns = columns
        self._driver = driver
        self._parallelism = parallelism

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        from spark_groupsource.source.embedded import resolve_bootstrap

        options = parse_options(self._options, "batch")
        for name in options.ignored:
            _log.warning("option %s has no effect in a batch query", name)
        settings = options.client_settings(resolve_bootstrap(options.bootstrap_servers, self._driver))
        with Cluster(settings.bootstrap, settings) as cluster:
            ranges = plan_ranges(cluster, options)
        tasks = pack_tasks(ranges, _TASKS_PER_PROCESSOR * (self._parallelism or os.cpu_count() or 1))
        tasks = split_tasks(
            tasks, min_partitions=options["minPartitions"], max_records=options["maxRecordsPerPartition"]
        )
        return [
            GroupInputPartition(
                ranges=task.ranges,
                settings=options.task_settings(settings),
                fail_on_data_loss=options["failOnDataLoss"],
            )
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, GroupInputPartition):
            # Spark makes one partition of its own where the plan has none
            return iter(())
        return read_task(partition, self._columns)


def plan_ranges(cluster: Cluster, options: SourceOptions) -> list[OffsetRange]:
    """The ranges a batch query reads.

    Raises: ConfigurationError for positions that make no sense; DataLossError for a listed end that is not there.
    """
    lookup = OffsetLookup(cluster, options)
    partitions = lookup.partitions()
    starting = options.starting or PositionSpec("startingOffsets", default=EARLIEST)
    committed: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
    if starting.uses_group:
        committed = cluster.fetch_committed(options.group_id or "", partitions)
    for spec in (starting, options.ending):
        check_listed(spec, partitions)
    begins = lookup.resolve(starting, partitions, committed)
    ends = _check_ends(lookup, options, lookup.resolve(options.ending, partitions, {}))
    backward = [p for p in partitions if begins[p] > ends[p]]
    if backward:
        first = backward[0]
        raise ConfigurationError(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {bounded_names(backward)}: the read would start after "
            f"its end (start {begins[first]}, end {ends[first]} of {first}); correct startingOffsets or endingOffsets"
        )
    return [OffsetRange(p, begins[p], ends[p]) for p in partitions]


def _check_ends(lookup: OffsetLookup, options: SourceOptions, ends: Offsets) -> Offsets:
    """Ends that lie beyond their logs fail or are cut, as failOnDataLoss says."""
    listed = [p for p in ends if options.ending.listed(p) is not None and not options.ending.by_time]
    latest = lookup.latest(listed)
    losses = DataLossPolicy(fail=options["failOnDataLoss"])
    for p in listed:
        if ends[p] > latest[p]:
            losses.beyond_the_log(options.ending.option, p, ends[p], latest[p])
            ends[p] = latest[p]
    return ends
