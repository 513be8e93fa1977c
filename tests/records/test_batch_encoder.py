"""Batches encoded from columns are those of the encoder of records."""

from __future__ import annotations

import random
import sys
import tracemalloc
import warnings
from collections import defaultdict
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.record_strategies import KERNELS, decode
from support.record_strategies import table as decoded_table

from spark_groupsource.broker.direct_produce import append
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns import batch_encoder, compiled_payloads
from spark_groupsource.records.columns.batch_encoder import BatchEncoder, TopicPartitions
from spark_groupsource.records.columns.compiled_payloads import COMPILED_WRITER
from spark_groupsource.records.columns.record_lists import record_columns
from spark_groupsource.records.columns.record_payloads import NUMPY_WRITER, RecordWriter
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch, stamped
from spark_groupsource.records.header import HEADER_BYTES, check_crc, iter_batches
from spark_groupsource.records.key_partitions import murmur2, partition_of_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COUNTS = {"t": 3, "flights": 1, "ü": 7}
WRITERS = {"numpy": NUMPY_WRITER, "numba": COMPILED_WRITER}
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


class Selector:
    """Selects given functions for any number of rows."""

    def __init__(self, used: RecordWriter) -> None:
        self._used = used

    def next(self, _rows: int, _size: int) -> RecordWriter:
        return self._used


@pytest.fixture(params=list(WRITERS))
def writer(request, monkeypatch):
    """The functions that write records, used from the first record on."""

    monkeypatch.setattr(batch_encoder, "_selector", Selector(WRITERS[request.param]))
    return WRITERS[request.param]


def encoder(partitions_of: Any = lambda topic, _: TopicPartitions(COUNTS[topic]), **given: Any) -> BatchEncoder:
    settings = {
        "topic": "t", "codec": 0, "level": None, "batch_bytes": 16_384, "max_record_bytes": 1 << 20,
        "buffer_bytes": 32 << 20, "timestamp_ms": lambda: NOW, **given,
    }  # fmt: skip
    return BatchEncoder(partitions_of, **settings)


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Returns an array, which PyArrow cannot create of Python objects for each type."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


