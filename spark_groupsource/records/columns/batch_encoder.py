"""Record batches by partition, encoded from Arrow columns.

Rows are encoded in chunks as they arrive, and the bytes of their records wait by partition until a batch is full. A
record is never a Python object.

Source: Kafka `KafkaProducer`, `RecordAccumulator`, `BuiltInPartitioner` (KIP-480, KIP-794); Spark `KafkaRowWriter`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Collection, Iterator, NamedTuple

import numpy as np
import pyarrow as pa

from spark_groupsource.common.config_def import INT32_MAX
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_arrays import booleans, is_valid, to_numbers
from spark_groupsource.records.columns.binary_columns import (
    binary_bounds,
    byte_lengths,
    is_bytes,
    is_text,
    milliseconds,
    to_binary,
)
from spark_groupsource.records.columns.record_payloads import (
    NUMPY_WRITER,
    OpenBatches,
    RecordWriter,
    Rows,
    encoded_headers,
)
from spark_groupsource.records.compression import compress
from spark_groupsource.records.encode import write_header
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.records.header import HEADER_BYTES, MAGIC, BatchHeader
from spark_groupsource.records.key_partitions import Numbers

# Kafka's upper bound of the length, attributes and deltas of a record
_RECORD_OVERHEAD_BYTES = 21
# of a small record
_SPARE_BYTES = _RECORD_OVERHEAD_BYTES - 5
# of the objects of a batch that waits, beside its records
_OPEN_BATCH_BYTES = 300
_CHUNK_ROWS = 1 << 14
_CHUNK_BYTES = 4 << 20
_NO_KEY = -1
# larger ones are written by NumPy: there is one copy to save, and numba with batches of 64 MB takes more than 256 MB
_COMPILED_RECORD_BYTES = 1_200


class TopicPartitions(NamedTuple):
    """The partitions of a topic: their number, and those without a leader, which receive no records without a key.

    Source: BuiltInPartitioner.nextPartition (Cluster.availablePartitionsForTopic).
    """

    total: int
    leaderless: Collection[int] = ()


PartitionsOf = Callable[[str, int], TopicPartitions]
"""(topic, number of partitions that are needed) -> its partitions"""


class BatchEncoder:
    """Columns of records -> record batches by partition.

    A record with a key is written to the partition that Kafka's Java producer chooses. Records without one are written
    to one partition of the topic until they are `batch_bytes`, then to the next. A column `partition` takes precedence.

    Columns, further ones are ignored: `key` and `value` of bytes or strings of any Arrow type, `topic` of strings,
    `partition` of integers, `headers` as a list of structs of `key` (string) and `value` (bytes), `timestamp`. All but
    `value` may be missing.

    Args:
        partitions_of: returns the partitions of a topic, at least the given number of them if they exist; called once
            per topic, and again for a row with a partition beyond them, which may have been added since.
        topic: of all records; takes precedence over the column.
        codec: an index of `compression.CODECS`.
        level: of the codec, None for its default.
        batch_bytes: largest batch before compression, if it has more than one record (batch.size).
        max_record_bytes: largest record with the header of a batch (max.request.size); by default the topic decides.
        buffer_bytes: bytes that wait for further records, before compression; beyond, the largest batches are yielded
            before they are full.
        timestamp_ms: returns the timestamp of records without one; called once per `add`.
        first_partition: where records without a key begin, modulo the number of partitions. Encoders that begin at
            random partitions distribute small inputs evenly.
        sticky_bytes: of records without a key that one partition receives before the next, None for `batch_bytes`; with
            0 each record is for the next partition.
    """

    def __init__(
        self,
        partitions_of: PartitionsOf,
        *,
        topic: str | None,
        codec: int = 0,
        level: int | None = None,
        batch_bytes: int,
        max_record_bytes: int = INT32_MAX,
        buffer_bytes: int,
        timestamp_ms: Callable[[], int],
        first_partition: int = 0,
        sticky_bytes: int | None = None,
    ) -> None:
        self._codec, self._level, self._timestamp_ms = codec, level, timestamp_ms
        self._batch_bytes, self._max_record_bytes, self._buffer_bytes = batch_bytes, max_record_bytes, buffer_bytes
        self._targets = _Targets(
            partitions_of, topic, batch_bytes if sticky_bytes is None else sticky_bytes, first_partition
        )
        self._open = OpenBatches(*(np.zeros(0, np.int64) for _ in OpenBatches._fields))
        self._waiting: dict[int, _Waiting] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[EncodedBatch]:
        """Adds records; yields the batches that became full.

        Raises: ConfigurationError for a column of another type, a missing topic, a partition that does not exist, and
            a record above `max_record_bytes`.
        """
        columns = _columns_of(batch, self._targets.needs_topics)
        timestamp_ms = self._timestamp_ms()
        sizes = columns.content_sizes() + _RECORD_OVERHEAD_BYTES
        self._check_sizes(columns, sizes)
        for first, after in _chunks(sizes, min(_CHUNK_BYTES, self._buffer_bytes // 4)):
            size = int(sizes[first:after].sum())
            writer = _selector.next(after - first, size)
            part = columns.part(first, after)
            keys = part.binary("key")
            slots = self._targets.slots(part, keys, sizes[first:after] - _SPARE_BYTES, writer)
            self._open = _grown(self._open, self._targets.slot_count)
            closed = min(int((self._open.counts[slots] == 0).sum()), self._targets.slot_count - len(self._waiting))
            yield from self._make_room(size, closed)
            rows = Rows(keys, part.values(), part.headers(), part.timestamps(timestamp_ms), slots)
            payload, pieces = writer.write(rows, self._open, self._batch_bytes)
            view = payload.data
            for slot, is_new, count, start, end, first_ms, max_ms in zip(*(each.tolist() for each in pieces)):
                if is_new:
                    if slot in self._waiting:
                        yield self._complete(slot)
                    self._waiting[slot] = _Waiting(first_ms)
                self._waiting[slot].append(view[start:end], count, max_ms)
            # no further record fits; with a batch size of 0 none does in an empty batch either
            full = np.flatnonzero(self._open.sizes >= self._batch_bytes).tolist()
            yield from (self._closed(slot) for slot in full if slot in self._waiting)
            yield from self._make_room(0, 0)

    def finish(self) -> Iterator[EncodedBatch]:
        """Yields the batches that wait for further records."""
        for slot in sorted(self._waiting):
            yield self._closed(slot)

    def _check_sizes(self, columns: _Columns, sizes: Numbers) -> None:
        """Checks the sizes of records as Kafka's producer does (`RecordTooLargeException`)."""
        limit = self._max_record_bytes
        is_larger = sizes + HEADER_BYTES > limit
        if not is_larger.any():
            return
        row = int(is_larger.argmax())
        size, topic = int(sizes[row]) + HEADER_BYTES, self._targets.topic_of(columns.part(row, row + 1))
        raise ConfigurationError(
            f"A record of topic {topic} is {size} bytes when serialized, which is larger than {limit}, the value of "
            "max.request.size. Increase it and max.message.bytes of the topic, or write smaller records."
        )

    def _make_room(self, added_bytes: int, added_batches: int) -> Iterator[EncodedBatch]:
        """Yields the largest batches, so that at most so many bytes and batches can wait, too."""
        sizes = self._open.sizes
        added = added_bytes + _OPEN_BATCH_BYTES * (added_batches + len(self._waiting))
        excess = int(sizes.sum()) + added - self._buffer_bytes
        if excess <= 0 or not self._waiting:
            return
        ordered = np.argsort(-sizes, kind="stable")
        count = int(np.searchsorted(np.cumsum(sizes[ordered] + _OPEN_BATCH_BYTES), excess)) + 1
        for slot in ordered[: min(count, len(self._waiting))].tolist():
            yield self._closed(slot)

    def _closed(self, slot: int) -> EncodedBatch:
        """Returns the batch of a slot, which is not open any more."""
        self._open.counts[slot] = self._open.sizes[slot] = 0
        return self._complete(slot)

    def _complete(self, slot: int) -> EncodedBatch:
        waiting = self._waiting.pop(slot)
        count, base_ms, max_ms = waiting.count, waiting.base_timestamp, waiting.max_timestamp
        data = waiting.data
        if self._codec:
            with memoryview(data)[HEADER_BYTES:] as records:
                body = compress(self._codec, records, self._level)
            # a bytearray that only becomes shorter keeps its memory
            data.clear()
            data += bytes(HEADER_BYTES)
            data += body
        header = BatchHeader(0, 0, 0, MAGIC, 0, self._codec, count - 1, base_ms, max_ms, -1, -1, -1, count, 0, 0)
        write_header(data, header)
        return EncodedBatch(self._targets.partitions[slot], data, count)


