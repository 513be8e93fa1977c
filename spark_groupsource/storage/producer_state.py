"""What a partition remembers of its producers: epochs, sequence numbers, the last few batches, open transactions.

Decides whether a batch is new, was stored before, or is out of order, and up to where the log is stable; knows no file
but the form of Kafka's snapshot.

Source: Kafka `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`; ProducerSnapshot.json v1.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Mapping, NamedTuple

import google_crc32c

from spark_groupsource.errors import CorruptRecordError, ErrorCode
from spark_groupsource.records.header import BatchHeader

NO_PRODUCER_ID = -1
# as many as a client may have in flight (max.in.flight.requests.per.connection with idempotence)
_REMEMBERED_BATCHES = 5
_SEQUENCE_LIMIT = 2**31
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, delta, timestamp, coordinator epoch, first offset of transaction
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class BatchMetadata(NamedTuple):
    """A stored batch as its producer numbered it; a coordinator's batches have no numbers, -1."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass
class ProducerStateEntry:
    """One producer's epoch and its last batches, oldest first.

    `first_offset` is where its open transaction began, None without one; `coordinator_epoch` is the last marker's, -1
    without one.
    """

    epoch: int
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))
    coordinator_epoch: int = -1
    first_offset: int | None = None
    timestamp_ms: int = -1


class ProducerBatchError(Exception):
    """A batch that must not be stored, by its producer's fault; `code` is the answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProducerStateManager:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def entries(self) -> Mapping[int, ProducerStateEntry]:
        """Producer id -> what is remembered; not to be changed."""
        return self._producers

    def last_data_offsets(self) -> dict[int, int]:
        """Producer id -> last offset of its last batch, by which the log tells of the producer."""
        return {number: entry.batches[-1].last_offset for number, entry in self._producers.items() if entry.batches}

    def first_unstable_offset(self, without: int = NO_PRODUCER_ID) -> int | None:
        """Where the oldest open transaction began, that of the producer `without` aside; None when none is open."""
        return min((offset for number, offset in self._open.items() if number != without), default=None)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        return producer_id in self._open and self._producers[producer_id].epoch == epoch

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """None when the batch is to be stored; what was stored when it is a duplicate.

        Raises: ProducerBatchError.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            # the producer may have been here before its records were deleted, so any first number is taken
            return None
        self._check_epoch(entry, header.producer_id, header.producer_epoch)
        if header.producer_epoch > entry.epoch:
            due = 0
        else:
            last_sequence = _add(header.base_sequence, header.last_offset_delta)
            for stored in entry.batches:
                if (stored.first_sequence, stored.last_sequence) == (header.base_sequence, last_sequence):
                    return stored
            # without a batch the epoch began with a marker, which ended a transaction of an older one
            due = _add(entry.batches[-1].last_sequence, 1) if entry.batches else 0
        if header.base_sequence != due:
            raise self._out_of_order(header, due)
        if entry.first_offset is not None and not header.is_transactional:
            text = f"producer {header.producer_id} sends a plain batch while its transaction is open"
            raise ProducerBatchError(ErrorCode.INVALID_TXN_STATE, text)
        return None

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Raises: ProducerBatchError for a marker of a producer or a coordinator that was replaced."""
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        self._check_epoch(entry, producer_id, epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            text = f"a coordinator of epoch {coordinator_epoch} was replaced by one of epoch {entry.coordinator_epoch}"
            raise ProducerBatchError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, text)

    def _check_epoch(self, entry: ProducerStateEntry, producer_id: int, epoch: int) -> None:
        if epoch < entry.epoch:
            text = f"producer {producer_id} sends epoch {epoch}, its newest is {entry.epoch}"
            raise ProducerBatchError(ErrorCode.INVALID_PRODUCER_EPOCH, text)

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Remembers a batch of records that is stored at `base_offset`."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        entry = self._entry(header.producer_id, header.producer_epoch)
        first = last = header.base_sequence
        if first >= 0:
            last = _add(first, header.last_offset_delta)
        entry.timestamp_ms = header.max_timestamp
        entry.batches.append(
            BatchMetadata(first, last, base_offset, base_offset + header.last_offset_delta, header.max_timestamp)
        )
        if header.is_transactional and entry.first_offset is None:
            entry.first_offset = self._open[header.producer_id] = base_offset

    def complete_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp_ms: int
    ) -> int | None:
        """Ends a producer's transaction; returns where it began, None when nothing of it is in this partition."""
        entry = self._entry(producer_id, epoch)
        entry.coordinator_epoch, entry.timestamp_ms = coordinator_epoch, timestamp_ms
        entry.first_offset = None
        return self._open.pop(producer_id, None)

    def _entry(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        """The entry of a producer, with nothing of older epochs but their transaction."""
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerStateEntry(epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        return entry

    def remove_expired(self, until_ms: int) -> None:
        """Forgets producers that last wrote at `until_ms` (epoch ms) or before; never one whose transaction is open.

        The stamps of their records are what counts, as in Kafka.
        """
        for number in [number for number, entry in self._producers.items() if entry.timestamp_ms <= until_ms]:
            if number not in self._open:
                del self._producers[number]

    def _out_of_order(self, header: BatchHeader, due: int) -> ProducerBatchError:
        return ProducerBatchError(
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
            first_offset = -1 if entry.first_offset is None else entry.first_offset
            for last in entry.batches or (BatchMetadata(-1, -1, -1, -1, entry.timestamp_ms),):
                delta = last.last_offset - last.base_offset
                body += _SNAPSHOT_ENTRY.pack(
                    producer_id, entry.epoch, last.last_sequence, last.last_offset, delta, last.timestamp_ms,
                    entry.coordinator_epoch, first_offset,
                )  # fmt: skip
                count += 1
        _COUNT.pack_into(body, 0, count)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, google_crc32c.value(bytes(body))) + bytes(body)

    @classmethod
    def decode(cls, data: bytes) -> ProducerStateManager:
        """Reads a snapshot.

        Raises: CorruptRecordError when the bytes are not one.
        """
        try:
            version, crc = _SNAPSHOT_HEAD.unpack_from(data)
            body = data[_SNAPSHOT_HEAD.size :]
            (count,) = _COUNT.unpack_from(body)
            sound = version == _SNAPSHOT_VERSION and crc == google_crc32c.value(body)
            if not sound or len(body) != _COUNT.size + count * _SNAPSHOT_ENTRY.size:
                raise CorruptRecordError("Producer snapshot is invalid: it fails its checksum.")
        except struct.error as error:
            raise CorruptRecordError("Producer snapshot is invalid: it is cut short.") from error
        states = cls()
        for values in _SNAPSHOT_ENTRY.iter_unpack(body[_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = values
            entry = states._entry(producer_id, epoch)
            entry.coordinator_epoch, entry.timestamp_ms = coordinator_epoch, timestamp
            if first_offset >= 0:
                entry.first_offset = states._open[producer_id] = first_offset
            if last_offset >= 0:
                first = (last_sequence - delta) % _SEQUENCE_LIMIT if last_sequence >= 0 else -1
                stored = BatchMetadata(first, last_sequence, last_offset - delta, last_offset, timestamp)
                entry.batches.append(stored)
        return states


def _add(sequence: int, count: int) -> int:
    """Sequence numbers run from 0 to 2**31 - 1 and begin again."""
    return (sequence + count) % _SEQUENCE_LIMIT
