"""Records of `__consumer_offsets` as text: lines of Kafka's dump tool, rows of a table, or lines of JSON.

Pure: batches in, text out. Where batches come from, files or a running broker, is the command's business.

Source: Kafka 4.3 `DumpLogSegments` with ``--offsets-decoder``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.batch import BatchHeader, StoredRecord, decode_records
from spark_groupsource.records.compression import CODECS
from spark_groupsource.wire.json_form import RECORD_TYPES, key_form, record_type, value_form

DELETED = "<DELETE>"
_CLASSIC_TYPES = 2  # up to here
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_DELETE_HORIZON = 0x40
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COLUMNS = "{:<9} {:<10} {:<24} {:<16} {:<9} {:<30} {}"


class Entry(NamedTuple):
    """One record, read: `key` and `payload` as `wire.json_form` has them, or `marker` of a control batch.

    `payload` is None for a tombstone. With `problem` set, or `unknown_type`, there is neither.
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
        """The group it is about, None where that is not known."""
        data = self.key["data"] if self.key else None
        return str(data.get("group", data.get("groupId"))) if isinstance(data, dict) else None


def entries(partition: int, buffer: bytes | memoryview, header: BatchHeader) -> Iterator[Entry]:
    """The records of one batch whose checksum is right.

    Raises: CorruptRecordError when the batch does not decode; a record that does not is an entry with its problem.
    """
    for record in decode_records(buffer, header):
        yield _marker(partition, header, record) if header.is_control else _entry(partition, header, record)


def _entry(partition: int, header: BatchHeader, record: StoredRecord) -> Entry:
    if record.key is None:
        return Entry(partition, header, record, problem="it has no key")
    try:
        kind = record_type(record.key)
        if kind not in RECORD_TYPES:
            return Entry(partition, header, record, unknown_type=kind)
        payload = None if record.value is None else value_form(record.key, record.value)
        return Entry(partition, header, record, key_form(record.key), payload)
    except CorruptRecordError as error:
        return Entry(partition, header, record, problem=str(error))


def _marker(partition: int, header: BatchHeader, record: StoredRecord) -> Entry:
    try:
        _, kind = _MARKER_KEY.unpack_from(record.key or b"")
        _, epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except struct.error:
        return Entry(partition, header, record, problem="it is no marker of a transaction")
    return Entry(partition, header, record, marker=_MARKERS.get(kind, f"type {kind}"), coordinator_epoch=epoch)


# --- as Kafka's tool prints it ---


def batch_line(header: BatchHeader, position: int) -> str:
    """The line of a batch; `position` is in its file."""
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
    """Sequence numbers begin again after the largest; -1 where the batch has none."""
    return -1 if header.base_sequence == -1 else (header.base_sequence + delta) % 2**31


def _time_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.log_append_time else "CreateTime"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _java(value: bool) -> str:
    return str(value).lower()


# --- as JSON ---


def json_line(entry: Entry) -> str:
    """One JSON object; `payload` null is a tombstone, and what a record does not have is left out."""
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


# --- as a table ---


def table_header() -> str:
    """The names of the columns; their widths are fixed, so that rows can be printed as they are read."""
    return _COLUMNS.format("PARTITION", "OFFSET", "TIME", "TRANSACTION", "TYPE", "GROUP", "CONTENT")


def table_row(entry: Entry) -> str:
    """One record, the essence of it."""
    header = entry.batch
    # to the millisecond, and for any number: a stamp may be senseless
    try:
        stamp = _EPOCH + timedelta(milliseconds=entry.record.timestamp_ms)
        time = stamp.isoformat(timespec="milliseconds")[:23] + "Z"
    except OverflowError:
        time = str(entry.record.timestamp_ms)
    transaction = f"{header.producer_id}/{header.producer_epoch}" if header.is_transactional else "-"
    kind, content = _essence(entry)
    group = "-" if entry.group is None else entry.group
    return _COLUMNS.format(entry.partition, entry.record.offset, time, transaction, kind, group, content)


def _essence(entry: Entry) -> tuple[str, str]:
    if entry.marker:
        return "marker", entry.marker
    if entry.problem:
        return "error", entry.problem
    if entry.key is None:
        return "unknown", f"record type {entry.unknown_type}"
    about, payload = entry.key["data"], entry.payload
    kind = int(entry.key["type"])
    if kind > _CLASSIC_TYPES:
        return "newer", f"{RECORD_TYPES[kind]} {DELETED if payload is None else _json(payload['data'])}"
    data = None if payload is None else payload["data"]
    if kind == 2:
        return "group", DELETED if data is None else _group_text(data)
    place = f"{about['topic']}-{about['partition']}"
    return "offset", f"{place} {DELETED}" if data is None else f"{place} {_offset_text(data)}"


def _offset_text(data: dict[str, Any]) -> str:
    epoch = f" epoch {data['leaderEpoch']}" if data.get("leaderEpoch", -1) >= 0 else ""
    metadata = f" metadata {data['metadata']!r}" if data["metadata"] else ""
    return f"{data['offset']}{epoch}{metadata}"


def _group_text(data: dict[str, Any]) -> str:
    members = data["members"]
    told = [f"generation {data['generation']}", f"{len(members)} members"]
    if data["protocol"]:
        told.insert(1, f"{data['protocolType']}/{data['protocol']}")
    return ", ".join(told)
