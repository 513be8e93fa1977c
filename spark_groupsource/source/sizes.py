"""How large the records of a backlog are, for the limit by bytes: measured by one small fetch at each begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from spark_groupsource.client.cluster import Cluster
from spark_groupsource.client.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.batch import iter_batches
from spark_groupsource.source.planning import Sizes

# of each partition; the broker always sends one whole batch, however large
_SAMPLE_BYTES = 64 << 10
_ANSWER_BYTES = 4 << 20


def measure(cluster: Cluster, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, Sizes]:
    """Sizes of the records at `begins`, all of which must be in the log; a partition that fails to tell is left out.

    Raises: BrokerError, ConnectionFailed, CorruptRecordError.
    """
    settings = replace(cluster.settings, max_partition_fetch_bytes=_SAMPLE_BYTES, fetch_max_bytes=_ANSWER_BYTES)
    measured = {}
    ranges = [OffsetRange(p, begin, begin + 1) for p, begin in begins.items()]
    for block in PartitionFetcher(cluster, settings).fetch_blocks(ranges):
        sizes = _sizes(block.data, begins[block.topic_partition])
        if len(sizes.offsets) > 1:
            measured[block.topic_partition] = sizes
    return measured


def _sizes(data: memoryview, begin: int) -> Sizes:
    offsets, sizes = [begin], [0]
    for batch in iter_batches(data):
        if batch.next_offset > offsets[-1]:
            # the first batch may hold records before the begin, which nobody reads again
            share = (batch.next_offset - max(batch.base_offset, begin)) / (batch.next_offset - batch.base_offset)
            offsets.append(batch.next_offset)
            sizes.append(sizes[-1] + max(int(batch.size * share), 1))
    return Sizes(tuple(offsets), tuple(sizes))
