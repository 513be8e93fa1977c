"""Partition: log, producer state and transaction index, updated by each append.

Appends have three origins. Batches of producers are validated; batches of this broker's coordinators are appended as
they are; a transaction marker ends a transaction. Errors that a client caused are raised as `ApiError`.

Source: Kafka `UnifiedLog.append`, `AppendOrigin`, `ProducerStateManager`.
"""

from __future__ import annotations

import logging
import struct
import uuid
from bisect import bisect_right
from typing import Any, Callable, Coroutine, Mapping, NamedTuple

from spark_groupsource.broker.storage.files import replace_file, sync_directory
from spark_groupsource.broker.storage.leader_epoch_cache import EpochEnd
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.log_validator import (
    RejectedBatchError,
    ValidatedBatch,
    begin_validation,
    check_format,
    check_segment_size,
    check_size,
)
from spark_groupsource.broker.storage.producer_state import (
    NO_PRODUCER_ID,
    ProducerBatchError,
    ProducerCount,
    ProducerStateEntry,
    ProducerStateManager,
)
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.broker.storage.transaction_index import AbortedTxn, TransactionIndex
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from spark_groupsource.model import new_tuple
from spark_groupsource.records.decode import CONTROL_ABORT, CONTROL_COMMIT, control_type, decode_records
from spark_groupsource.records.encode import Record, control_key, encode_batch
from spark_groupsource.records.header import LOG_APPEND_TIME_FLAG, BatchHeader, Buffer, decode_header

# version, coordinator epoch
_MARKER_VALUE = struct.Struct(">hi")


class AppendResult(NamedTuple):
    """Where a batch was appended.

    `log_append_time_ms` is -1 unless the broker sets the timestamps; for a duplicate it is the timestamp of the batch
    that was stored first, and `size` is 0.
    """

    base_offset: int
    log_append_time_ms: int
    size: int


class TransactionVerifier(NamedTuple):
    """Verification of the first batch of a transaction.

    `verify` raises ApiError if the batch belongs to no ongoing transaction with the partition; with `adds_partitions`
    it adds the partition to the transaction.
    """

    verify: Callable[[BatchHeader], None]
    adds_partitions: bool = False


def _ignore_roll(base_offset: int) -> None:
    """Replaces the snapshot of producers when the partition is deleted."""


