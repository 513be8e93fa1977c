"""Producer state of one partition: epochs, sequence numbers, open transactions.

It detects duplicate and out-of-order batches of idempotent producers, and gives the first unstable offset. Snapshots
are in Kafka's format.

Source: Kafka `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`; ProducerSnapshot.json v1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Callable, Mapping, NamedTuple

import google_crc32c

from spark_groupsource.errors import CorruptRecordError, ErrorCode
from spark_groupsource.records.header import BatchHeader

NO_PRODUCER_ID = -1
_NO_EPOCH = -1
# the limit of max.in.flight.requests.per.connection with idempotence (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)
_RETAINED_BATCHES = 5
_SEQUENCE_LIMIT = 2**31

MAX_PRODUCERS, MAX_PRODUCERS_IN_TOTAL = 5_000, 20_000
"""Producers that one partition, and all partitions of a broker, know."""
_MAX_VERIFYING = 10_000
_PRODUCER_BYTES, _VERIFYING_BYTES = 900, 300  # with five batches
_EPOCH_RAISED_BY_MARKER = 2
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, delta, timestamp, coordinator epoch, first offset of transaction
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class BatchMetadata(NamedTuple):
    """Sequence numbers and offsets of a stored batch; sequence numbers are -1 without idempotence."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerCount:
    """The number of producers that all partitions of a broker know, for a limit.

    `verifying` are those whose transaction is being verified. They have a limit of their own: their producer ids may
    be invented, and must not replace producers that have written. `is_budget_full`, whether other state of the broker
    uses the memory of further producers.
    """

    __slots__ = ("is_budget_full", "total", "verifying")

    def __init__(self) -> None:
        self.total = self.verifying = 0
        self.is_budget_full: Callable[[], bool] = lambda: False

    @property
    def total_bytes(self) -> int:
        """The approximate memory of all producers."""
        return _PRODUCER_BYTES * self.total + _VERIFYING_BYTES * self.verifying


