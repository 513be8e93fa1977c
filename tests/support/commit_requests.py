"""Topics of OffsetCommit and TxnOffsetCommit requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def commit_topics(request: Any, offsets: Mapping[str, Mapping[int, int]], **fields: Any) -> list[Any]:
    """Returns the topics of a request, with one entry for each partition.

    Args:
        request: OffsetCommitRequest or TxnOffsetCommitRequest.
        offsets: topic -> partition -> offset.
        fields: of each partition, for example committed_metadata.
    """
    topic_class = getattr(request, f"{request.__name__}Topic")
    partition_class = getattr(topic_class, f"{request.__name__}Partition")
    return [
        topic_class(
            name=topic,
            partitions=[
                partition_class(partition_index=number, committed_offset=offset, **fields)
                for number, offset in numbers.items()
            ],
        )
        for topic, numbers in offsets.items()
    ]