def table(**columns: Any) -> pa.RecordBatch:
    """Returns columns of binary values, or the given arrays."""
    arrays = [each if isinstance(each, pa.Array) else pa.array(each, pa.binary()) for each in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def written(used: BatchEncoder, *batches: pa.RecordBatch) -> list[EncodedBatch]:
    return [each for batch in batches for each in used.add(batch)] + list(used.finish())


def records_of(batch: EncodedBatch) -> list[Record]:
    (header,) = iter_batches(batch.data)
    check_crc(batch.data, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    found = [Record(r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in decode_records(batch.data, header)]
    assert len(found) == batch.record_count
    return found


def by_partition(batches: list[EncodedBatch]) -> dict[TopicPartition, list[EncodedBatch]]:
    found = defaultdict(list)
    for batch in batches:
        found[batch.topic_partition].append(batch)
    return found


class Reference:
    """The encoder, record by record."""

    def __init__(self, batch_bytes: int) -> None:
        self._limit = batch_bytes
        self._sticky: dict[str, list[int]] = {}
        self.batches: dict[TopicPartition, list[list[Record]]] = defaultdict(list)

    def add(self, topic: str, partition: int | None, record: Record) -> None:
        if partition is None and record.key is not None:
            partition = partition_of_key(record.key, COUNTS[topic])
        elif partition is None:
            place = self._sticky.setdefault(topic, [0, 0])
            partition = place[0]
            place[1] += content_bytes(record) + 5
            if place[1] >= self._limit:
                place[:] = (place[0] + 1) % COUNTS[topic], 0
        batches = self.batches[TopicPartition(topic, partition)]
        if not batches or len(encode_batch([*batches[-1], record])) > self._limit:
            batches.append([])
        batches[-1].append(record)


def content_bytes(record: Record) -> int:
    """Returns the bytes of key, value and headers with their lengths and number."""
    size = len(encode_batch([record._replace(timestamp_ms=0)])) - HEADER_BYTES
    # length, attributes, timestamp delta and offset delta
    return size - 3 - next(width for width in range(1, 6) if size - width < 1 << 7 * width - 1)


payloads = st.one_of(
    st.none(), st.just(b""), st.binary(max_size=20), st.sampled_from([62, 63, 64, 65, 200, 300]).map(bytes),
    st.integers(8_185, 8_200).map(bytes),
)  # fmt: skip
header_lists = st.one_of(
    st.none(), st.lists(st.tuples(st.sampled_from(["", "a", "ü" * 40]), st.one_of(st.none(), st.binary(max_size=5))))
)
times = st.one_of(st.none(), st.integers(NOW - 70, NOW + 70), st.integers(-(2**62) // 1_000, 2**62 // 1_000))
rows = st.tuples(
    payloads, payloads, header_lists, times, st.sampled_from(list(COUNTS)), st.sampled_from([None, None, 0])
)


@st.composite
def inputs(draw: Any) -> tuple[list[list[Any]], list[pa.RecordBatch]]:
    """Returns rows, and the same rows as sliced record batches with some of the columns."""
    found, batches = [], []
    names = {"value"} | set(draw(st.lists(st.sampled_from(["key", "headers", "timestamp", "topic", "partition"]))))
    for _ in range(draw(st.integers(1, 3))):
        given_rows = draw(st.lists(rows, max_size=15))
        if draw(st.booleans()):
            given_rows = [(None if draw(st.booleans()) else b"k", *each[1:]) for each in given_rows]
        kinds = {
            "key": draw(st.sampled_from(BYTES)),
            "value": draw(st.sampled_from(BYTES)),
            "headers": draw(st.sampled_from([HEADERS, pa.large_list(HEADERS.value_type)])),
            "timestamp": draw(st.sampled_from([pa.timestamp("us"), pa.timestamp("us", "UTC")])),
            "topic": draw(st.sampled_from(TEXTS)),
            "partition": draw(st.sampled_from([pa.int32(), pa.int64()])),
        }
        before = draw(st.integers(0, 3))
        padded = [rows_before] * before + given_rows + [rows_before] if before else given_rows
        values = dict(zip(kinds, zip(*padded) if padded else [()] * len(kinds)))
        values["timestamp"] = [None if ms is None else ms * 1_000 + 999 for ms in values["timestamp"]]
        arrays = {name: column(list(values[name]), kinds[name]) for name in kinds if name in names}
        batches.append(pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))[before:][: len(given_rows)])
        found += [[value if name in names else None for name, value in zip(kinds, row)] for row in given_rows]
    return found, batches


rows_before = (b"before", b"before", [("before", b"1")], 5, "t", 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inputs(), st.sampled_from([0, 80, 200, 600, 16_384]), st.integers(0, len(CODECS) - 1))
def test_batches_are_those_of_single_records(writer: Any, given: Any, batch_bytes: int, codec: int) -> None:
    records, batches = given
    reference = Reference(batch_bytes)
    for key, value, headers, time_ms, topic, partition in records:
        record = Record(key, value, NOW if time_ms is None else time_ms, tuple(headers or ()))
        reference.add(topic or "t", partition, record)
    has_topics = "topic" in batches[0].schema.names
    used = encoder(topic=None if has_topics else "t", batch_bytes=batch_bytes, codec=codec)
    found = by_partition(written(used, *batches))
    encoded = {tp: [(batch.data, batch.record_count) for batch in each] for tp, each in found.items()}
    assert encoded == {
        tp: [(encode_batch(chosen, codec=codec), len(chosen)) for chosen in each]
        for tp, each in reference.batches.items()
    }


def test_batches_of_any_limit_are_those_of_single_records(writer: Any) -> None:
    rng = random.Random(1)
    values = [bytes(rng.choice((0, 1, 5, 70))) for _ in range(60)]
    times = [NOW + rng.choice((0, 0, 70, -9_000)) for _ in values]
    batch = table(key=[b"k"] * 60, value=values, timestamp=pa.array([ms * 1_000 for ms in times], pa.timestamp("us")))
    for limit in range(70, 330, 7):
        reference = Reference(limit)
        for value, time_ms in zip(values, times):
            reference.add("t", None, Record(b"k", value, time_ms))
        found = written(encoder(batch_bytes=limit), batch[:7], batch[7:])
        (expected,) = reference.batches.values()
        assert [each.data for each in found] == [encode_batch(records) for records in expected]


def test_records_without_key_fill_one_batch_after_the_other(writer: Any) -> None:
    used = encoder(batch_bytes=1_000, first_partition=5)
    row = table(value=[bytes(90)])
    found = written(used, *[row] * 100)
    # of 1,000 bytes: 9 records of 97 with the header; the partition changes after 11 records
    assert [(batch.topic_partition.partition, batch.record_count) for batch in found] == [
        *[(number % 3, 9) for number in (2, 3, 4, 5, 6, 7, 8, 9, 10)], (0, 6), (1, 6), (2, 7)
    ]  # fmt: skip


def test_records_without_key_by_turns() -> None:
    used = encoder(sticky_bytes=0, first_partition=1)
    found = by_partition(written(used, table(value=[b"0", b"1"]), table(value=[b"2", b"3", b"4", b"5"])))
    values = {tp.partition: [record.value for record in records_of(*each)] for tp, each in found.items()}
    assert values == {0: [b"2", b"5"], 1: [b"0", b"3"], 2: [b"1", b"4"]}


def test_records_without_key_are_written_to_partitions_with_a_leader(writer: Any) -> None:
    key = next(each for each in (b"%d" % number for number in range(9)) if partition_of_key(each, 4) == 2)
    for leaderless, expected in (({0, 2}, {1, 3}), ({0, 1, 2, 3}, {0, 1, 2, 3})):
        used = encoder(lambda *_, found=leaderless: TopicPartitions(4, found), sticky_bytes=0, first_partition=3)
        found = by_partition(written(used, table(value=[b"v"] * 8)))
        assert {tp.partition for tp in found} == expected
        (keyed,) = written(
            encoder(lambda *_, found=leaderless: TopicPartitions(4, found)), table(key=[key], value=[b""])
        )
        assert keyed.topic_partition.partition == 2


def test_partitions_that_were_added_are_written(writer: Any) -> None:
    counts, asked = {"a": 2, "b": 1}, []

    def partitions_of(topic: str, needed: int) -> TopicPartitions:
        asked.append((topic, needed))
        return TopicPartitions(counts[topic])

    used = encoder(partitions_of, topic=None)

    def add(*rows: tuple[str, int, bytes]) -> None:
        topics, numbers, values = zip(*rows)
        batch = table(topic=pa.array(topics), partition=pa.array(numbers, pa.int32()), value=list(values))
        assert list(used.add(batch)) == []

    add(("a", 0, b"1"), ("b", 0, b"2"), ("a", 1, b"3"))
    counts["a"] = 4
    add(("a", 3, b"4"), ("a", 0, b"5"), ("b", 0, b"6"), ("a", 2, b"7"))
    # once per topic, and again for partition 3
    assert asked == [("a", 1), ("b", 1), ("a", 4)]
    found = {
        tuple(tp): [record.value for record in records_of(*each)]
        for tp, each in by_partition(list(used.finish())).items()
    }
    assert found == {
        ("a", 0): [b"1", b"5"], ("a", 1): [b"3"], ("a", 2): [b"7"], ("a", 3): [b"4"], ("b", 0): [b"2", b"6"]
    }  # fmt: skip


def test_a_batch_waits_until_the_next_record_does_not_fit(writer: Any) -> None:
    used = encoder(batch_bytes=1_000)
    row = table(key=[b"k"], value=[bytes(400)])
    assert [list(used.add(row)) for _ in range(2)] == [[], []]
    (full,) = used.add(row)
    assert full.record_count == 2 and len(full.data) <= 1_000
    (rest,) = used.finish()
    assert rest.record_count == 1 and list(used.finish()) == []
    assert [each.record_count for each in written(used, row)] == [1], "used again after finish"


def test_partitions_that_do_not_exist_are_named(writer: Any) -> None:
    for number in (-1, 3, 2**31 - 1):
        batch = table(value=[b"", b""], partition=pa.array([0, number], pa.int32()))
        message = f"Column partition is {number} in a row of topic t, which has 3 partitions. It must be from 0 to 2,"
        with pytest.raises(ConfigurationError, match=message):
            list(encoder().add(batch))
    topics = pa.array(["t", "flights"])
    batch = table(value=[b"", b""], topic=topics, partition=pa.array([2, 1], pa.int32()))
    with pytest.raises(ConfigurationError, match="is 1 in a row of topic flights, which has 1 partitions"):
        list(encoder(topic=None).add(batch))


def test_records_above_the_limit_are_rejected(writer: Any) -> None:
    # 61 bytes of the batch, 21 of the record, and the lengths of key (1 + 1), value (3) and headers (1)
    fits = table(key=[b"k"], value=[bytes(10_000 - 82 - 6)])
    assert len(written(encoder(max_record_bytes=10_000, batch_bytes=200), fits)) == 1
    larger = table(key=[b"small", b"k"], value=[b"", bytes(10_000 - 82 - 5)])
    message = "A record of topic t is 10001 bytes when serialized, which is larger than 10000, the value of max.request"
    with pytest.raises(ConfigurationError, match=message):
        list(encoder(max_record_bytes=10_000).add(larger))


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"value": [b""], "topic": pa.array([None], pa.string())}, "^Column topic: null topic present in the data."),
        ({"value": [b""], "topic": pa.array([None])}, "^Column topic: null topic present in the data."),
        ({"value": [b""]}, "Column topic is missing. Add it, or use the topic option"),
        ({"topic": pa.array(["t"])}, "Column value is missing: the columns are topic. Add it."),
        ({"topic": pa.array(["t"]), "value": pa.array([1])},
         "Column value is int64; it must be binary or string, or set value.format."),
        ({"topic": pa.array(["t"]), "value": [b""], "key": pa.array([1.5])}, "Column key is double; it must be binary"),
        ({"topic": pa.array([b"t"]), "value": [b""]}, "Column topic is binary; it must be string."),
        ({"topic": pa.array(["t"]), "value": [b""], "partition": pa.array(["0"])}, "Column partition is string; it"),
        ({"topic": pa.array(["t"]), "value": [b""], "headers": pa.array([[b"a"]])}, "Column headers is list<item: bin"),
        ({"topic": pa.array(["t"]), "value": [b""], "timestamp": pa.array([1])}, "Column timestamp is int64; it must"),
        ({"topic": pa.array(["t"]), "value": [b""], "headers": pa.array([[(None, b"a")]], HEADERS)},
         "Column headers has 1 headers without a key. Null header keys are not"),
        ({"topic": pa.array(["t"]), "value": [b""], "headers": pa.array([[None]], HEADERS)}, "Column headers has 1"),
    ],
)  # fmt: skip
def test_invalid_columns_are_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        list(encoder(topic=None).add(table(**columns)))


