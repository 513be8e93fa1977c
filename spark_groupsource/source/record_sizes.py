"""How large the records of a backlog are, for the limit by bytes: told by small fetches at its begin and further on."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.header import iter_batches
from spark_groupsource.source.planning import SizeEstimate, SizeSample, sample_offsets

# of each partition; the broker always sends one whole batch, however large
_SAMPLE_BYTES = 64 << 10
_ANSWER_BYTES = 4 << 20
# beyond that, records are looked at in so many places of what is to be read
_LOOKS = 4
_LOOK_BYTES = 4 << 10


def estimate_sizes(cluster: Cluster, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, SizeEstimate]:
    """Estimates the sizes of the records at `begins`, offsets that exist; omits a partition without a whole batch.

    Raises: BrokerError, NetworkError, CorruptRecordError.
    """
    found = _fetch(cluster, begins, _SAMPLE_BYTES)
    return {p: sizes for p, sizes in found.items() if len(sizes.offsets) > 1}


def extend_estimates(
    cluster: Cluster, measured: Mapping[TopicPartition, SizeEstimate], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, SizeEstimate]:
    """`measured`, and what lies beyond it up to `ends`, looked at in some places.

    Raises: as `estimate_sizes`.
    """
    places = {p: sample_offsets(sizes, ends[p], _LOOKS) for p, sizes in measured.items()}
    seen: dict[TopicPartition, list[SizeSample]] = {p: [] for p in measured}
    for n in range(_LOOKS):
        asked = {p: offsets[n] for p, offsets in places.items() if offsets}
        for p, sizes in _fetch(cluster, asked, _LOOK_BYTES).items():
            if len(sizes.offsets) > 1:
                seen[p].append(SizeSample(asked[p], sizes.density))
    return {p: sizes.beyond(seen[p]) for p, sizes in measured.items()}


def _fetch(cluster: Cluster, begins: Mapping[TopicPartition, int], size: int) -> dict[TopicPartition, SizeEstimate]:
    settings = replace(cluster.settings, max_partition_fetch_bytes=size, fetch_max_bytes=_ANSWER_BYTES)
    ranges = [OffsetRange(p, begin, begin + 1) for p, begin in begins.items()]
    blocks = PartitionFetcher(cluster, settings).fetch_blocks(ranges) if ranges else ()
    return {block.topic_partition: _sizes(block.data, begins[block.topic_partition]) for block in blocks}


def _sizes(data: memoryview, begin: int) -> SizeEstimate:
    offsets, sizes = [begin], [0]
    for batch in iter_batches(data):
        if batch.next_offset > offsets[-1]:
            # the first batch may hold records before the begin, which nobody reads again
            share = (batch.next_offset - max(batch.base_offset, begin)) / (batch.next_offset - batch.base_offset)
            offsets.append(batch.next_offset)
            sizes.append(sizes[-1] + max(int(batch.size * share), 1))
    return SizeEstimate(tuple(offsets), tuple(sizes))
