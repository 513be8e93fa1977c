"""Records of `__consumer_offsets`: read from a cluster and decoded."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Iterator, NamedTuple, Sequence

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, ClusterClient
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.errors import BrokerError, CorruptRecordError
from spark_groupsource.model import OffsetRange, TopicPartition, coordinator_partition
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.decode import StoredRecord, decode_records
from spark_groupsource.records.header import CODEC_MASK, HEADER_BYTES, BatchHeader, check_crc, iter_batches
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.record_json import RECORD_TYPES, key_json, record_type, value_json

# positions of fields in the header of a batch
_LENGTH_START, _LENGTH_END, _ATTRIBUTES_END = 8, 12, 23
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class Batch(NamedTuple):
    """A valid record batch; `position` is its position in the file, -1 for a batch fetched from a broker."""

    partition: int
    header: BatchHeader
    buffer: bytes | memoryview
    position: int


class Corruption(NamedTuple):
    """Bytes that are not a valid record batch; `text` names the file and the position."""

    text: str


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

    @property
    def kind(self) -> str:
        """``offset``, ``group``, ``marker``, ``newer`` (not of a classic group), ``error`` or ``unknown``."""
        if self.marker:
            return "marker"
        if self.problem:
            return "error"
        if self.key is None:
            return "unknown"
        return {"0": "offset", "1": "offset", "2": "group"}.get(self.key["type"], "newer")


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


def log_partitions(cluster: ClusterClient, selection: NameSelection | None = None) -> list[TopicPartition]:
    """Returns the partitions of `__consumer_offsets` that have records of the selected groups; none without the topic.

    Raises: NetworkError.
    """
    found = list(cluster.metadata([OFFSETS_TOPIC], refresh=True).partitions_of(OFFSETS_TOPIC))
    if selection is None or selection.names is None or not found:
        return found
    return sorted({TopicPartition(OFFSETS_TOPIC, coordinator_partition(g, len(found))) for g in selection.names})


def log_ranges(cluster: ClusterClient, partitions: Sequence[TopicPartition]) -> list[OffsetRange]:
    """Returns the readable range of each partition that is not empty, records of open transactions included.

    Raises: BrokerError, NetworkError.
    """
    starts = cluster.list_offsets({tp: EARLIEST for tp in partitions}, read_committed=False)
    ends = cluster.list_offsets({tp: LATEST for tp in partitions}, read_committed=False)
    found = [OffsetRange(tp, starts[tp].offset, ends[tp].offset) for tp in partitions]
    return [part for part in found if part.start < part.end]


def unread_ranges(
    cluster: ClusterClient, partitions: Sequence[TopicPartition], ends: dict[TopicPartition, int]
) -> Iterator[OffsetRange]:
    """Yields the range of each log that follows its offset in `ends`, and sets that to the end once it was read.

    A log that was created again and is shorter is read from its end.

    Raises: as `log_ranges`.
    """
    for part in log_ranges(cluster, partitions):
        start = max(part.start, ends.get(part.topic_partition, part.start))
        if start < part.end:
            yield part._replace(start=start)
        ends[part.topic_partition] = part.end


def _is_plain(data: bytes) -> bool:
    """Returns whether no batch is compressed; without an object per batch, for logs of millions of batches."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = _LENGTH_END + int.from_bytes(data[position + _LENGTH_START : position + _LENGTH_END], "big", signed=True)
        if size < HEADER_BYTES or data[position + _ATTRIBUTES_END - 1] & CODEC_MASK:
            return False
        position += size
    return True


def _contains(data: bytes, header: BatchHeader, containing: Sequence[bytes]) -> bool:
    end = header.position + header.size
    return any(data.find(each, header.position, end) >= 0 for each in containing)


def fetch_batches(
    cluster: ClusterClient, part: OffsetRange, containing: Sequence[bytes] = ()
) -> Iterator[Batch | Corruption]:
    """Yields the record batches of a range with a valid checksum.

    Args:
        containing: without compressing them, batches that contain none of these are omitted. Empty for all batches.
    Raises: BrokerError, NetworkError, DataLossError.
    """
    settings = replace(cluster.settings, isolation_level="read_uncommitted")
    position = part.start
    for block in PartitionFetcher(cluster, settings).fetch_blocks([part]):
        if block.error:
            raise BrokerError(block.error, f"Reading {part.topic_partition} from offset {position}")
        data = bytes(block.data) if containing else b""
        if containing and _is_plain(data) and not any(each in data for each in containing):
            position = block.next_offset
            continue
        for header in iter_batches(block.data):
            if header.last_offset < position:
                continue
            if containing and not header.codec and not _contains(data, header, containing):
                continue
            try:
                check_crc(block.data, header)
            except CorruptRecordError as error:
                yield Corruption(f"{part.topic_partition}: {error}")
                continue
            yield Batch(part.topic_partition.partition, header, block.data, -1)
        position = block.next_offset