def test_other_columns_are_ignored_and_the_option_topic_wins() -> None:
    batch = table(value=pa.array(["a"]), topic=pa.array([5]), other=pa.array([{"a": 1}]), headers=pa.array([None]))
    (found,) = written(encoder(), batch)
    assert (found.topic_partition.topic, records_of(found)) == ("t", [Record(None, b"a", NOW)])
    assert written(encoder(), batch[:0]) == []


def test_headers_of_a_null_are_not_written(writer: Any) -> None:
    """Arrow permits a null list to refer to elements."""
    items = pa.array([{"key": "hidden", "value": b"1"}, {"key": "a", "value": b"2"}], HEADERS.value_type)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), items, mask=pa.array([True, False]))
    (found,) = written(encoder(), table(key=[b"k", b"k"], value=[b"v", b"w"], headers=lists))
    assert [record.headers for record in records_of(found)] == [(), (("a", b"2"),)]


@given(st.lists(rows, max_size=10))
def test_record_objects_are_columns(given_rows: Any) -> None:
    records = [Record(*row[:2], -1 if row[3] is None else row[3], tuple(row[2] or ())) for row in given_rows]
    partitions = [row[5] for row in given_rows]
    reference = Reference(16_384)
    for record, partition in zip(records, partitions):
        reference.add("t", partition, record)
    columns = record_columns(records, partitions)
    found = by_partition(written(encoder(), columns))
    expected = {tp: [encode_batch(chosen) for chosen in each] for tp, each in reference.batches.items()}
    assert {tp: [batch.data for batch in each] for tp, each in found.items()} == expected