class _Waiting:
    """A batch that waits for further records: its bytes, their number, and timestamps in ms."""

    __slots__ = ("base_timestamp", "count", "data", "max_timestamp")

    def __init__(self, base_timestamp: int) -> None:
        # its header is written last, and its codec is applied then
        self.data = bytearray(HEADER_BYTES)
        self.count, self.base_timestamp, self.max_timestamp = 0, base_timestamp, base_timestamp

    def append(self, records: memoryview, count: int, max_timestamp: int) -> None:
        """Adds records."""
        self.data += records
        self.count += count
        self.max_timestamp = max(self.max_timestamp, max_timestamp)


class _Columns(NamedTuple):
    """The columns that are written, of one length."""

    row_count: int
    arrays: dict[str, pa.Array]

    def part(self, first: int, after: int) -> _Columns:
        """Returns some of the rows."""
        return _Columns(after - first, {name: column[first:after] for name, column in self.arrays.items()})

    def content_sizes(self) -> Numbers:
        """Returns the bytes of key, value and headers of each record, and at most those of their lengths."""
        sizes = np.ones(self.row_count, np.int64)
        for name in ("key", "value"):
            sizes += _field_sizes(byte_lengths(self.arrays[name])) if name in self.arrays else 1
        column = self.get("headers")
        return sizes if column is None else sizes + _HeaderLists(column).sizes()

    def get(self, name: str) -> pa.Array | None:
        """Returns a column; None if it is missing, or all values are null."""
        column = self.arrays.get(name)
        return None if column is None or column.null_count == len(column) else column

    def binary(self, name: str) -> pa.Array | None:
        """Returns a column of bytes; None as `get`."""
        column = self.get(name)
        return None if column is None else to_binary(column)

    def values(self) -> pa.Array:
        """Returns the values."""
        return to_binary(self.arrays["value"])

    def headers(self) -> pa.Array | None:
        """Returns the encoded headers of each record; None if no record has one."""
        column = self.get("headers")
        return None if column is None else _HeaderLists(column).encoded()

    def timestamps(self, default_ms: int) -> Numbers:
        """Returns the timestamps in ms."""
        column = self.get("timestamp")
        if column is None:
            return np.full(self.row_count, default_ms, np.int64)
        return np.where(is_valid(column), milliseconds(column), default_ms)


