"""Output formats of ``offsets-log``: Kafka's dump format, table and JSON.

Source: Kafka 4.3 `DumpLogSegments` with ``--offsets-decoder``.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from spark_groupsource.monitor.offsets.offsets_log import Entry
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.wire.record_json import RECORD_TYPES, UNKNOWN_TAGS

DELETED = "<DELETE>"
_DELETE_HORIZON = 0x40
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COLUMNS = "{:<9} {:<10} {:<24} {:<16} {:<9} {:<30} {}"


# --- dump ---


def batch_line(header: BatchHeader, position: int) -> str:
    """Returns the line of a batch; `position` is its position in the file."""
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
    """Returns the line of a record."""
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
    """Returns the sequence number, which wraps around after 2^31 - 1; -1 for a batch without one."""
    return -1 if header.base_sequence == -1 else (header.base_sequence + delta) % 2**31


def _time_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _java(value: bool) -> str:
    return str(value).lower()


# --- JSON ---


def json_line(entry: Entry) -> str:
    """Returns one JSON object; a null `payload` is a tombstone, absent attributes are omitted."""
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
    """Returns the header; column widths are fixed, so that rows can be printed while reading."""
    return _COLUMNS.format("PARTITION", "OFFSET", "TIME", "TRANSACTION", "TYPE", "GROUP", "CONTENT")


def table_row(entry: Entry) -> str:
    """Returns one record in one line."""
    header = entry.batch
    # a timestamp outside the range of datetime is printed as a number
    try:
        time_utc = _EPOCH + timedelta(milliseconds=entry.record.timestamp_ms)
        time = time_utc.isoformat(timespec="milliseconds")[:23] + "Z"
    except OverflowError:
        time = str(entry.record.timestamp_ms)
    transaction = f"{header.producer_id}/{header.producer_epoch}" if header.is_transactional else "-"
    group = "-" if entry.group is None else entry.group
    return _COLUMNS.format(entry.partition, entry.record.offset, time, transaction, entry.kind, group, _content(entry))


def _content(entry: Entry) -> str:
    if entry.key is None:
        return entry.marker or entry.problem or f"record type {entry.unknown_type}"
    data = None if entry.payload is None else entry.payload["data"]
    if entry.kind == "newer":
        return f"{RECORD_TYPES[int(entry.key['type'])]} {DELETED if data is None else _json(data)}"
    if entry.kind == "group":
        return DELETED if data is None else _group_text(data) + _unknown_text(data)
    partition = f"{entry.key['data']['topic']}-{entry.key['data']['partition']}"
    return f"{partition} {DELETED if data is None else _offset_text(data) + _unknown_text(data)}"


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


def _unknown_text(data: dict[str, Any]) -> str:
    """Returns the tagged fields of a newer broker, in the record and in its members."""
    found = [each[UNKNOWN_TAGS] for each in (data, *data.get("members", ())) if UNKNOWN_TAGS in each]
    return "".join(f", {UNKNOWN_TAGS} {_json(tags)}" for tags in found)
