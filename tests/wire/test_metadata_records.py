"""Decoding of records that a Kafka 4.3 controller wrote to `__cluster_metadata`."""

from __future__ import annotations

import pytest

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.wire.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionRecord,
    decode_metadata_record,
)

TOPIC_ID = bytes.fromhex("22659667771e49a285e090ca6aeac716")
VECTORS: list[tuple[str, MetadataRecord | None]] = [
    ("010200027422659667771e49a285e090ca6aeac71600", TopicRecord("t", TOPIC_ID)),
    (
        "0103020000000222659667771e49a285e090ca6aeac716020000000102000000010101000000010000000000000000"
        "025f3058db27791c88ca36abaa7d87e7c200",
        PartitionRecord(TOPIC_ID, 2),
    ),
    ("010900" + TOPIC_ID.hex() + "00", RemoveTopicRecord(TOPIC_ID)),
    ("0104000401146d696e2e696e73796e632e7265706c69636173023100", ConfigRecord(4, "", "min.insync.replicas", "1")),
    ("01040002027402620000", ConfigRecord(2, "t", "b", None)),
    ("010f0000000001000000000000000b00000000000003e800", ProducerIdsRecord(1000)),
    ("01170001001212426f6f747374726170207265636f726473", TransactionRecord("begin")),
    ("01180000", TransactionRecord("end")),
    ("0119000000", TransactionRecord("abort")),
    ("010c00116d657461646174612e76657273696f6e001e00", None),  # a feature level
    ("011c00145f5f7472616e73616374696f6e5f737461746500", None),  # a record type that is not decoded
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_records_of_a_controller_are_decoded(data: str, expected: MetadataRecord | None) -> None:
    assert decode_metadata_record(bytes.fromhex(data)) == expected
    # newer versions append fields
    assert decode_metadata_record(bytes.fromhex(data) + b"\1\2\3") == expected


@pytest.mark.parametrize(
    "written", [written for written, meant in VECTORS if meant and not isinstance(meant, TransactionRecord)]
)
def test_incomplete_records_are_corrupt(written: str) -> None:
    whole = bytes.fromhex(written)
    for size in range(3):
        with pytest.raises(CorruptRecordError, match="is corrupt"):
            decode_metadata_record(whole[:size])
    meant = decode_metadata_record(whole)
    for size in range(3, len(whole)):
        try:
            assert decode_metadata_record(whole[:size]) == meant  # the missing fields are not decoded
        except CorruptRecordError as error:
            assert "is corrupt" in str(error)


def test_an_unknown_frame_version_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="frame version 2, supported is 1. Use a newer release"):
        decode_metadata_record(b"\2\2\0")
