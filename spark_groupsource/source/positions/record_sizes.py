"""Estimates stored record sizes of a backlog by small fetches, for maxBytesPerTrigger."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.header import iter_batches
from spark_groupsource.source.positions.planning import SizeEstimate, SizeSample, sample_offsets

# bytes at the begin of each partition; a broker returns at least one whole batch
_FIRST_BYTES = 64 << 10
_RESPONSE_BYTES = 4 << 20
# samples of the range beyond these bytes
_SAMPLES = 4
_SAMPLE_BYTES = 4 << 10


def estimate_sizes(cluster: ClusterClient, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, SizeEstimate]:
    """Estimates the sizes of the records at `begins`; omits a partition for which no whole batch was returned.

    Raises: BrokerError, NetworkError, CorruptRecordError.
    """
    found = _fetch(cluster, begins, _FIRST_BYTES)
    return {p: sizes for p, sizes in found.items() if len(sizes.offsets) > 1}


def extend_estimates(
    cluster: ClusterClient, estimates: Mapping[TopicPartition, SizeEstimate], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, SizeEstimate]:
    """Extends the estimates to `ends` by samples.

    Raises: as `estimate_sizes`.
    """
    planned = {p: sample_offsets(sizes, ends[p], _SAMPLES) for p, sizes in estimates.items()}
    samples: dict[TopicPartition, list[SizeSample]] = {p: [] for p in estimates}
    for n in range(_SAMPLES):
        requested = {p: offsets[n] for p, offsets in planned.items() if offsets}
        for p, sizes in _fetch(cluster, requested, _SAMPLE_BYTES).items():
            if len(sizes.offsets) > 1:
                samples[p].append(SizeSample(requested[p], sizes.density))
    return {p: sizes.extended(samples[p]) for p, sizes in estimates.items()}


def _fetch(
    cluster: ClusterClient, begins: Mapping[TopicPartition, int], size: int
) -> dict[TopicPartition, SizeEstimate]:
    settings = replace(cluster.settings, max_partition_fetch_bytes=size, fetch_max_bytes=_RESPONSE_BYTES)
    ranges = [OffsetRange(p, begin, begin + 1) for p, begin in begins.items()]
    blocks = PartitionFetcher(cluster, settings).fetch_blocks(ranges) if ranges else ()
    return {block.topic_partition: _sizes(block.data, begins[block.topic_partition]) for block in blocks}


def _sizes(data: memoryview, begin: int) -> SizeEstimate:
    offsets, sizes = [begin], [0]
    for batch in iter_batches(data):
        if batch.next_offset > offsets[-1]:
            # the first batch may contain records before the begin
            share = (batch.next_offset - max(batch.base_offset, begin)) / (batch.next_offset - batch.base_offset)
            offsets.append(batch.next_offset)
            sizes.append(sizes[-1] + max(int(batch.size * share), 1))
    return SizeEstimate(tuple(offsets), tuple(sizes))
