"""The record batches of a fetched block whose records a consumer returns.

Source: Kafka `CompletedFetch`.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import google_crc32c
import numpy as np

from spark_groupsource.common.config_def import INT64_MAX
from spark_groupsource.records.columns.arrow_arrays import Mask
from spark_groupsource.records.columns.header_columns import HeaderColumns, header_columns
from spark_groupsource.records.decode import CONTROL_ABORT, control_type
from spark_groupsource.records.header import ATTRIBUTES_AT, batch_positions, check_crc, corrupt_batch


class AbortedTransaction(NamedTuple):
    """An aborted transaction of a Fetch response; `first_offset` is the offset of its first record."""

    producer_id: int
    first_offset: int


def select_batches(
    view: memoryview, start_offset: int, end_offset: int, aborted: Sequence[AbortedTransaction] | None
) -> tuple[HeaderColumns, int]:
    """Returns the headers of the batches with records to return, and the next offset to fetch.

    Args:
        aborted: the aborted transactions, None with isolation level read_uncommitted.

    Raises: CorruptRecordError for the first invalid header or checksum in the range, and for an invalid header of the
        two batches after it: the checksum does not cover the base offset, so the batch after the first one out of the
        range must confirm that the range ends there.
    """
    positions, not_a_batch = batch_positions(view)
    headers = header_columns(view, positions)
    inside = leading(headers.base_offset < end_offset)
    confirming = inside + 2
    valid = leading(_is_valid(headers.part(slice(0, confirming))))
    _check_crcs(view, headers.part(slice(0, min(inside, valid))))
    if valid < min(confirming, headers.batch_count):
        _raise_invalid(view, headers, valid)
    if not_a_batch is not None and headers.batch_count < confirming:
        raise not_a_batch
    read = headers.part(slice(0, inside))
    next_offset = end_offset if inside < headers.batch_count else int((read.last_offset + 1).max(initial=start_offset))
    chosen = (read.last_offset >= start_offset) & ~read.is_control
    if aborted:
        chosen &= ~_is_aborted(view, read, aborted)
    return read if chosen.all() else read.part(chosen), max(start_offset, min(next_offset, end_offset))


def leading(mask: Mask) -> int:
    """Returns the number of true values before the first false one."""
    return len(mask) if mask.all() else int(mask.argmin())


def _is_valid(headers: HeaderColumns) -> Mask:
    base, delta, count = headers.base_offset, headers.last_offset_delta, headers.record_count
    # compaction removes records, so a batch may have fewer records than offsets
    valid = (base >= 0) & (delta >= 0) & (count >= 0) & (count <= delta + 1) & (base < INT64_MAX - delta)
    valid[1:] &= base[1:] > headers.last_offset[:-1]
    return valid


def _raise_invalid(view: memoryview, headers: HeaderColumns, index: int) -> None:
    """Raises: CorruptRecordError."""
    header = headers.header(view, index)
    fact = f"its last offset is {header.last_offset}"
    if index and header.base_offset <= headers.last_offset[index - 1]:
        fact = f"the previous batch ends at offset {headers.last_offset[index - 1]}"
    raise corrupt_batch(header.base_offset, header.position, fact)


def _check_crcs(view: memoryview, headers: HeaderColumns) -> None:
    """Verifies checksums without a copy of the batches: the library accepts arrays, but no views of memory."""
    received, extend = np.frombuffer(view, np.uint8), google_crc32c.extend
    starts = (headers.position + ATTRIBUTES_AT).tolist()
    ends = (headers.position + headers.size).tolist()
    for index, (start, end, crc) in enumerate(zip(starts, ends, headers.crc.tolist())):
        if extend(0, received[start:end]) != crc:
            check_crc(view, headers.header(view, index))


def _is_aborted(view: memoryview, headers: HeaderColumns, aborted: Sequence[AbortedTransaction]) -> Mask:
    """Returns which batches belong to aborted transactions.

    A transaction lasts from its first offset to the abort marker of its producer.
    """
    pending = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    producers: set[int] = set()
    found = np.zeros(headers.batch_count, np.bool_)
    last_offsets, ids = headers.last_offset.tolist(), headers.producer_id.tolist()
    flags = zip(headers.is_control.tolist(), headers.is_transactional.tolist())
    for index, (is_control, is_transactional) in enumerate(flags):
        while pending and pending[-1].first_offset <= last_offsets[index]:
            producers.add(pending.pop().producer_id)
        if ids[index] not in producers:
            continue
        if not is_control:
            found[index] = is_transactional
        elif control_type(view, headers.header(view, index)) == CONTROL_ABORT:
            producers.discard(ids[index])
    return found