def _columns_of(batch: pa.RecordBatch, needs_topics: bool) -> _Columns:
    """Returns the columns that are written. Raises: ConfigurationError for a missing one and one of another type."""
    names = batch.schema.names
    if "value" not in names:
        raise ConfigurationError(f"Column value is missing: the columns are {', '.join(names) or 'none'}. Add it.")
    if needs_topics and "topic" not in names:
        raise ConfigurationError("Column topic is missing. Add it, or use the topic option for setting a topic.")
    used = [name for name in _WRITTEN_COLUMNS if name in names and (name != "topic" or needs_topics)]
    arrays = {name: batch.column(name) for name in used}
    for name, column in arrays.items():
        is_allowed, meaning = _WRITTEN_COLUMNS[name]
        if not is_allowed(column.type):
            raise ConfigurationError(f"Column {name} is {column.type}; it must be {meaning}.")
    return _Columns(batch.num_rows, arrays)


class _HeaderLists:
    """Headers of each row: lists of names and values. Raises: ConfigurationError for a null name."""

    def __init__(self, column: pa.Array) -> None:
        offsets = to_numbers(column.offsets).astype(np.int64)
        valid = is_valid(column)
        self._counts = np.where(valid, np.diff(offsets), 0)
        items = column.values[int(offsets[0]) : int(offsets[-1])]
        if int(self._counts.sum()) < len(items):
            # a null may refer to headers
            items = items.filter(booleans(np.repeat(valid, np.diff(offsets))))
        self._names, self._values = items.field(0), items.field(1)
        without = len(items) - int((is_valid(items) & is_valid(self._names)).sum())
        if without:
            raise ConfigurationError(
                f"Column headers has {without} headers without a key. Null header keys are not permitted."
            )

    def sizes(self) -> Numbers:
        """Returns the bytes of the headers of each row, without those of an empty list."""
        items = _field_sizes(byte_lengths(self._names)) + _field_sizes(byte_lengths(self._values))
        ends = np.concatenate(([0], np.cumsum(items)))[np.concatenate(([0], np.cumsum(self._counts)))]
        return np.diff(ends) + _field_sizes(self._counts) - self._counts - 1

    def encoded(self) -> pa.Array | None:
        """Returns the encoded headers of each row; None if no row has one."""
        if not len(self._names):
            return None
        return encoded_headers(self._counts, to_binary(self._names), to_binary(self._values))


