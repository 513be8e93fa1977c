"""Blocks of standard input, split into lines or into columns of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 256 << 10


class LineForm(NamedTuple):
    """Lines that need no conversion: a value, or key, separator of one byte and value; the delimiter is one byte."""

    delimiter: bytes
    separator: bytes | None


def plain_form(delimiter: bytes, separator: str | None) -> LineForm | None:
    """Returns the form of lines without conversions; None for a delimiter or separator of several bytes."""
    key_end = None if separator is None else separator.encode()
    is_short = len(delimiter) == 1 and (key_end is None or len(key_end) == 1)
    return LineForm(delimiter, key_end) if is_short and key_end != delimiter else None


def blocks_of(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Yields the records that are available, each with its delimiter, so that a slow input is written at once."""
    rest = b""
    # a buffered reader: read1 returns what one read of the file returns
    while block := stream.read1(BLOCK_BYTES):  # type: ignore[attr-defined]
        records, found, rest = (rest + block).rpartition(delimiter)
        if found:
            yield records + found
    if rest:
        yield rest + delimiter


def lines_of(block: bytes, delimiter: bytes) -> list[bytes]:
    """Returns the records of a block, without CR at the end of a line."""
    lines = block.split(delimiter)[:-1]
    return [line.rstrip(b"\r") for line in lines] if delimiter == b"\n" else lines


def columns_of(block: bytes, form: LineForm) -> pa.RecordBatch | None:
    """Returns the keys and values of a block as columns; None for a block with a line without separator."""
    import numpy as np
    import pyarrow as pa

    from spark_groupsource.records.columns.arrow_arrays import consecutive, integers

    while form.delimiter == b"\n" and b"\r\n" in block:
        block = block.replace(b"\r\n", b"\n")
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == form.delimiter[0])
    starts = np.concatenate(([0], ends[:-1] + 1))
    if form.separator is None:
        lengths, places = ends - starts, ends
    else:
        places = np.append(np.flatnonzero(data == form.separator[0]), len(data))
        places = places[np.searchsorted(places, starts)]
        if (places > ends).any():
            return None
        # the key and the value of each line
        lengths = np.stack((places - starts, ends - places - 1), axis=1)
    is_kept = np.ones(len(data), bool)
    is_kept[ends] = is_kept[places] = False
    pieces = consecutive(pa.binary(), lengths.reshape(-1), data[is_kept])
    if form.separator is None:
        return pa.RecordBatch.from_arrays([pieces], ["value"])
    first = 2 * np.arange(len(ends))
    return pa.RecordBatch.from_arrays([pieces.take(integers(first + n)) for n in (0, 1)], ["key", "value"])
