"""Encoded record batches, and the identity of their producer.

Source: KIP-98.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import HEADER_BYTES, HEADER_LAYOUT, TRANSACTIONAL_FLAG, BatchHeader


class EncodedBatch(NamedTuple):
    """A record batch.

    Attributes:
        data: record batch v2, complete with checksum; producer id, producer epoch and base sequence are -1.
    """

    topic_partition: TopicPartition
    data: bytes
    record_count: int


def stamped(
    data: bytes, producer_id: int, producer_epoch: int, base_sequence: int, *, is_transactional: bool
) -> bytes:
    """Returns a record batch with the identity of its producer, the sequence of its first record, and a new checksum.
    """
    header = BatchHeader._make((*HEADER_LAYOUT.unpack_from(data), 0, len(data)))
    attributes = header.attributes | TRANSACTIONAL_FLAG if is_transactional else header.attributes & ~TRANSACTIONAL_FLAG
    changed = header._replace(
        attributes=attributes, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )
    return with_body(changed, memoryview(data)[HEADER_BYTES:])
