"""Hypothesis strategies for the messages of `wire.messages`, from their schemas."""

from __future__ import annotations

import uuid
from functools import cache

from hypothesis import strategies as st

from spark_groupsource.wire.apis import APIS

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# kio has an enum of error codes, and times in the range of datetime
_ERROR_CODES = st.sampled_from([0, 1, 3, 16, 22, 25, 27, 35, 79, 82])
_TIMES = st.integers(0, 2**41)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=6)


def versions(api):
    return st.integers(api.min_version, api.max_version)


@st.composite
def messages(draw, message_class, version):
    """A message with every field of `version` drawn; fields outside it keep their defaults."""
    return draw(_message(message_class, version))


@cache
def _message(message_class, version):
    return _structures(message_class, version)


def _structures(data_class, version):
    fields = [field for field in data_class.FIELDS if version in field.versions]
    drawn = {field.name: _values(field, data_class, version) for field in fields}
    return st.fixed_dictionaries(drawn).map(lambda values: data_class(**values))


def _values(field, data_class, version):
    element = _simple(field) if field.fields is None else _structures(getattr(data_class, field.type), version)
    values = st.lists(element, max_size=2 if field.fields else 3) if field.is_array else element
    return st.one_of(st.none(), values) if version in field.nullable else values


def _simple(field):
    kind, name = field.type, field.name
    if name.endswith("error_code"):
        return _ERROR_CODES
    if kind in ("int32", "int64") and ("time" in name or name.endswith("_ms")):
        return _TIMES if kind == "int64" else st.integers(0, 2**31 - 1)
    if kind in _BITS:
        limit = 2 ** (_BITS[kind] - 1)
        return st.integers(-limit, limit - 1)
    if kind == "uint16":
        return st.integers(0, 2**16 - 1)
    if kind == "string":
        return _TEXT
    if kind in ("bytes", "records"):
        return st.binary(max_size=8)
    simple = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        # the zero id is null
        "uuid": st.uuids().filter(lambda value: value != uuid.UUID(int=0)),
        "bitfield": st.sets(st.integers(0, 10), min_size=1),
    }
    return simple[kind]


API_SIDES = [
    (api, side) for api in APIS.values() for side in (api.request, api.response)
]


def side_id(value):
    return getattr(value, "__name__", "")
