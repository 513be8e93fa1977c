"""Output formats of ``offsets-log``: Kafka's dump format, table and JSON.

Source: Kafka 4.3 `DumpLogSegments` with ``--offsets-decoder``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.decode import StoredRecord, decode_records
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.wire.record_json import RECORD_TYPES, key_json, record_type, value_json

DELETED = "<DELETE>"
_MAX_CLASSIC_TYPE = 2
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_DELETE_HORIZON = 0x40
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COLUMNS = "{:<9} {:<10} {:<24} {:<16} {:<9} {:<30} {}"


class Entry(NamedTuple):
    """One decoded record: `key` and `payload` in the form of `wire.record_json`, or the `marker` of a control batch.

    `payload` is None for a tombstone. `problem` and `unknown_type` are set instead of `key` and `payload`.
    """

    partition: int
    batch: BatchHeader
    record: StoredRecord
    key: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    marker: str = ""
    coordinator_epoch: int = -1
    problem: str = ""
    unknown_type: int | None = None

    @property
    def group(self) -> str | None:
        """The group id of the record, None if unknown."""
        data = self.key["data"] if self.key else None
        return str(data.get("group", data.get("groupId"))) if isinstance(data, dict) else None


def entries(partition: int, buffer: bytes | memoryview, header: BatchHeader) -> Iterator[Entry]:
    """Decodes one batch with a valid checksum; a record that cannot be decoded becomes an entry with `problem`.

    Raises: CorruptRecordError if the batch cannot be decoded.
    """
    for record in decode_records(buffer, header):
        yield _marker(partition, header, record) if header.is_control else _entry(partition, header, record)


def _entry(partition: int, header: BatchHeader, record: StoredRecord) -> Entry:
    if record.key is None:
        return Entry(partition, header, record, problem="The record has no key.")
    try:
        kind = record_type(record.key)
        if kind not in RECORD_TYPES:
            return Entry(partition, header, record, unknown_type=kind)
        payload = None if record.value is None else value_json(record.key, record.value)
        return Entry(partition, header, record, key_json(record.key), payload)
    except CorruptRecordError as error:
        return Entry(partition, header, record, problem=str(error))


def _marker(partition: int, header: BatchHeader, record: StoredRecord) -> Entry:
    try:
        _, kind = _MARKER_KEY.unpack_from(record.key or b"")
        _, epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except struct.error:
        return Entry(partition, header, record, problem="The record is not a transaction marker.")
    return Entry(partition, header, record, marker=_MARKERS.get(kind, f"type {kind}"), coordinator_epoch=epoch)


# --- dump ---


def batch_line(header: BatchHeader, position: int) -> str:
    """The line of a batch; `position` is its position in the file."""
    sequences = (header.base_sequence, _sequence(header, header.last_offset_delta))
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.attributes & _DELETE_HORIZON else "OptionalLong.empty"
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
        f"baseSequence: {sequences[0]} lastSequence: {sequences[1]} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.partition_leader_epoch} "
        f"isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)} "
        f"deleteHorizonMs: {horizon} position: {position} {_time_type(header)}: {header.max_timestamp} "
        f"size: {header.size} magic: {header.magic} compresscodec: {CODECS[header.codec]} crc: {header.crc} "
        "isvalid: true"
    )


def record_line(entry: Entry) -> str:
    """The line of a record."""
    record, header = entry.record, entry.batch
    names = ",".join(name for name, _ in record.headers)
    line = (
        f"| offset: {record.offset} {_time_type(header)}: {record.timestamp_ms} keySize: {_size(record.key)} "
        f"valueSize: {_size(record.value)} sequence: {_sequence(header, record.offset - header.base_offset)} "
        f"headerKeys: [{names}]"
    )
    if entry.marker:
        return f"{line} endTxnMarker: {entry.marker} coordinatorEpoch: {entry.coordinator_epoch}"
    if entry.problem:
        return f"{line} key: Error at offset {record.offset}, skipping. {entry.problem}"
    if entry.unknown_type is not None:
        return f"{line} key: Unknown record type {entry.unknown_type} at offset {record.offset}, skipping."
    return f"{line} key: {_json(entry.key)} payload: {DELETED if entry.payload is None else _json(entry.payload)}"


def _sequence(header: BatchHeader, delta: int) -> int:
    """The sequence number, which wraps around after 2^31 - 1; -1 for a batch without one."""
    return -1 if header.base_sequence == -1 else (header.base_sequence + delta) % 2**31


def _time_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _java(value: bool) -> str:
    return str(value).lower()


# --- JSON ---


def json_line(entry: Entry) -> str:
    """One JSON object; a null `payload` is a tombstone, absent attributes are omitted."""
    record, header = entry.record, entry.batch
    form: dict[str, Any] = {"partition": entry.partition, "offset": record.offset, "timestamp": record.timestamp_ms}
    if header.is_transactional:
        form["transaction"] = {"producerId": header.producer_id, "producerEpoch": header.producer_epoch}
    if entry.marker:
        form["marker"] = {"type": entry.marker, "coordinatorEpoch": entry.coordinator_epoch}
    elif entry.problem:
        form["error"] = entry.problem
    elif entry.unknown_type is not None:
        form["key"] = {"type": str(entry.unknown_type)}
    else:
        form["key"], form["payload"] = entry.key, entry.payload
    return _json(form)


def _json(form: Any) -> str:
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"))


# --- table ---


def table_header() -> str:
    """The header; column widths are fixed, so that rows can be printed while reading."""
    return _COLUMNS.format("PARTITION", "OFFSET", "TIME", "TRANSACTION", "TYPE", "GROUP", "CONTENT")


def table_row(entry: Entry) -> str:
    """One record in one line."""
    header = entry.batch
    # a timestamp outside the range of datetime is printed as a number
    try:
        time_utc = _EPOCH + timedelta(milliseconds=entry.record.timestamp_ms)
        time = time_utc.isoformat(timespec="milliseconds")[:23] + "Z"
    except OverflowError:
        time = str(entry.record.timestamp_ms)
    transaction = f"{header.producer_id}/{header.producer_epoch}" if header.is_transactional else "-"
    kind, content = _type_and_content(entry)
    group = "-" if entry.group is None else entry.group
    return _COLUMNS.format(entry.partition, entry.record.offset, time, transaction, kind, group, content)


def _type_and_content(entry: Entry) -> tuple[str, str]:
    if entry.marker:
        return "marker", entry.marker
    if entry.problem:
        return "error", entry.problem
    if entry.key is None:
        return "unknown", f"record type {entry.unknown_type}"
    data_key, payload = entry.key["data"], entry.payload
    kind = int(entry.key["type"])
    if kind > _MAX_CLASSIC_TYPE:
        return "newer", f"{RECORD_TYPES[kind]} {DELETED if payload is None else _json(payload['data'])}"
    data = None if payload is None else payload["data"]
    if kind == 2:
        return "group", DELETED if data is None else _group_text(data)
    partition = f"{data_key['topic']}-{data_key['partition']}"
    return "offset", f"{partition} {DELETED}" if data is None else f"{partition} {_offset_text(data)}"


def _offset_text(data: dict[str, Any]) -> str:
    epoch = f" epoch {data['leaderEpoch']}" if data.get("leaderEpoch", -1) >= 0 else ""
    metadata = f" metadata {data['metadata']!r}" if data["metadata"] else ""
    return f"{data['offset']}{epoch}{metadata}"


def _group_text(data: dict[str, Any]) -> str:
    members = data["members"]
    parts = [f"generation {data['generation']}", f"{len(members)} members"]
    if data["protocol"]:
        parts.insert(1, f"{data['protocolType']}/{data['protocol']}")
    return ", ".join(parts)