@pytest.mark.parametrize("codec", range(len(CODECS)))
@pytest.mark.parametrize("is_transactional", [False, True])
def test_stamped_batches_are_those_of_the_producer(codec: int, is_transactional: bool) -> None:
    (found,) = written(encoder(codec=codec), table(key=[b"k"] * 50, value=[b"v" * 20] * 50))
    original = bytes(found.data)
    given = stamped(found.data, 2**40, 7, 2**31 - 1, is_transactional=is_transactional)
    identity = {"producer_id": 2**40, "producer_epoch": 7, "base_sequence": 2**31 - 1}
    records = [Record(b"k", b"v" * 20, NOW)] * 50
    expected = encode_batch(records, codec=codec, transactional=is_transactional, **identity)
    assert given == expected
    # without a copy, and in another transaction of the same batch
    assert given is found.data
    again = stamped(given, 5, 0, 0, is_transactional=False)
    assert again == stamped(original, 5, 0, 0, is_transactional=False) != original


@pytest.mark.parametrize("codec, levels", [("gzip", (1, 9)), ("lz4", (1, 12)), ("zstd", (1, 19))])
def test_levels_of_codecs(codec: str, levels: tuple[int, int]) -> None:
    rng = random.Random(1)
    values = [bytes(rng.choices(b"abcdefgh  ", k=200)) for _ in range(200)]
    sizes = []
    for level in levels:
        (found,) = written(
            encoder(codec=CODECS.index(codec), level=level, batch_bytes=1 << 20), table(key=[b"k"] * 200, value=values)
        )
        assert [record.value for record in records_of(found)] == values
        sizes.append(len(found.data))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("longest", [0, 1, 3, 4, 40, 300])
