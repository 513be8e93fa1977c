"""Encoded record batches, and the identity of their producer.

Source: KIP-98.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import write_header
from spark_groupsource.records.header import HEADER_LAYOUT, TRANSACTIONAL_FLAG, BatchHeader


class EncodedBatch(NamedTuple):
    """A record batch.

    Attributes:
        data: record batch v2, complete with checksum; without a producer. A producer writes its identity into a
            bytearray, which saves a copy.
    """

    topic_partition: TopicPartition
    data: bytes | bytearray
    record_count: int


def stamped(
    data: bytes | bytearray, producer_id: int, producer_epoch: int, base_sequence: int, *, is_transactional: bool
) -> bytearray:
    """Writes the identity of a producer, the sequence of the first record and a new checksum into a record batch.

    Returns: `data`, or a copy if it is not a bytearray.
    """
    batch = data if isinstance(data, bytearray) else bytearray(data)
    header = BatchHeader._make((*HEADER_LAYOUT.unpack_from(batch), 0, len(batch)))
    attributes = header.attributes | TRANSACTIONAL_FLAG if is_transactional else header.attributes & ~TRANSACTIONAL_FLAG
    changed = header._replace(
        attributes=attributes, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )
    write_header(batch, changed)
    return batch
