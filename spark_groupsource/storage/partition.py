"""One partition: its log, what it knows of producers and transactions, and the ways records get into it.

Three of them: what a producer sends is checked in every respect; what a coordinator of this broker writes is taken as
it is; a marker ends a transaction. What a client did wrong is raised as `ApiError`, with the code to answer.

Source: Kafka `UnifiedLog.append`, `LogValidator`, `ProducerStateManager`.
"""

from __future__ import annotations

import struct
import uuid
from typing import Callable, Mapping, NamedTuple

from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.records.compaction import keyed_records
from spark_groupsource.records.decode import CONTROL_ABORT, CONTROL_COMMIT, control_type, decode_records
from spark_groupsource.records.encode import Record, control_key, encode_batch
from spark_groupsource.records.header import BatchHeader, check_crc, iter_batches
from spark_groupsource.records.recompression import recompress
from spark_groupsource.storage import transaction_index as aborted
from spark_groupsource.storage.files import replace_file
from spark_groupsource.storage.leader_epoch_cache import EpochEnd
from spark_groupsource.storage.log import PartitionLog
from spark_groupsource.storage.producer_state import (
    NO_PRODUCER_ID,
    ProducerBatchError,
    ProducerStateEntry,
    ProducerStateManager,
)
from spark_groupsource.storage.reporter import Reporter
from spark_groupsource.storage.transaction_index import AbortedTransaction, TransactionIndex

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
_ZSTD = 4
_MAGIC_AT = 16
_FORMER_MAGIC = (0, 1)
_NO_TIMESTAMP = -1
# version, coordinator epoch
_MARKER = struct.Struct(">hi")


