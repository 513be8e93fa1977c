"""What a partition remembers of its idempotent producers: epochs, sequence numbers and the last few batches.

Decides whether a batch is new, was stored before, or is out of order; knows no file but the form of Kafka's snapshot.

Source: Kafka `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`; ProducerSnapshot.json v1.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import google_crc32c

from spark_groupsource.errors import CorruptRecordError, ErrorCode
from spark_groupsource.records.batch import BatchHeader

NO_PRODUCER_ID = -1
# as many as a client may have in flight (max.in.flight.requests.per.connection with idempotence)
_REMEMBERED_BATCHES = 5
_SEQUENCE_LIMIT = 2**31
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, delta, timestamp, coordinator epoch, first offset of transaction
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class StoredSequence(NamedTuple):
    """A stored batch as its producer numbered it."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


@dataclass
class ProducerEntry:
    """One producer's epoch and its last batches, oldest first."""

    epoch: int
    batches: deque[StoredSequence] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))


class SequenceError(Exception):
    """A batch that must not be stored, by its producer's fault; `code` is the answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProducerStates:
    """The idempotent producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def last_offsets(self) -> dict[int, int]:
        """Producer id -> last offset of its last batch, by which the log tells of the producer."""
        lasts = {number: entry.batches[-1] for number, entry in self._producers.items() if entry.batches}
        return {
            number: last.base_offset + (last.last_sequence - last.first_sequence) % _SEQUENCE_LIMIT
            for number, last in lasts.items()
        }

    def check(self, header: BatchHeader) -> StoredSequence | None:
        """None when the batch is to be stored; what was stored when it is a duplicate.

        Raises: SequenceError.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            # the producer may have been here before its records were deleted, so any first number is taken
            return None
        if header.producer_epoch < entry.epoch:
            raise SequenceError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} sends epoch {header.producer_epoch}, its newest is {entry.epoch}",
            )
        if header.producer_epoch > entry.epoch:
            if header.base_sequence != 0:
                raise self._out_of_order(header, 0)
            return None
        last_sequence = _add(header.base_sequence, header.last_offset_delta)
        for stored in entry.batches:
            if (stored.first_sequence, stored.last_sequence) == (header.base_sequence, last_sequence):
                return stored
        due = _add(entry.batches[-1].last_sequence, 1) if entry.batches else header.base_sequence
        if header.base_sequence != due:
            raise self._out_of_order(header, due)
        return None

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remembers a batch that is stored at `base_offset`."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        entry = self._producers.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._producers[header.producer_id] = ProducerEntry(header.producer_epoch)
        last_sequence = _add(header.base_sequence, header.last_offset_delta)
        entry.batches.append(StoredSequence(header.base_sequence, last_sequence, base_offset, header.max_timestamp))

    def _out_of_order(self, header: BatchHeader, due: int) -> SequenceError:
        return SequenceError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sends sequence number {header.base_sequence} where {due} is due",
        )

    def encode(self) -> bytes:
        """Kafka's snapshot, with a row for each batch that is remembered, so that none of them is stored twice.

        Kafka writes one row for each producer, the last batch's, and takes the last of several.
        """
        body = bytearray(_COUNT.pack(0))
        count = 0
        for producer_id, entry in self._producers.items():
            for last in entry.batches or (StoredSequence(-1, -1, -1, -1),):
                delta = (last.last_sequence - last.first_sequence) % _SEQUENCE_LIMIT
                last_offset = last.base_offset + delta
                body += _SNAPSHOT_ENTRY.pack(
                    producer_id, entry.epoch, last.last_sequence, last_offset, delta, last.timestamp_ms, -1, -1
                )
                count += 1
        _COUNT.pack_into(body, 0, count)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, google_crc32c.value(bytes(body))) + bytes(body)

    @classmethod
    def decode(cls, data: bytes) -> ProducerStates:
        """Reads a snapshot.

        Raises: CorruptRecordError when the bytes are not one.
        """
        try:
            version, crc = _SNAPSHOT_HEAD.unpack_from(data)
            body = data[_SNAPSHOT_HEAD.size :]
            (count,) = _COUNT.unpack_from(body)
            sound = version == _SNAPSHOT_VERSION and crc == google_crc32c.value(body)
            if not sound or len(body) != _COUNT.size + count * _SNAPSHOT_ENTRY.size:
                raise CorruptRecordError("a snapshot of producer states fails its checksum")
        except struct.error as error:
            raise CorruptRecordError("a snapshot of producer states is cut short") from error
        states = cls()
        for values in _SNAPSHOT_ENTRY.iter_unpack(body[_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ = values
            entry = states._producers.get(producer_id)
            if entry is None or entry.epoch != epoch:
                entry = states._producers[producer_id] = ProducerEntry(epoch)
            if last_offset >= 0:
                first = (last_sequence - delta) % _SEQUENCE_LIMIT
                entry.batches.append(StoredSequence(first, last_sequence, last_offset - delta, timestamp))
        return states


def _add(sequence: int, count: int) -> int:
    """Sequence numbers run from 0 to 2**31 - 1 and begin again."""
    return (sequence + count) % _SEQUENCE_LIMIT
