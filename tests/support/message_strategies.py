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
    return _structures(message_class._struct, message_class, version)


def _structures(struct_field, data_class, version):
    drawn = {
        field.name: _values(field, version) for field in struct_field.fields.values() if field.for_version_q(version)
    }
    return st.fixed_dictionaries(drawn).map(lambda values: data_class(version=version, **values))


def _values(field, version):
    values = _elements(field, version)
    return st.one_of(st.none(), values) if field.nullable_for_version_q(version) else values


def _elements(field, version):
    if field.is_array():
        element = field.array_of
        if element.is_struct():
            return st.lists(_structures(element, element.data_class, version), max_size=2)
        return st.lists(_simple(element), max_size=3)
    if field.is_struct():
        return _structures(field, field.data_class, version)
    return _simple(field)


def _simple(field):
    kind, name = field.type_str, field.name
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
