"""Records of `__transaction_state` as bytes: a transactional id, and where its transaction stands.

Each key and value begins with its version as int16. Knows bytes and these values only; what they mean is the
coordinator's affair. A null value is a tombstone and never comes here.

Source: Kafka's TransactionLog; the schemas stand in `resources/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from spark_groupsource.errors import CorruptRecordError, RemoteProtocolError
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.decoder import decode_exactly
from spark_groupsource.wire.messages import TransactionLogKey, TransactionLogValue

_KEY_VERSION = 0
_VALUE_VERSION = 1  # the one that is written, as by Kafka 4
_VALUE_VERSIONS = (0, 1)

MAX_TRANSACTIONAL_ID_BYTES = 2**15 - 1
"""Bytes of the longest transactional id that fits in a key."""


class TransactionStatus(IntEnum):
    """Where a transaction stands, by the numbers of the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


@dataclass(frozen=True)
class TransactionValue:
    """One transactional id as stored.

    `start_ms` is -1 before the first transaction, `previous_producer_id` where the id has not changed; both times are
    epoch ms. `partitions` are those that still need a marker when the transaction ends.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = -1
    start_ms: int = -1
    previous_producer_id: int = -1


def encode_key(transactional_id: str) -> bytes:
    return bytes(TransactionLogKey(transactional_id=transactional_id).encode(version=_KEY_VERSION))


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key of a type not known here, which is to be skipped.

    Raises: CorruptRecordError on bytes that do not decode.
    """
    if _version(data, "key") != _KEY_VERSION:
        return None
    return str(_decode(TransactionLogKey, _KEY_VERSION, data).transactional_id)


def encode_value(value: TransactionValue, version: int = _VALUE_VERSION) -> bytes:
    """Value bytes; fields newer than `version` are left out."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        topics.setdefault(topic, []).append(partition)
    entries = [TransactionLogValue.PartitionsSchema(topic=name, partition_ids=ids) for name, ids in topics.items()]
    message = TransactionLogValue(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=int(value.status),
        transaction_partitions=None if value.status is TransactionStatus.EMPTY else entries,
        transaction_last_update_timestamp_ms=value.updated_ms,
        transaction_start_timestamp_ms=value.start_ms,
    )
    return bytes(message.encode(version=version))


def decode_value(data: bytes) -> TransactionValue:
    """A transaction, of any version.

    Raises: CorruptRecordError on bytes that do not decode, on a newer version, and on a status nobody writes.
    """
    version = _version(data, "value")
    if version not in _VALUE_VERSIONS:
        raise CorruptRecordError(
            f"a transaction is stored in version {version}, known are 0 and 1; "
            "a newer broker may have written it: read this log with a newer release of this package"
        )
    message = _decode(TransactionLogValue, version, data)
    try:
        status = TransactionStatus(message.transaction_status)
    except ValueError as error:
        raise CorruptRecordError(f"a transaction is stored with the unknown status {error}") from error
    return TransactionValue(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            TopicPartition(entry.topic, partition)
            for entry in message.transaction_partitions or ()
            for partition in entry.partition_ids
        ),
        updated_ms=message.transaction_last_update_timestamp_ms,
        start_ms=message.transaction_start_timestamp_ms,
        previous_producer_id=message.previous_producer_id if version else -1,
    )


def _version(data: bytes, part: str) -> int:
    if len(data) < 2:
        raise CorruptRecordError(f"a {part} of {len(data)} bytes in __transaction_state is too short for a version")
    return int.from_bytes(data[:2], "big", signed=True)


def _decode(message_class: Any, version: int, data: bytes) -> Any:
    try:
        return decode_exactly(message_class, version, memoryview(data), 2)
    except RemoteProtocolError as error:
        raise CorruptRecordError(f"a record of __transaction_state does not decode: {error}") from error