class Partition:
    """One partition.

    Attributes:
        offline_reason: why the partition cannot be used, empty while it is online.
        transaction_index: its aborted transactions.
    """

    __slots__ = (
        "_producer_count", "_producers", "_report", "log", "offline_reason", "topic_id", "topic_partition",
        "transaction_index",
    )  # fmt: skip

    def __init__(
        self, topic_id: uuid.UUID, log: PartitionLog, report: Reporter, producer_count: ProducerCount | None = None
    ) -> None:
        self.topic_id = topic_id
        self.topic_partition = log.topic_partition
        self.log = log
        self.offline_reason = ""
        self.transaction_index = TransactionIndex(str(log.directory))
        self._producer_count = producer_count or ProducerCount()
        self._producers = ProducerStateManager(self._producer_count)
        self._report = report
        log.on_roll = self._write_snapshot

    def open(self, recovery_point: int = 0, is_clean: bool = False, expired_until_ms: int | None = None) -> None:
        """Opens the log and recovers the producer state; an error takes only this partition offline.

        Args: the first two are those of `PartitionLog.open`; producers of a snapshot whose last timestamp is at most
        `expired_until_ms` (epoch ms) are not loaded.
        """
        try:
            self.log.open(recovery_point, is_clean)
            if self.log.directory.exists():
                self._load_producers(expired_until_ms)
        except (StorageError, OSError) as error:
            self.mark_offline(error)

    def mark_offline(self, error: Exception) -> None:
        """Rejects everything from now on: the content of the disk is unknown until the next start recovers it."""
        self.offline_reason = str(error)
        self._report(f"[partition={self.topic_partition}] The partition is offline: {error}", logging.ERROR)

    def close(self) -> None:
        """Writes indexes and the producer snapshot, so that the next start need not scan the log.

        Raises: StorageError.
        """
        if not self.offline_reason:
            self.log.close()
            if len(self._producers) and self.log.has_files:
                self._write_snapshot(self.log.log_end_offset, durable=True)

    def delete(self) -> None:
        """Closes the files of the partition, whose topic was deleted, and removes its producers."""
        self.offline_reason = f"Topic {self.topic_partition.topic} was deleted."
        self.log.close_files()
        self.log.on_roll = _ignore_roll  # else the log refers to its partition, and only a full collection frees them
        self._producers.close()

    def check_online(self) -> None:
        """Raises: ApiError when the partition is offline."""
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
            self._report(f"[partition={self.topic_partition}] Leader epochs before {epoch} are unknown: {error}")

    def last_leader_epoch(self) -> int:
        """The largest leader epoch of the log, 0 if it is unknown."""
        try:
            return self.log.leader_epochs.last_started_epoch()
        except StorageError:
            return 0  # `assign_leader_epoch` reports it

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The end offset of a leader epoch.

        Raises: StorageError.
        """
        return self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch of the record at `offset`, -1 if it is unknown.

        Raises: ApiError when the leader epochs cannot be read.
        """
        try:
            return self.log.leader_epochs.epoch_for_offset(offset)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    # --- producers ---

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction has ended."""
        return self.offsets[1]

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Log end offset, last stable offset and log start offset, with few calls."""
        log = self.log
        end, log_start = log.log_end_offset, log.log_start_offset
        producers = self._producers
        if not producers.ongoing:
            return end, end, log_start
        first = producers.first_unstable_offset()
        return end, end if first is None else max(first, log_start), log_start

    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """Producer id -> its state; read-only."""
        return self._producers.entries()

    def last_data_offsets(self) -> Mapping[int, int]:
        """Producer id -> last offset of its last batch, which compaction retains."""
        return self._producers.last_data_offsets()

    def last_marker_epochs(self) -> Mapping[int, int]:
        """Producer id -> epoch of the transaction marker that compaction retains."""
        return self._producers.last_marker_epochs()

    def remove_expired_producers(self, until_ms: int) -> None:
        """Removes producers whose last batch has a timestamp of at most `until_ms` (epoch ms)."""
        self._producers.remove_expired(until_ms)

    # --- append ---

    def append(
        self,
        records: Buffer,
        timestamp_ms: int,
        *,
        zstd: bool = True,
        verify: TransactionVerifier | None = None,
    ) -> AppendResult:
        """Validates and appends a producer's batch; see `validate` and `append_validated`.

        Raises: ApiError.
        """
        found = self.validate(records, check_format(records, zstd), timestamp_ms)
        batch = found if isinstance(found, ValidatedBatch) else run_at_once(found)
        return self.append_validated(batch, timestamp_ms, verify)

    def validate(
        self, records: Buffer, header: BatchHeader, timestamp_ms: int
    ) -> ValidatedBatch | Coroutine[Any, Any, ValidatedBatch]:
        """Validates a producer's batch; or returns a coroutine, during whose pauses the partition may change.

        Args: `header`, the result of `check_format`.

        Raises: ApiError.
        """
        if self.offline_reason:
            self.check_online()
        return begin_validation(self.log, records, header, timestamp_ms)

    def append_validated(
        self, batch: ValidatedBatch, timestamp_ms: int, verify: TransactionVerifier | None = None
    ) -> AppendResult:
        """Appends a validated batch; a duplicate gets the result of the batch that was stored first.

        Raises: ApiError.
        """
        if self.offline_reason:
            self.check_online()
        header = batch.header
        if header.size > self.log.config.segment_bytes:
            check_segment_size(self.log, header.size)
        if header.producer_id != NO_PRODUCER_ID:
            try:
                if header.is_transactional and verify is not None:
                    self.verify_transaction(header, timestamp_ms, verify)
                duplicate = self._producers.check(header)
            except ProducerBatchError as error:
                raise RejectedBatchError(error.code, str(error), self.log.log_start_offset) from error
            if duplicate is not None:
                return AppendResult(duplicate.base_offset, duplicate.timestamp_ms, 0)
        return self._store(batch.records, header, timestamp_ms)

    def verify_transaction(self, header: BatchHeader, timestamp_ms: int, verifier: TransactionVerifier) -> None:
        """Verifies the first batch of a transaction, before it is compared with the last batch of its producer.

        Raises: ApiError.
        """
        if self.has_open_transaction(header.producer_id, header.producer_epoch):
            return
        self._producers.start_verification(header, verifier.adds_partitions, timestamp_ms)
        verifier.verify(header)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has records of an open transaction in this partition.

        Raises: ApiError for a fenced producer epoch.
        """
        try:
            self._producers.check_epoch(producer_id, epoch)
        except ProducerBatchError as error:
            raise ApiError(error.code, str(error)) from error
        return self._producers.has_open_transaction(producer_id, epoch)

    def append_from_coordinator(self, batch: bytes, timestamp_ms: int) -> AppendResult:
        """Appends a batch of a coordinator of this broker.

        Raises: ApiError.
        """
        if self.offline_reason:
            self.check_online()
        check_size(self.log, len(batch))
        check_segment_size(self.log, len(batch))
        return self._store(batch, decode_header(batch), timestamp_ms)

    def append_transaction_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int,
        timestamp_ms: int,
        transaction_version: int = 1,
    ) -> AppendResult:
        """Ends a producer's transaction in this partition; the marker is also written if there is none.

        Raises: ApiError.
        """
        self.check_online()
        try:
            self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        except ProducerBatchError as error:
            raise ApiError(error.code, str(error)) from error
        key = control_key(CONTROL_COMMIT if committed else CONTROL_ABORT)
        batch = encode_batch(
            [Record(key, _MARKER_VALUE.pack(0, coordinator_epoch), timestamp_ms)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=True,
        )
        return self._store(batch, decode_header(batch), timestamp_ms)

    def _store(self, records: Buffer, header: BatchHeader, timestamp_ms: int) -> AppendResult:
        is_append_time = self.log.config.message_timestamp_type == "LogAppendTime"
        log_append_time_ms = None
        if is_append_time:
            log_append_time_ms = timestamp_ms
            header = header._replace(
                attributes=header.attributes | LOG_APPEND_TIME_FLAG, max_timestamp=log_append_time_ms
            )
        try:
            base_offset = self.log.append(bytearray(records), header, timestamp_ms, log_append_time_ms)
        except StorageError as error:
            self._report(f"[partition={self.topic_partition}] Append failed: {error}", logging.ERROR)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        aborted = self._update_producers(records, header, base_offset)
        try:
            if aborted is not None and self.transaction_index.add(self.log.segments[-1].base_offset, aborted):
                self.log.has_new_files = True
            self.log.flush_if_due()
        except StorageError as error:
            self.mark_offline(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        appended_ms = -1 if log_append_time_ms is None else log_append_time_ms
        return new_tuple(AppendResult, (base_offset, appended_ms, header.size))

    def _update_producers(self, buffer: Buffer, header: BatchHeader, base_offset: int) -> AbortedTxn | None:
        """Updates the producer state with a stored batch; returns the transaction that the batch aborted, if any."""
        if not header.is_control:
            self._producers.update(header, base_offset)
            return None
        marker = next(decode_records(buffer, header), None)
        if marker is None or marker.value is None or len(marker.value) < _MARKER_VALUE.size:
            return None  # compaction removed the marker
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(marker.value)
        producer_id = header.producer_id
        epoch, timestamp_ms = header.producer_epoch, marker.timestamp_ms
        first = self._producers.complete_transaction(producer_id, epoch, coordinator_epoch, timestamp_ms)
        if first is None or control_type(buffer, header) != CONTROL_ABORT:
            return None
        unstable = self._producers.first_unstable_offset()
        last_stable_offset = base_offset + 1 if unstable is None else unstable
        return AbortedTxn(producer_id, first, base_offset, last_stable_offset)

    # --- recovery ---

    def _load_producers(self, expired_until_ms: int | None = None) -> None:
        """Reads the newest valid producer snapshot and replays the batches after it.

        Transaction indexes of recovered segments may be incomplete, so their segments are replayed.
        """
        trusted_end = self.log.first_recovered_offset
        start = self.log.log_start_offset
        is_valid = self._load_transaction_index(trusted_end)
        for path in sorted(self.log.directory.glob("*.snapshot"), reverse=True) if is_valid else ():
            if path.stem.isdigit() and start <= int(path.stem) <= trusted_end:
                try:
                    self._producers = ProducerStateManager.decode(path.read_bytes(), self._producer_count)
                    if expired_until_ms is not None:
                        self._producers.remove_expired(expired_until_ms)
                    start = int(path.stem)
                    break
                except CorruptRecordError as error:
                    self._report(f"[partition={self.topic_partition}] {path}: {error} The log is replayed instead.")
        rows = {
            segment.base_offset: self.transaction_index.rows_below(segment.base_offset, start)
            for segment in self.log.segments
            if not is_valid or segment.next_offset > start
        }
        bases = list(rows)
        try:
            for stored in self.log.batches(start, of_producers=True):
                aborted = self._update_producers(stored.buffer, stored.header, stored.header.base_offset)
                if aborted is not None:
                    rows[bases[bisect_right(bases, aborted.last_offset) - 1]].append(aborted)
        except CorruptRecordError:
            pass  # the log has reported it and accepts no appends
        for base_offset, segment_rows in rows.items():
            self.transaction_index.write(base_offset, segment_rows)
        self._remove_stray_snapshots()

    def _load_transaction_index(self, before: int) -> bool:
        """Counts the aborted transactions in the files of segments below `before`; returns False if one is corrupt."""
        try:
            self.transaction_index.load(before)
            return True
        except CorruptRecordError as error:
            self._report(f"[partition={self.topic_partition}] {error} The log is replayed instead.")
            self.transaction_index = TransactionIndex(str(self.log.directory))
            return False

    def _remove_stray_snapshots(self) -> None:
        """Removes the snapshots that belong to no segment, for example snapshots above the end of a truncated log."""
        known = {segment.path.with_suffix(".snapshot") for segment in self.log.segments}
        strays = [path for path in self.log.directory.glob("*.snapshot") if path not in known]
        for path in strays:
            path.unlink()
        if strays:
            sync_directory(self.log.directory)  # so that a power loss cannot restore a removed snapshot

    def _write_snapshot(self, offset: int, durable: bool = False) -> None:
        # a roll flushes it later: without a valid snapshot, the log is replayed from an earlier one
        replace_file(self.log.directory / f"{offset:020d}.snapshot", self._producers.encode(), durable=durable)
