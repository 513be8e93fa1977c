"""Fast construction of message structs, and compiled encoding of log records.

The constructors of kafka-python take 4 to 8 microseconds: too long for messages with thousands of structs.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Callable, ParamSpec, TypeVar

from spark_groupsource.wire.messages import ApiData, ApiMessage, EncodeBuffer, EncodeBufferPool

P = ParamSpec("P")
StructT = TypeVar("StructT")

_VERSION = struct.Struct(">h")


def new_struct(struct_class: Callable[P, StructT], *_: P.args, **fields: P.kwargs) -> StructT:
    """Creates a struct of a message with fields by keyword, without tagged ones; names and types are not checked."""
    untyped: Any = struct_class
    value: Any = object.__new__(untyped)
    value._version = value.tags = value.unknown_tags = None
    for name, content in fields.items():
        setattr(value, name, content)
    return value  # type: ignore[no-any-return]


def constructor(struct_class: Callable[P, StructT], *names: str) -> Callable[..., StructT]:
    """Returns a generated function that creates a struct or message from the values of these fields.

    Other fields get their defaults, where those are numbers, strings or null: to look them up takes longer.
    """
    untyped: Any = struct_class
    others = [
        field
        for name, field in untyped._struct.fields.items()
        if name not in names and (field.tag is not None or not (field.is_array() or field.is_struct()))
    ]
    lines = [f"def create({', '.join(names)}):", " value = new(cls)"]
    lines.append(" value._version = value.tags = value.unknown_tags = None")
    if issubclass(untyped, ApiMessage):
        lines.append(" value._header = value._min_version = value._max_version = None")
    lines += [f" value.{name} = {name}" for name in names]
    lines += [
        f" value.{field.name} = {field.default!r}"
        for field in others
        if isinstance(field.default, (int, str, type(None)))
    ]
    namespace: dict[str, Any] = {"new": object.__new__, "cls": untyped}
    exec("\n".join([*lines, " return value"]), namespace)
    create: Callable[..., StructT] = namespace["create"]
    return create


def encode_data(message: ApiData, version: int) -> bytes:
    """Encodes the key or value of a log record after its version, as int16."""
    hashable_class: Any = type(message)  # mypy does not accept a class as Hashable
    write = _writer(hashable_class, version)
    with EncodeBufferPool.acquire() as out:
        out.pos = 0
        out.ensure(_VERSION.size)
        _VERSION.pack_into(out.buf, 0, version)
        out.pos = _VERSION.size
        write(message, out)
        return bytes(memoryview(out.buf)[: out.pos])


@lru_cache(maxsize=None)
def _writer(message_class: Any, version: int) -> Callable[[ApiData, EncodeBuffer], None]:
    flexible = message_class.flexible_version_q(version)
    write: Callable[[ApiData, EncodeBuffer], None] = message_class._struct.compiled_encode_into(
        version, compact=flexible, tagged=flexible
    )
    return write
