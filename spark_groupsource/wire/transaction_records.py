"""Encoding of the records in `__transaction_state`.

Each key and value starts with its version as int16. Tombstones have no value to decode.

Source: Kafka `TransactionLog`; schemas in `resources/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, repeat

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.decoder import data_version, decode_data
from spark_groupsource.wire.encoder import encode_data
from spark_groupsource.wire.messages import TransactionLogKey, TransactionLogValue

TRANSACTIONS_TOPIC = "__transaction_state"
_KEY_VERSION = 0
_VALUE_VERSION = 1  # the written version, as in Kafka 4
_VALUE_VERSIONS = (0, 1)

MAX_TRANSACTIONAL_ID_BYTES = 2**15 - 1
"""Maximum length of a transactional id in a key."""


class TransactionStatus(IntEnum):
    """States of a transaction, with their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


@dataclass(frozen=True)
class TransactionValue:
    """The record of a transactional id.

    `start_ms` is -1 before the first transaction, `previous_producer_id` is -1 unless the id changed; times are epoch
    ms. `partitions` need a marker when the transaction ends.
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
    return encode_data(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def decode_key(data: bytes) -> str | None:
    """Returns the transactional id of a key; None for an unknown record type, which is skipped.

    Raises: CorruptRecordError if the bytes are invalid.
    """
    if data_version(data, "key", TRANSACTIONS_TOPIC) != _KEY_VERSION:
        return None
    return decode_data(TransactionLogKey, _KEY_VERSION, data, TRANSACTIONS_TOPIC).transactional_id


def encode_value(value: TransactionValue, version: int = _VALUE_VERSION) -> bytes:
    """Encodes a value; fields newer than `version` are omitted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in value.partitions:
        topics.setdefault(topic, []).append(partition)
    entries = [
        TransactionLogValue.PartitionsSchema(topic=name, partition_ids=sorted(topics[name])) for name in sorted(topics)
    ]
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
    return encode_data(message, version)


def decode_value(data: bytes) -> TransactionValue:
    """Decodes a value.

    Raises: CorruptRecordError if the bytes are invalid or version or status are unknown.
    """
    version = data_version(data, "value", TRANSACTIONS_TOPIC)
    if version not in _VALUE_VERSIONS:
        raise CorruptRecordError(
            f"Cannot decode TransactionLogValue: version {version}, supported are 0 and 1. "
            "A newer broker may have written it; use a newer release of this package."
        )
    message = decode_data(TransactionLogValue, version, data, TRANSACTIONS_TOPIC)
    try:
        status = TransactionStatus(message.transaction_status)
    except ValueError as error:
        raise CorruptRecordError(f"Cannot decode TransactionLogValue: {error}.") from error
    return TransactionValue(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            chain.from_iterable(
                map(TopicPartition, repeat(entry.topic), entry.partition_ids)
                for entry in message.transaction_partitions or ()
            )
        ),
        updated_ms=message.transaction_last_update_timestamp_ms,
        start_ms=message.transaction_start_timestamp_ms,
        previous_producer_id=message.previous_producer_id if version else -1,
    )