def test_hashes_are_those_of_single_keys(writer: Any, longest: int) -> None:
    rng = random.Random(longest)
    keys = [rng.randbytes(rng.randint(0, longest)) for _ in range(300)]
    lengths = np.array([len(key) for key in keys])
    data = np.frombuffer(b"".join(keys), np.uint8)
    found = writer.hashes(data, np.cumsum(lengths) - lengths, lengths)
    assert found.tolist() == [murmur2(key) & 0x7FFFFFFF for key in keys]


@pytest.mark.parametrize("record_bytes", [1, 1_000])
def test_compiled_functions_are_loaded_once_they_would_have_saved_the_time_to_load_them(
    monkeypatch: pytest.MonkeyPatch, record_bytes: int
) -> None:
    used: list[str] = []

    def recording(name: str, writer: RecordWriter) -> RecordWriter:
        return writer._replace(write=lambda *given: (used.append(name), writer.write(*given))[1])

    # one that has counted no records
    selector = type(batch_encoder._selector)()
    # 25 rows
    monkeypatch.setattr(selector, "compile_after_s", 25 * (0.15e-6 + (record_bytes + 21) * 0.2e-9))
    monkeypatch.setattr(batch_encoder, "_selector", selector)
    monkeypatch.setattr(batch_encoder, "NUMPY_WRITER", recording("numpy", NUMPY_WRITER))
    for found, expected in ((recording("numba", COMPILED_WRITER), "numba"), (None, "numpy")):
        monkeypatch.setattr(batch_encoder, "compiled_writer", lambda found=found: found)
        written(encoder(), *[table(value=[b"v" * record_bytes] * 10)] * 4)
        assert used[-1] == expected
    assert used[:4] == ["numpy", "numpy", "numba", "numba"]


def test_large_records_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba and Spark's batches of 64 MB would take more than 256 MB."""
    selector = type(batch_encoder._selector)()
    monkeypatch.setattr(selector, "compile_after_s", 0)
    monkeypatch.setattr(batch_encoder, "compiled_writer", lambda: COMPILED_WRITER)
    assert selector.next(1, 3_000_000) is selector.next(1_000, 2_000_000) is NUMPY_WRITER
    assert selector.next(1_000, 1_000_000) is COMPILED_WRITER