class _Targets:
    """The partitions of all topics, and the choice of the partition of each record.

    Attributes:
        partitions: the partition of each slot.
    """

    def __init__(self, partitions_of: PartitionsOf, topic: str | None, sticky_bytes: int, first_partition: int) -> None:
        self._partitions_of, self._topic, self._sticky_bytes = partitions_of, topic, sticky_bytes
        self._first_partition = first_partition
        self.partitions: list[TopicPartition] = []
        self._topics: dict[str, _Topic] = {}

    @property
    def needs_topics(self) -> bool:
        """True if the column `topic` decides."""
        return self._topic is None

    @property
    def slot_count(self) -> int:
        return len(self.partitions)

    def topic_of(self, row: _Columns) -> str:
        """Returns the topic of one row."""
        column = row.get("topic")
        return str(self._topic or (column and column[0].as_py()))

    def slots(self, rows: _Columns, keys: pa.Array | None, sizes: Numbers, writer: RecordWriter) -> Numbers:
        """Returns the slot of each row. Raises: ConfigurationError for no topic and a partition that does not exist."""
        numbers = np.full(rows.row_count, _NO_KEY, np.int64)
        has_number = np.zeros(rows.row_count, np.bool_)
        column = rows.get("partition")
        if column is not None:
            has_number = is_valid(column)
            numbers[has_number] = to_numbers(column)[has_number]
        by_key = ~has_number
        if keys is None:
            by_key[:] = False
        elif keys.null_count:
            by_key &= is_valid(keys)
        hashes = None
        if by_key.any():
            assert keys is not None
            data, bounds = binary_bounds(keys)
            lengths = np.diff(bounds)
            chosen = slice(None) if by_key.all() else by_key
            hashes = np.zeros(rows.row_count, np.int64)
            hashes[chosen] = writer.hashes(data, bounds[:-1][chosen], lengths[chosen])
        for topic, at in self._topics_of(rows):
            self._check_numbers(topic, numbers[at][has_number[at]])
            if hashes is not None:
                numbers[at] = np.where(by_key[at], hashes[at] % topic.count, numbers[at])
            sticky = ~(has_number | by_key)[at]
            if sticky.any():
                found = numbers[at]
                found[sticky] = topic.sticky_partitions(sizes[at][sticky], self._sticky_bytes)
                numbers[at] = found
            numbers[at] = topic.slots[numbers[at]]
        return numbers

    def _topics_of(self, rows: _Columns) -> Iterator[tuple[_Topic, Any]]:
        """Yields each topic and its rows."""
        if self._topic is not None:
            yield self._known(self._topic), slice(None)
            return
        column = rows.binary("topic")
        if column is None or column.null_count:
            raise ConfigurationError(
                "Column topic: null topic present in the data. Use the topic option for setting a topic."
            )
        names = column.dictionary_encode()
        indices = to_numbers(names.indices)
        order = np.argsort(indices, kind="stable")
        bounds = np.searchsorted(indices[order], np.arange(len(names.dictionary) + 1))
        for number, name in enumerate(names.dictionary.to_pylist()):
            yield self._known(name.decode("utf-8", "replace")), order[bounds[number] : bounds[number + 1]]

    def _known(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name, self._first_partition)
            self._describe(topic, 1)
        return topic

    def _describe(self, topic: _Topic, needed: int) -> None:
        """Reads the partitions of a topic; those that it has keep their slots."""
        found = self._partitions_of(topic.name, needed)
        added = range(topic.count, found.total)
        topic.slots = np.append(topic.slots, self.slot_count + np.arange(len(added)))
        self.partitions += (TopicPartition(topic.name, number) for number in added)
        available = [number for number in range(topic.count) if number not in found.leaderless]
        topic.available = np.array(available or range(topic.count), np.int64)

    def _check_numbers(self, topic: _Topic, numbers: Numbers) -> None:
        needed = int(numbers.max(initial=0)) + 1
        if needed > topic.count:
            self._describe(topic, needed)
        is_wrong = (numbers < 0) | (numbers >= topic.count)
        if is_wrong.any():
            raise ConfigurationError(
                f"Column partition is {numbers[is_wrong][0]} in a row of topic {topic.name}, which has {topic.count} "
                f"partitions. It must be from 0 to {topic.count - 1}, or null for the partition of the key."
            )