@dataclass
class ProducerStateEntry:
    """State of one producer.

    Attributes:
        batches: its last batches, the oldest first.
        coordinator_epoch: of its last transaction marker, -1 without one.
        first_offset: of its open transaction, None without one.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "first_offset", "timestamp_ms")
    epoch: int
    batches: tuple[BatchMetadata, ...]
    coordinator_epoch: int
    first_offset: int | None
    timestamp_ms: int


@dataclass
class _VerificationState:
    """Kafka's `VerificationStateEntry`: the batches of a producer that wait for the first append of a transaction.

    Attributes:
        lowest_sequence: the lowest sequence number of `epoch` so far; later ones must not be stored before it.
        adds_partitions: whether the Produce version adds partitions to the transaction (12 and later).
        timestamp_ms: of the first batch (epoch ms).
    """

    epoch: int
    lowest_sequence: int
    adds_partitions: bool
    timestamp_ms: int


class ProducerBatchError(Exception):
    """A batch or marker is rejected by the state of its producer; `code` is the error code of the response."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProducerStateManager:
    """The producers of one partition, by producer id.

    Above `MAX_PRODUCERS` of the partition, or `MAX_PRODUCERS_IN_TOTAL` of all partitions, a new producer replaces the
    one that has not written for the longest time and has no open transaction, as if producer.id.expiration.ms had
    passed for it. Kafka has no such limit: its quota of new producer ids is per user (KIP-936).

    Attributes: `ongoing`, producer id -> first offset of its open transaction; read-only.
    """

    __slots__ = ("_count", "_producers", "_verifying", "ongoing")

    def __init__(self, count: ProducerCount | None = None) -> None:
        self._count = count or ProducerCount()
        self._producers: dict[int, ProducerStateEntry] = {}  # the one that has written last is the last one
        self.ongoing: dict[int, int] = {}
        self._verifying: dict[int, _VerificationState] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def entries(self) -> Mapping[int, ProducerStateEntry]:
        """Producer id -> its state; read-only."""
        return self._producers

    def last_data_offsets(self) -> dict[int, int]:
        """Producer id -> last offset of its last batch, from which recovery restores the producer."""
        return {number: entry.batches[-1].last_offset for number, entry in self._producers.items() if entry.batches}

    def last_marker_epochs(self) -> dict[int, int]:
        """Producer id -> epoch of its last marker, from which recovery restores a producer without batches."""
        return {number: entry.epoch for number, entry in self._producers.items() if not entry.batches}

    def first_unstable_offset(self) -> int | None:
        """Returns the first offset of all open transactions; None without one."""
        return min(self.ongoing.values(), default=None)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        return producer_id in self.ongoing and self._producers[producer_id].epoch == epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raises: ProducerBatchError for a fenced producer epoch."""
        entry = self._producers.get(producer_id)
        if entry is not None:
            self._check_epoch(entry, producer_id, epoch)

    def start_verification(self, header: BatchHeader, adds_partitions: bool, timestamp_ms: int) -> None:
        """Is called before the first batch of a transaction is verified; if that fails, higher sequences are rejected.

        Source: Kafka `VerificationStateEntry.maybeUpdateLowestSequenceAndEpoch`.
        """
        epoch, sequence = header.producer_epoch, header.base_sequence
        known = self._verifying.get(header.producer_id)
        if known is None:
            while self._verifying and self._count.verifying >= _MAX_VERIFYING:
                self._end_verification(next(iter(self._verifying)))
            self._count.verifying += 1
            state = _VerificationState(epoch, sequence, adds_partitions, timestamp_ms)
            self._verifying[header.producer_id] = state
        elif (epoch, -sequence) > (known.epoch, -known.lowest_sequence):
            known.epoch, known.lowest_sequence = epoch, sequence

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """None if the batch is new, the stored batch if it is a duplicate.

        Raises: ProducerBatchError.
        """
        entry = self._producers.get(header.producer_id)
        if entry is not None:
            self._check_epoch(entry, header.producer_id, header.producer_epoch)
            if header.producer_epoch == entry.epoch:
                last_sequence = _add(header.base_sequence, header.last_offset_delta)
                for stored in entry.batches:
                    if (stored.first_sequence, stored.last_sequence) == (header.base_sequence, last_sequence):
                        return stored
        self._check_verification(header, entry)
        if entry is None or entry.epoch == _NO_EPOCH:
            # its earlier records may have been deleted, so any sequence number is accepted
            return None
        # without batches the epoch started with a marker, which ended a transaction of an earlier epoch
        is_new = header.producer_epoch > entry.epoch or not entry.batches
        expected = 0 if is_new else _add(entry.batches[-1].last_sequence, 1)
        if header.base_sequence != expected:
            raise self._out_of_order(header, expected)
        if entry.first_offset is not None and not header.is_transactional:
            text = f"Producer {header.producer_id} sent a non-transactional batch during its transaction."
            raise ProducerBatchError(ErrorCode.INVALID_TXN_STATE, text)
        return None

    def _check_verification(self, header: BatchHeader, entry: ProducerStateEntry | None) -> None:
        """Raises: ProducerBatchError for a batch after one that is not verified, whatever their epochs."""
        state = self._verifying.get(header.producer_id)
        if state is None:
            return
        if state.adds_partitions and header.base_sequence != 0 and (entry is None or not entry.batches):
            raise self._out_of_order(header, 0)
        if header.base_sequence > state.lowest_sequence:
            raise self._out_of_order(header, state.lowest_sequence)

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int = 1
    ) -> None:
        """Raises: ProducerBatchError for a marker of a fenced producer epoch or coordinator epoch.

        With transaction version 2, the marker of an open transaction has a greater epoch than its records (KIP-1228).
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        is_raised = transaction_version >= _EPOCH_RAISED_BY_MARKER and entry.first_offset is not None
        self._check_epoch(entry, producer_id, epoch - is_raised)
        if coordinator_epoch < entry.coordinator_epoch:
            text = f"Coordinator epoch {coordinator_epoch} is fenced, the current one is {entry.coordinator_epoch}."
            raise ProducerBatchError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, text)

    def _check_epoch(self, entry: ProducerStateEntry, producer_id: int, epoch: int) -> None:
        if epoch < entry.epoch:
            text = f"Epoch {epoch} of producer {producer_id} is fenced, the current one is {entry.epoch}."
            raise ProducerBatchError(ErrorCode.INVALID_PRODUCER_EPOCH, text)

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Adds a data batch that is stored at `base_offset`."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        if header.is_transactional:
            self._end_verification(header.producer_id)
        entry = self._entry(header.producer_id, header.producer_epoch)
        first = last = header.base_sequence
        if first >= 0:
            last = _add(first, header.last_offset_delta)
        entry.timestamp_ms = header.max_timestamp
        entry.batches = (
            *entry.batches[-_RETAINED_BATCHES + 1 :],
            BatchMetadata(first, last, base_offset, base_offset + header.last_offset_delta, header.max_timestamp),
        )
        if header.is_transactional and entry.first_offset is None:
            entry.first_offset = self.ongoing[header.producer_id] = base_offset

    def complete_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp_ms: int
    ) -> int | None:
        """Ends a producer's transaction; returns its first offset, None if it has no records in this partition."""
        state = self._verifying.get(producer_id)
        if state is not None and not (state.adds_partitions and state.epoch == epoch):
            self._end_verification(producer_id)  # else the state is that of the next transaction
        entry = self._entry(producer_id, epoch)
        entry.coordinator_epoch, entry.timestamp_ms = coordinator_epoch, timestamp_ms
        entry.first_offset = None
        return self.ongoing.pop(producer_id, None)

    def _entry(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        """Returns the state of a producer in `epoch`; a new epoch removes the batches and keeps the open transaction.
        """
        entry = self._producers.pop(producer_id, None)
        if entry is None:
            self._make_room()
            self._count.total += 1
            entry = ProducerStateEntry(epoch, (), -1, None, -1)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches = ()
        self._producers[producer_id] = entry
        return entry

    def _make_room(self) -> None:
        """Removes the producers that have written least recently, as far as the limits require it."""
        is_full = self._is_full
        if not is_full and not (self._producers and self._count.is_budget_full()):
            return
        for producer_id in list(self._producers):
            if producer_id not in self.ongoing:
                self._remove(producer_id)
                is_full = self._is_full
            if not is_full:  # one is enough for the budget, which other state may use
                break

    @property
    def _is_full(self) -> bool:
        count = len(self._producers)
        return count >= MAX_PRODUCERS or (count > 0 and self._count.total >= MAX_PRODUCERS_IN_TOTAL)

    def _remove(self, producer_id: int) -> None:
        del self._producers[producer_id]
        self._count.total -= 1

    def _end_verification(self, producer_id: int) -> None:
        if self._verifying.pop(producer_id, None) is not None:
            self._count.verifying -= 1

    def close(self) -> None:
        """Must be called when the partition is deleted, or its state is replaced."""
        self._count.total -= len(self._producers)
        self._count.verifying -= len(self._verifying)
        self._producers, self._verifying = {}, {}

    def remove_expired(self, until_ms: int) -> None:
        """Removes producers without open transaction whose last timestamp is at most `until_ms` (epoch ms).

        As in Kafka, record timestamps count.
        """
        for number in [number for number, entry in self._producers.items() if entry.timestamp_ms <= until_ms]:
            if number not in self.ongoing:
                self._remove(number)
        for number in [number for number, state in self._verifying.items() if state.timestamp_ms <= until_ms]:
            self._end_verification(number)

    def _out_of_order(self, header: BatchHeader, expected: int) -> ProducerBatchError:
        return ProducerBatchError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Producer {header.producer_id} sent sequence number {header.base_sequence}, expected {expected}.",
        )

    def encode(self) -> bytes:
        """Kafka's producer snapshot, with one row per retained batch, so that duplicates are detected after a restart.

        Kafka writes one row per producer, for its last batch, and reads the last of several rows.
        """
        body = bytearray(_COUNT.pack(0))
        count = 0
        for producer_id, entry in self._producers.items():
            first_offset = -1 if entry.first_offset is None else entry.first_offset
            batches = entry.batches or (BatchMetadata(-1, -1, -1, -1, -1),)
            for last in batches:
                delta = last.last_offset - last.base_offset
                # in the last row that of the producer, which may be that of a marker and decides when it expires
                timestamp = entry.timestamp_ms if last is batches[-1] else last.timestamp_ms
                body += _SNAPSHOT_ENTRY.pack(
                    producer_id, entry.epoch, last.last_sequence, last.last_offset, delta, timestamp,
                    entry.coordinator_epoch, first_offset,
                )  # fmt: skip
                count += 1
        _COUNT.pack_into(body, 0, count)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, google_crc32c.value(bytes(body))) + bytes(body)

    @classmethod
    def decode(cls, data: bytes, producer_count: ProducerCount | None = None) -> ProducerStateManager:
        """Reads a snapshot.

        Raises: CorruptRecordError.
        """
        try:
            version, crc = _SNAPSHOT_HEAD.unpack_from(data)
            body = data[_SNAPSHOT_HEAD.size :]
            (count,) = _COUNT.unpack_from(body)
            is_valid = version == _SNAPSHOT_VERSION and crc == google_crc32c.value(body)
            if not is_valid or len(body) != _COUNT.size + count * _SNAPSHOT_ENTRY.size:
                raise CorruptRecordError("Producer snapshot is invalid: its checksum does not match.")
        except struct.error as error:
            raise CorruptRecordError("Producer snapshot is invalid: it is truncated.") from error
        states = cls(producer_count)
        for values in _SNAPSHOT_ENTRY.iter_unpack(body[_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = values
            entry = states._entry(producer_id, epoch)
            entry.coordinator_epoch, entry.timestamp_ms = coordinator_epoch, timestamp
            if first_offset >= 0:
                entry.first_offset = states.ongoing[producer_id] = first_offset
            if last_offset >= 0:
                first = (last_sequence - delta) % _SEQUENCE_LIMIT if last_sequence >= 0 else -1
                stored = BatchMetadata(first, last_sequence, last_offset - delta, last_offset, timestamp)
                entry.batches = (*entry.batches[-_RETAINED_BATCHES + 1 :], stored)
        return states


def _add(sequence: int, count: int) -> int:
    """Adds to a sequence number, which wraps around to 0 after 2**31 - 1."""
    return (sequence + count) % _SEQUENCE_LIMIT