def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_groupsource.records.columns.compiled_payloads", None)
    batch_encoder.compiled_writer.cache_clear()
    try:
        assert batch_encoder.compiled_writer() is None
    finally:
        batch_encoder.compiled_writer.cache_clear()


@pytest.mark.parametrize("kind", [*TEXTS, pa.binary(2), pa.dictionary(pa.uint8(), pa.large_string())], ids=str)
def test_keys_and_values_of_any_type_of_bytes(writer: Any, kind: pa.DataType) -> None:
    texts = ["aü", "", None, "aü"]
    values = [b"ab", b"cd", None, b"ab"] if pa.types.is_fixed_size_binary(kind) else texts
    expected = [each.encode() if isinstance(each, str) else each for each in values]
    array = column([values[1], *values], kind)[1:]
    found = [record for batch in written(encoder(), table(key=array, value=array)) for record in records_of(batch)]
    assert sorted(str(record[:2]) for record in found) == sorted(str((each, each)) for each in expected)


def test_each_function_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call for another kind of array takes seconds."""
    monkeypatch.setattr(batch_encoder, "_selector", Selector(COMPILED_WRITER))
    array = pa.array([b"k", None, b"other"], pa.binary())
    mutable, immutable = (
        pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(kind(each.to_pybytes())) for each in array.buffers()])
        for kind in (bytearray, bytes)
    )
    headers = pa.array([[("a", b"b")], None, []], HEADERS)
    partitions = pa.array([0, None, 1], pa.int32())
    for key, value in ((mutable, immutable), (immutable, mutable), (pa.nulls(3), array), (array[:0], array[:0])):
        columns = {"key": key, "value": value}
        for added in ({}, {"headers": headers[: len(key)]}, {"partition": partitions[: len(key)]}):
            assert sum(batch.record_count for batch in written(encoder(), table(**columns, **added))) == len(key)
    kind = numba.core.dispatcher.Dispatcher
    functions = [each for each in vars(compiled_payloads).values() if isinstance(each, kind)]
    # those that only compiled functions call have none if the others are in the cache
    assert max(len(each.signatures) for each in functions) == 1


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_decoder_of_columns_returns_the_columns(writer: Any, kernel: Any) -> None:
    keys = pa.array([b"%d" % (n % 100) if n % 3 else None for n in range(5_000)])
    values = pa.array([bytes(n % 300) if n % 7 else None for n in range(5_000)])
    headers = pa.array([[("n", b"%d" % n)] if n % 5 else None for n in range(5_000)], HEADERS)
    times = pa.array([(NOW + n) * 1_000 for n in range(5_000)], pa.timestamp("us", "UTC"))
    batch = table(key=keys, value=values, headers=headers, timestamp=times)
    rows = []
    for encoded in written(encoder(codec=4), batch):
        found = decoded_table(decode(encoded.data, kernel=kernel))
        assert found.num_rows == encoded.record_count
        rows += found.select(["key", "value", "headers", "timestamp"]).to_pylist()
    assert sorted(rows, key=lambda row: row["timestamp"]) == batch.select(list(rows[0])).to_pylist()


@pytest.mark.parametrize("codec", [0, 1, 3])  # other codecs of kafka-python need more libraries
def test_kafka_python_decodes_the_batches(writer: Any, codec: int) -> None:
    headers = pa.array([[("a", b"1"), ("a", None)], [], None], HEADERS)
    (found,) = written(encoder(codec=codec), table(key=[b"k", b"k", b"k"], value=[b"v", None, b""], headers=headers))
    rows = KafkaPythonRecords(found.data).next_batch()
    assert rows.validate_crc()
    assert [(row.key, row.value, row.timestamp, row.headers) for row in rows] == [
        (b"k", b"v", NOW, [("a", b"1"), ("a", None)]), (b"k", None, NOW, []), (b"k", b"", NOW, []),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_librdkafka_reads_what_the_embedded_broker_accepts(writer: Any, codec: int) -> None:
    headers = pa.array([[("a", b"1"), ("a", None)], [], None] * 50, HEADERS)
    values = [b"%d" % n * 30 if n % 4 else None for n in range(150)]
    found = written(encoder(codec=codec, batch_bytes=1_000), table(key=[b"k"] * 150, value=values, headers=headers))
    (tp,) = by_partition(found)
    with EmbeddedBroker(topics={"t": 3}) as broker:
        broker.call(lambda node: append(node, found))
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused", "check.crcs": True}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.assign([ConfluentPartition(tp.topic, tp.partition, 0)])
        messages = consumer.consume(150, timeout=30)
        consumer.close()
    assert [(each.key(), each.value(), each.headers()) for each in messages] == [
        (b"k", value, [("a", b"1"), ("a", None)] if n % 3 == 0 else None) for n, value in enumerate(values)
    ]


def repeated(kind: str, size: int, count: int) -> pa.Array:
    """Returns `count` values of `size` bytes in a few megabytes of memory."""
    if kind == "dictionary":
        dictionary = pa.array([b"x" * size], pa.binary())
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), dictionary)
    if kind == "view":
        views = np.zeros((count, 4), np.int32)
        views[:, 0], views[:, 1] = size, int.from_bytes(b"xxxx", "little")
        buffers = [None, pa.py_buffer(views), pa.py_buffer(b"x" * size)]
        return pa.Array.from_buffers(pa.binary_view(), count, buffers)
    # pages that were never written to take no memory
    data = np.zeros(size * count, np.uint8)
    bounds = np.arange(count + 1, dtype=np.int64) * size
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["large", *(pytest.param(each, marks=pytest.mark.soak) for each in ("view", "dictionary"))]
)
def test_values_above_2_gib_in_one_record_batch(writer: Any, kind: str) -> None:
    size, count = 8_000_000, 280
    batch = table(key=repeated("dictionary", 1, count), value=repeated(kind, size, count))
    used = encoder(batch_bytes=900_000, max_record_bytes=10_000_000)
    total = number = 0
    for found in (*used.add(batch[:-1]), *used.add(batch[-1:]), *used.finish()):
        total, number = total + len(found.data), number + found.record_count
    assert number == count and size * count > 1 << 31
    # length, attributes, deltas, key with its length, length of the value, number of headers
    assert total == count * (HEADER_BYTES + 4 + 3 + 2 + 4 + size + 1)


def test_a_record_that_fills_its_batch_does_not_wait(writer: Any) -> None:
    used = encoder(batch_bytes=1_000, max_record_bytes=2_000)
    columns = table(key=pa.array(["a"] * 3), value=pa.array([b"x", bytes(1_000), b"y"], pa.binary()))
    assert [batch.record_count for batch in used.add(columns)] == [1, 1]
    assert [batch.record_count for batch in used.add(columns[:2])] == [2, 1]
    assert not list(used.finish())


@pytest.mark.slow
@pytest.mark.parametrize(
    "partitions, rows, value_bytes", [(10_000, 80_000, 10), (1, 50_000, 100), (3, 60, 800_000), (10_000, 30_000, 500)]
)
def test_memory_of_what_waits_is_bounded(
    writer: Any, monkeypatch: pytest.MonkeyPatch, partitions: int, rows: int, value_bytes: int
) -> None:
    monkeypatch.setitem(COUNTS, "t", partitions)
    limit = 4_000_000
    used = encoder(buffer_bytes=limit, batch_bytes=900_000, max_record_bytes=2_000_000)
    value = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([bytes(value_bytes)]))
    numbers = pa.array((np.arange(rows) % partitions).astype(np.int32))
    waiting, smallest = 0, value_bytes + 7
    # what is allocated once
    written(used, table(value=value, partition=numbers)[:1])
    step = max(1, rows // 20)
    tracemalloc.start()
    try:
        for first in range(0, rows, step):
            batch = table(value=value, partition=numbers)[first : first + step]
            waiting += batch.num_rows * smallest
            for found in used.add(batch):
                waiting -= found.record_count * smallest
            assert waiting <= limit
            # with the objects around them
            assert tracemalloc.get_traced_memory()[0] <= 1.2 * limit
    finally:
        tracemalloc.stop()
    assert sum(batch.record_count for batch in used.finish()) * smallest == waiting > 0
