"""Hypothesis strategies for records and logs, with expected rows."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow import COLUMNS, columns_schema, decode_fetched
from spark_groupsource.records.columns.compiled_kernel import read_compiled
from spark_groupsource.records.columns.numpy_kernel import read_numpy
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches

TP = TopicPartition("flights", 3)
END = 1 << 60
KERNELS = {"numpy": read_numpy, "numba": read_compiled}

PIECES = [b"\0", b"\0\x10\0", b"\0\x0c\0\0\0\x01\x01\0", b"\x80\x01\0"]
# the NumPy parser could mistake zero bytes and length varints for the start of a record
payloads = st.one_of(
    st.none(),
    st.binary(max_size=24),
    st.text("ab\0", max_size=12).map(str.encode),
    st.integers(0, 400).map(lambda size: b"\0" * size),
    st.integers(0, 9000).map(lambda size: b"x" * size),
    st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join),
)
headers = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=8))), max_size=4
).map(tuple)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(-1, 9 * 10**15), st.just(1_700_000_000_000)
)


@st.composite
def record_lists(draw, max_size=12):
    """Records with increasing offset deltas; half of the lists without headers, as in most topics."""
    some_headers = headers if draw(st.booleans()) else st.just(())
    gaps = st.integers(1, 90) if draw(st.booleans()) else st.just(1)
    rows = draw(st.lists(st.tuples(payloads, payloads, timestamps, some_headers, gaps), min_size=1, max_size=max_size))
    delta = -1
    records = []
    for key, value, timestamp_ms, record_headers, gap in rows:
        delta += gap
        records.append(Record(key, value, timestamp_ms, record_headers, delta))
    return records


@st.composite
def logs(draw):
    """Some batches with gaps between them, with any codec and timestamp type."""
    offset = draw(st.integers(0, 1 << 40))
    log = b""
    for records in draw(st.lists(record_lists(), min_size=1, max_size=5)):
        log += encode_batch(
            records,
            base_offset=offset,
            codec=draw(st.integers(0, 4)),
            timestamp_type=draw(st.integers(0, 1)),
        )
        offset += records[-1].offset_delta + 1 + draw(st.sampled_from([0, 0, 7]))
    return log


class Decoded(NamedTuple):
    """A decoded block with all of its Arrow batches."""

    batches: list[pa.RecordBatch]
    next_offset: int
    rows: int


def decode(buffer, *, columns=COLUMNS, start_offset=0, end_offset=END, **options) -> Decoded:
    block = decode_fetched(
        buffer,
        topic_partition=TP,
        columns=columns,
        start_offset=start_offset,
        end_offset=end_offset,
        **options,
    )
    batches = list(block.batches)
    return Decoded(batches, block.next_offset, sum(batch.num_rows for batch in batches))


def table(block: Decoded, columns=COLUMNS) -> pa.Table:
    """All rows of a block, validated by Arrow."""
    for batch in block.batches:
        batch.validate(full=True)
    return pa.Table.from_batches(block.batches, schema=columns_schema(columns))


def rows_by_objects(buffer, *, start_offset=0, end_offset=END) -> list[dict[str, object]]:
    """The rows of every batch but control batches, from the record decoder; timestamps in microseconds."""
    rows: list[dict[str, object]] = []
    for header in iter_batches(buffer):
        if header.is_control:
            continue
        for record in decode_records(buffer, header):
            if start_offset <= record.offset < end_offset:
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": TP.topic,
                        "partition": TP.partition,
                        "offset": record.offset,
                        "timestamp": record.timestamp_ms * 1000,
                        "timestampType": int(header.is_log_append_time),
                        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                    }
                )
    return rows


def rows_by_columns(block: Decoded) -> list[dict[str, object]]:
    found = table(block)
    at = found.schema.get_field_index("timestamp")
    return found.set_column(at, "timestamp", found["timestamp"].cast(pa.int64())).to_pylist()
