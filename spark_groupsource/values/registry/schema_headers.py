"""Headers by which keys and values name their writer's schema.

Source: Confluent wire format (`PrefixSchemaIdSerializer`, `HeaderSchemaIdSerializer`), AWS Glue Schema Registry serde.
"""

from __future__ import annotations

import zlib
from typing import Mapping, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.columns.arrow_arrays import (
    booleans,
    byte_strings,
    integers,
    is_valid,
    strings,
    to_mask,
    to_numbers,
)
from spark_groupsource.values.lanes.binary_blocks import Ints, Mask, bounds

PREFIX_BYTES = 5
"""Length of the prefix of Confluent's wire format: a zero byte and the id of a schema."""
_GUID_BYTES = 17
_GLUE_BYTES = 18
_GLUE_VERSION = 3
_NOT_COMPRESSED, _ZLIB = 0, 5
# of a decompressed value; Kafka's largest request is 100 MiB
_MAX_VALUE_BYTES = 128 * 1024 * 1024
_NO_PREFIX = "it does not begin with a zero byte and the id of a schema"


class NamedSchemas(NamedTuple):
    """Values without their headers.

    Attributes:
        data: the values; null where the input is null or malformed.
        rows: schema -> rows of the values that name it: a number, or the text of a UUID.
        malformed: row -> reason.
        after_ids: row -> what follows the id, of the values whose id is in a record header.
    """

    data: pa.Array
    rows: Mapping[int | str, Ints]
    malformed: Mapping[int, str]
    after_ids: Mapping[int, bytes] = {}


def confluent_header(column: str) -> str:
    """Returns the name of the record header with the id of a schema."""
    return f"__{column}_schema_id"


def confluent_prefix(schema_id: int) -> bytes:
    """Returns the bytes before a value of a schema."""
    return b"\0" + schema_id.to_bytes(PREFIX_BYTES - 1, "big")


def read_confluent(data: pa.Array, headers: pa.Array | None, name: str) -> NamedSchemas:
    """Reads the id from the record header `name`, and from the begin of a value without it.

    Args:
        headers: of the records, None if they have none.
    """
    in_header = {} if headers is None else _header_ids(headers, name)
    if not in_header:
        return _read_prefix(data)
    is_prefixed = is_valid(data)
    rows: dict[int | str, list[int]] = {}
    malformed: dict[int, str] = {}
    after_ids: dict[int, bytes] = {}
    for row, text in in_header.items():
        if is_prefixed[row]:
            is_prefixed[row] = False
            schema_id, after_ids[row] = _header_id(text)
            if schema_id is None:
                malformed[row] = f"its header {name} has no id of a schema"
            else:
                rows.setdefault(schema_id, []).append(row)
    prefixed = _read_prefix(pc.if_else(booleans(is_prefixed), data, pa.nulls(1, pa.binary())[0]))
    headed = np.zeros(len(data), np.bool_)
    found: dict[int | str, Ints] = dict(prefixed.rows)
    for schema_id, listed in rows.items():
        each = np.array(listed, np.int64)
        headed[each] = True
        found[schema_id] = np.sort(np.concatenate([found[schema_id], each])) if schema_id in found else each
    data = pc.if_else(booleans(headed), data, prefixed.data)
    return NamedSchemas(data, found, {**malformed, **prefixed.malformed}, after_ids)


def read_glue(data: pa.Array) -> NamedSchemas:
    """Reads AWS Glue's header: 3, the compression, the UUID of the version of the schema."""
    payload, starts, ends = bounds(data)
    valid = is_valid(data)
    has_header = valid & (ends - starts >= _GLUE_BYTES)
    first = starts[has_header]
    has_header[has_header] = (payload[first] == _GLUE_VERSION) & np.isin(payload[first + 1], (_NOT_COMPRESSED, _ZLIB))
    malformed = {
        int(row): f"it does not begin with the {_GLUE_BYTES} bytes of an AWS Glue header"
        for row in np.flatnonzero(valid & ~has_header)
    }
    rows = np.flatnonzero(has_header)
    named = payload[starts[rows][:, None] + np.arange(2, _GLUE_BYTES)]
    ids, inverse = np.unique(named, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    found: dict[int | str, Ints] = {str(UUID(bytes=each.tobytes())): rows[inverse == at] for at, each in enumerate(ids)}
    bodies = _without_prefix(data, has_header, _GLUE_BYTES)
    compressed = rows[payload[starts[rows] + 1] == _ZLIB]
    if not len(compressed):
        return NamedSchemas(bodies, found, malformed)
    values = bodies.to_pylist()
    for row in compressed.tolist():
        values[row] = _decompressed(values[row])
        if values[row] is None:
            malformed[row] = "it is not exactly the zlib data that its header says"
            has_header[row] = False
    kept = {schema_id: each[has_header[each]] for schema_id, each in found.items()}
    return NamedSchemas(byte_strings(values), kept, malformed)


def _read_prefix(data: pa.Array) -> NamedSchemas:
    payload, starts, ends = bounds(data)
    valid = is_valid(data)
    has_prefix = valid & (ends - starts >= PREFIX_BYTES)
    has_prefix[has_prefix] = payload[starts[has_prefix]] == 0
    ids = np.full(len(data), -1, np.int64)
    prefix = payload[starts[has_prefix][:, None] + np.arange(1, PREFIX_BYTES)]
    ids[has_prefix] = prefix.astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    malformed = {int(row): _NO_PREFIX for row in np.flatnonzero(valid & ~has_prefix)}
    rows: dict[int | str, Ints] = {each: np.flatnonzero(ids == each) for each in np.unique(ids[has_prefix]).tolist()}
    return NamedSchemas(_without_prefix(data, has_prefix, PREFIX_BYTES), rows, malformed)


def _without_prefix(data: pa.Array, keeps: Mask, size: int) -> pa.Array:
    """Returns the values without their first `size` bytes; null where `keeps` is false."""
    kept = data if keeps.all() else pc.if_else(booleans(keeps), data, pa.nulls(1, pa.binary())[0])
    return pc.binary_slice(kept, size, _MAX_VALUE_BYTES + size)


def _header_ids(headers: pa.Array, name: str) -> dict[int, bytes | None]:
    """Returns row -> last value of the header `name`, as Kafka's Headers.lastHeader does."""
    entries = headers.flatten()
    if not len(entries):
        return {}
    named = np.flatnonzero(to_mask(pc.equal(entries.field("key"), strings([name])[0])))
    if not len(named):
        return {}
    rows = to_numbers(pc.list_parent_indices(headers))[named]
    values = entries.field("value").take(integers(named)).to_pylist()
    return dict(zip(rows.tolist(), values))


def _header_id(text: bytes | None) -> tuple[int | str | None, bytes]:
    """Returns the id in a record header, and the bytes after it."""
    if text is not None and len(text) >= _GUID_BYTES and text[0] == 1:
        return str(UUID(bytes=text[1:_GUID_BYTES])), text[_GUID_BYTES:]
    if text is not None and len(text) >= PREFIX_BYTES and text[0] == 0:
        return int.from_bytes(text[1:PREFIX_BYTES], "big"), text[PREFIX_BYTES:]
    return None, b""


def _decompressed(value: bytes) -> bytes | None:
    try:
        stream = zlib.decompressobj()
        found = stream.decompress(value, _MAX_VALUE_BYTES)
        return found if stream.eof and not stream.unconsumed_tail and not stream.unused_data else None
    except zlib.error:
        return None