class RejectedBatchError(ApiError):
    """A whole, sound batch is refused for what is in it.

    Attributes: `log_start_offset`, which Kafka tells with it; `record_errors`, the number in the batch of each record
    that is to blame, and why, where single records are.
    """

    def __init__(
        self, code: ErrorCode, message: str, log_start_offset: int, record_errors: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(code, message)
        self.log_start_offset = log_start_offset
        self.record_errors = dict(record_errors or {})


class AppendResult(NamedTuple):
    """Where a produced batch stands.

    `log_append_time_ms` is -1 unless the broker stamps the records; of one that was stored before it is its timestamp.
    """

    base_offset: int
    log_append_time_ms: int
    size: int


TransactionVerifier = Callable[[BatchHeader], None]
"""Is asked before the first batch of a transaction is stored; raises ApiError when it belongs to none."""


class Partition:
    """One partition: its log, its producers, or why it is offline."""

    def __init__(self, topic_id: uuid.UUID, log: PartitionLog, report: Reporter) -> None:
        self.topic_id = topic_id
        self.topic_partition = log.topic_partition
        self.log = log
        self.offline_reason: str = ""
        self.transaction_index = TransactionIndex()
        self._producers = ProducerStateManager()
        self._report = report
        log.on_roll = self._write_snapshot

    def open(self, recovery_point: int | None) -> None:
        """Opens the log and rebuilds what is known of producers; trouble makes this partition offline, no other."""
        try:
            self.log.open(recovery_point)
            self._load_producers()
        except (StorageError, OSError) as error:
            self.mark_offline(error)

    def mark_offline(self, error: Exception) -> None:
        """Refuses everything from now on: nobody knows what is on the disk until a start has looked."""
        self.offline_reason = str(error)
        self._report(f"{self.topic_partition} is offline: {error}")

    def close(self) -> None:
        """Writes what speeds up the next start.

        Raises: StorageError.
        """
        if not self.offline_reason:
            self.log.close()
            if len(self._producers):
                self._write_snapshot(self.log.log_end_offset)

    def check_online(self) -> None:
        """Raises: ApiError when the partition cannot be used."""
        if self.offline_reason:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason)

    # --- leader epochs ---

    def assign_leader_epoch(self, epoch: int) -> None:
        """Starts a leader epoch at the log end, unless it has started; records appended from now on belong to it."""
        if self.offline_reason:
            return
        try:
            self.log.leader_epochs.assign(epoch, self.log.log_end_offset)
        except StorageError as error:
            self._report(f"leader epoch {epoch} of {self.topic_partition} is not written down: {error}")

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The end offset of a leader epoch.

        Raises: StorageError.
        """
        return self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)

    # --- transactions ---

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended."""
        first = self._producers.first_unstable_offset()
        return self.log.log_end_offset if first is None else max(first, self.log.log_start_offset)

    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """Producer id -> what is remembered of it; not to be changed."""
        return self._producers.entries()

    # --- append ---

    def append(
        self,
        records: bytes | bytearray | memoryview,
        timestamp_ms: int,
        *,
        zstd: bool = True,
        verify: TransactionVerifier | None = None,
    ) -> AppendResult:
        """Checks what a producer sent and stores it; a batch that was stored before is answered as it was then.

        Raises: ApiError.
        """
        self.check_online()
        header = self._check_batch(records, zstd)
        records = memoryview(records)[: header.size]
        self._check_records(records, header, timestamp_ms)
        if header.producer_id != NO_PRODUCER_ID:
            try:
                stored = self._producers.check(header)
            except ProducerBatchError as error:
                raise RejectedBatchError(error.code, str(error), self.log.log_start_offset) from error
            if stored is not None:
                return AppendResult(stored.base_offset, stored.timestamp_ms, 0)
            known = self._producers.has_open_transaction(header.producer_id, header.producer_epoch)
            if header.is_transactional and not known and verify is not None:
                verify(header)
        return self._store(*self._in_own_codec(records, header), timestamp_ms)

    def append_from_coordinator(self, batch: bytes, timestamp_ms: int) -> AppendResult:
        """Stores a batch that a coordinator of this broker made.

        Raises: ApiError.
        """
        self.check_online()
        self._check_size(len(batch))
        return self._store(batch, next(iter_batches(batch)), timestamp_ms)

    def append_transaction_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, coordinator_epoch: int, timestamp_ms: int
    ) -> AppendResult:
        """Ends a producer's transaction in this partition, also where it has none, for nobody may know.

        Raises: ApiError.
        """
        self.check_online()
        try:
            self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        except ProducerBatchError as error:
            raise ApiError(error.code, str(error)) from error
        key = control_key(CONTROL_COMMIT if committed else CONTROL_ABORT)
        batch = encode_batch(
            [Record(key, _MARKER.pack(0, coordinator_epoch), timestamp_ms)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=True,
        )
        return self._store(batch, next(iter_batches(batch)), timestamp_ms)

    def _store(self, records: bytes | bytearray | memoryview, header: BatchHeader, timestamp_ms: int) -> AppendResult:
        stamped = self.log.config.message_timestamp_type == "LogAppendTime"
        try:
            base_offset = self.log.append(bytearray(records), header, timestamp_ms if stamped else None)
        except StorageError as error:
            self._report(f"{self.topic_partition}: {error}")
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        row = self._note(records, header, base_offset)
        try:
            if row is not None:
                aborted.append(self.log.segments[-1].path, row)
            self.log.flush_if_due()
        except StorageError as error:
            self.mark_offline(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return AppendResult(base_offset, timestamp_ms if stamped else -1, header.size)

    def _note(
        self, buffer: bytes | bytearray | memoryview, header: BatchHeader, base_offset: int
    ) -> AbortedTransaction | None:
        """Remembers a stored batch; returns the transaction it has aborted, if it did."""
        if not header.is_control:
            self._producers.update(header, base_offset)
            return None
        marker = next(decode_records(buffer, header), None)
        if marker is None or marker.value is None or len(marker.value) < _MARKER.size:
            return None  # compaction has removed the transaction and its marker
        _, coordinator_epoch = _MARKER.unpack_from(marker.value)
        producer_id = header.producer_id
        epoch, timestamp_ms = header.producer_epoch, marker.timestamp_ms
        first = self._producers.complete_transaction(producer_id, epoch, coordinator_epoch, timestamp_ms)
        if first is None or control_type(buffer, header) != CONTROL_ABORT:
            return None
        unstable = self._producers.first_unstable_offset()
        row = AbortedTransaction(producer_id, first, base_offset, base_offset + 1 if unstable is None else unstable)
        self.transaction_index.add(row)
        return row

    def _check_batch(self, records: bytes | bytearray | memoryview, zstd: bool) -> BatchHeader:
        if len(records) > _MAGIC_AT and records[_MAGIC_AT] in _FORMER_MAGIC:
            raise ApiError(ErrorCode.INVALID_RECORD, "message format v0 and v1 are not taken since Produce version 3")
        try:
            headers = list(iter_batches(records))
            # half a batch behind it is let go, as Kafka lets it go
            if len(headers) != 1:
                raise ApiError(ErrorCode.INVALID_RECORD, "a partition takes exactly one whole record batch per request")
            header = headers[0]
            self._check_size(header.size)
            check_crc(records, header)
        except CorruptRecordError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if header.codec > _ZSTD or (header.codec == _ZSTD and not zstd):
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} cannot be taken here")
        return header

    def _check_records(self, records: memoryview, header: BatchHeader, timestamp_ms: int) -> None:
        text = ""
        if header.is_control or header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
            text = "a producer sends whole batches of data records, counted from 0"
        elif header.base_offset != 0:
            text = f"The baseOffset of the record batch should be 0, but it is {header.base_offset}"
        elif header.is_transactional and header.producer_id == NO_PRODUCER_ID:
            text = "a batch of a transaction names its producer"
        elif header.producer_id != NO_PRODUCER_ID and (header.base_sequence < 0 or header.producer_epoch < 0):
            text = "a producer with an id numbers its batches from 0"
        if text:
            raise RejectedBatchError(ErrorCode.INVALID_RECORD, text, self.log.log_start_offset)
        if self.log.config.is_compacted:
            self._check_keys(records, header)
        self._check_times(records, header, timestamp_ms)

    def _in_own_codec(
        self, records: memoryview, header: BatchHeader
    ) -> tuple[bytes | bytearray | memoryview, BatchHeader]:
        codec = self.log.config.codec
        if codec is None or codec == header.codec:
            return records, header
        try:
            batch, header = recompress(records, header, codec, self.log.config.codec_level)
        except CorruptRecordError as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
        self._check_size(header.size)  # what fitted before may not any more
        return batch, header

    def _check_size(self, size: int) -> None:
        limit = self.log.config.max_message_bytes
        if size > limit:
            text = f"a batch of {size} bytes is above max.message.bytes ({limit}) of {self.topic_partition}"
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, text)

    def _check_keys(self, records: bytes | bytearray | memoryview, header: BatchHeader) -> None:
        try:
            _, keyed = keyed_records(records, header)
        except CorruptRecordError as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
        text = f"Compacted topic cannot accept message without key in topic partition {self.topic_partition}."
        errors = {number: text for number, record in enumerate(keyed) if record.key is None}
        if errors:
            raise RejectedBatchError(ErrorCode.INVALID_RECORD, text, self.log.log_start_offset, errors)

    def _check_times(self, records: memoryview, header: BatchHeader, timestamp_ms: int) -> None:
        config = self.log.config
        if config.message_timestamp_type != "CreateTime":
            return
        earliest = timestamp_ms - config.message_timestamp_before_max_ms
        latest = timestamp_ms + config.message_timestamp_after_max_ms
        if earliest < 0 and header.max_timestamp <= latest:
            return  # the usual case is decided by the header
        try:
            errors = {
                number: f"Timestamp {record.timestamp_ms} is out of range, which is {earliest} to {latest}"
                for number, record in enumerate(decode_records(records, header))
                if record.timestamp_ms != _NO_TIMESTAMP and not earliest <= record.timestamp_ms <= latest
            }
        except CorruptRecordError as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
        if errors:
            text = "One or more records have been rejected due to invalid timestamp"
            raise RejectedBatchError(ErrorCode.INVALID_TIMESTAMP, text, self.log.log_start_offset, errors)

    def last_data_offsets(self) -> Mapping[int, int]:
        """Producer id -> last offset of its last batch, which compaction must leave."""
        return self._producers.last_data_offsets()

    def remove_expired_producers(self, until_ms: int) -> None:
        """Forgets producers that last wrote at `until_ms` (epoch ms) or before."""
        self._producers.remove_expired(until_ms)

    def _load_producers(self) -> None:
        start = self.log.log_start_offset
        bases = {segment.path.with_suffix(".snapshot") for segment in self.log.segments}
        rows = self._read_aborted()
        snapshots = self.log.directory.glob("*.snapshot")
        for path in sorted(snapshots, reverse=True) if rows is not None else ():
            if path.stem.isdigit() and start <= int(path.stem) <= self.log.log_end_offset:
                try:
                    self._producers = ProducerStateManager.decode(path.read_bytes())
                    start = int(path.stem)
                    break
                except CorruptRecordError as error:
                    self._report(f"{path}: {error}; the log is read instead")
        self.transaction_index = TransactionIndex([row for row in rows or () if row.last_offset < start])
        try:
            for stored in self.log.batches(start, check=False):
                self._note(stored.buffer, stored.header, stored.header.base_offset)
        except CorruptRecordError:
            pass  # the damage is reported by the log, which takes no more records until it is mended
        for segment in self.log.segments:
            if rows is None or segment.next_offset > start:
                aborted.write(segment.path, self.transaction_index.between(segment.base_offset, segment.next_offset))
        for path in self.log.directory.glob("*.snapshot"):
            if path not in bases:
                path.unlink()

    def _read_aborted(self) -> list[AbortedTransaction] | None:
        """The aborted transactions that the index files tell of; None when they cannot be believed."""
        try:
            return aborted.read_all(self.log.directory)
        except CorruptRecordError as error:
            self._report(f"{error}; the log is read instead")
            return None

    def _write_snapshot(self, offset: int) -> None:
        replace_file(self.log.directory / f"{offset:020d}.snapshot", self._producers.encode())