class _Topic:
    """A topic, and the partition of its records without a key.

    Attributes:
        slots: the slot of each partition.
        available: the partitions of records without a key, which follow each other from `first_partition` on, modulo
            their number.
    """

    def __init__(self, name: str, first_partition: int) -> None:
        self.name = name
        self.slots = self.available = np.zeros(0, np.int64)
        self._position, self._written = first_partition, 0

    @property
    def count(self) -> int:
        return len(self.slots)

    def sticky_partitions(self, sizes: Numbers, sticky_bytes: int) -> Numbers:
        """Returns the partition of each record without a key: the next one after `sticky_bytes`."""
        available: Numbers = self.available
        if not sticky_bytes:
            found = available[(self._position + np.arange(len(sizes))) % len(available)]
            self._position += len(sizes)
            return found
        ends = np.cumsum(sizes)
        found = np.empty(len(sizes), np.int64)
        first, before = 0, -self._written
        while True:
            after = int(np.searchsorted(ends, before + sticky_bytes)) + 1
            found[first:after] = available[self._position % len(available)]
            if after > len(sizes):
                self._written = int(ends[-1]) - before
                return found
            self._position, self._written = self._position + 1, 0
            first, before = after, int(ends[after - 1])
            if after == len(sizes):
                return found


class _WriterSelector:
    """Selects NumPy at first, and the compiled functions once they would have saved the time to load them.

    They save 0.15 us per record and 0.2 us per kB, and loading them takes 0.5 s: loading after as much time bounds the
    total time to twice the optimum. Large records are left to NumPy.
    """

    compile_after_s = 0.5

    def __init__(self) -> None:
        self._saved_s = 0.0

    def next(self, rows: int, size: int) -> RecordWriter:
        """Returns the functions for the next rows, of so many bytes."""
        if size > rows * _COMPILED_RECORD_BYTES:
            return NUMPY_WRITER
        self._saved_s += rows * 0.15e-6 + size * 0.2e-9
        return self._saved_s > self.compile_after_s and compiled_writer() or NUMPY_WRITER


@lru_cache(maxsize=1)
def compiled_writer() -> RecordWriter | None:
    """Returns the compiled functions if numba (extra `fast`) is installed."""
    try:
        from spark_groupsource.records.columns.compiled_payloads import COMPILED_WRITER
    except (ImportError, RuntimeError):
        # RuntimeError: numba has no writable cache directory, and compiling in each process takes longer than it saves
        return None
    return COMPILED_WRITER


_selector = _WriterSelector()


def _chunks(content: Numbers, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the bounds of parts of the rows whose content is at most `max_bytes`, or one row."""
    ends = np.cumsum(content)
    first = before = 0
    while first < len(content):
        after = int(np.searchsorted(ends, before + max_bytes, "right"))
        after = max(first + 1, min(after, first + _CHUNK_ROWS))
        yield first, after
        first, before = after, int(ends[after - 1])


def _field_sizes(lengths: Numbers) -> Numbers:
    """Returns the bytes of fields with these lengths, -1 for a null, and those of the varints of the lengths."""
    sizes = np.maximum(lengths, 0) + 1
    for bits in (6, 13, 20, 27):
        sizes += lengths >= 1 << bits
    return sizes


def _grown(opened: OpenBatches, count: int) -> OpenBatches:
    """Returns the open batches with at least `count` slots."""
    added = count - len(opened.counts)
    if added <= 0:
        return opened
    return OpenBatches(*(np.concatenate((each, np.zeros(added, np.int64))) for each in opened))


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return bool(pa.types.is_null(kind))
    fields = list(kind.value_type)
    return len(fields) == 2 and is_text(fields[0].type) and bool(is_bytes(fields[1].type))


_BYTES = "binary or string, or set {}.format"
_WRITTEN_COLUMNS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (is_bytes, _BYTES.format("key")),
    "value": (is_bytes, _BYTES.format("value")),
    "topic": (is_text, "string"),
    "partition": (lambda kind: pa.types.is_integer(kind) or pa.types.is_null(kind), "int"),
    "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    "timestamp": (lambda kind: pa.types.is_timestamp(kind) or pa.types.is_null(kind), "timestamp"),
}
