"""Generator of `spark_groupsource/wire/messages.pyi` from the message schemas.

Usage: ``python tests/wire/generate_message_stubs.py`` writes the file; ``--check`` only compares, and exits with 1 if
the file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Iterator

from spark_groupsource.wire import messages

STUB = Path(messages.__file__).with_suffix(".pyi")
_TYPES = {
    **dict.fromkeys(("int8", "int16", "uint16", "int32", "int64"), "int"),
    "float64": "float",
    "bool": "bool",
    "string": "str",
    "bytes": "bytes",
    # a view of the frame if it was decoded
    "records": "bytes | bytearray | memoryview",
    "uuid": "uuid.UUID",
    "bitfield": "AbstractSet[int]",
}
_HIGHEST_VERSION = 32767  # the end of a range without an end

_HEAD = '''\
# Written by tests/wire/generate_message_stubs.py from the message schemas. Do not edit.
import uuid
from contextlib import AbstractContextManager
from typing import AbstractSet, Any, ClassVar, Generic, Mapping, Sequence, TypeVar

from typing_extensions import dataclass_transform

from spark_groupsource.wire.api_keys import ApiKey

ResponseT = TypeVar("ResponseT", bound=ApiMessage)

class BaseField:
    """One field of a schema."""

    name: str
    _name: str
    tag: int | None
    default: Any
    @property
    def type_str(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, BaseField]: ...
    @property
    def array_of(self) -> BaseField: ...
    @property
    def data_class(self) -> type[DataContainer]: ...
    def is_array(self) -> bool: ...
    def is_struct(self) -> bool: ...
    def for_version_q(self, version: int) -> bool: ...
    def nullable_for_version_q(self, version: int) -> bool: ...
    def tagged_field_q(self, version: int) -> bool: ...
    def untagged_fields(self, version: int) -> Sequence[BaseField]: ...
    @classmethod
    def parse_versions(cls, versions: str | None) -> tuple[int, int] | None: ...

class StructField(BaseField):
    """The fields of a message or of a struct in it."""

    def __init__(self, json: Mapping[str, Any]) -> None: ...
    def set_data_class(self, data_class: type[DataContainer]) -> None: ...
    def compiled_encode_into(self, version: int, compact: bool = ..., tagged: bool = ...) -> Any: ...

class EncodeBuffer:
    """A growing buffer; the bytes before `pos` are written."""

    buf: bytearray
    pos: int
    def ensure(self, needed: int) -> None: ...
    def result(self) -> bytearray: ...

class EncodeBufferPool:
    """One encode buffer per thread."""

    @classmethod
    def acquire(cls) -> AbstractContextManager[EncodeBuffer]: ...

class UUID:
    """Codec of a topic id; the zero id is None."""

    size: ClassVar[int]
    @classmethod
    def decode(cls, data: Any, compact: bool = ...) -> uuid.UUID | None: ...

class BitField:
    """Codec of a set of bit numbers; None is no value."""

    size: ClassVar[int]
    @classmethod
    def decode(cls, data: Any, compact: bool = ...) -> set[int] | None: ...

class DataContainer:
    """Base class of messages and of the structs in them."""

    _struct: ClassVar[StructField]
    _version: int | None
    tags: set[str] | None
    unknown_tags: dict[str, bytes] | None
    @property
    def version(self) -> int | None: ...

class ApiMessage(DataContainer):
    """Base class of requests and responses."""

    API_KEY: ClassVar[ApiKey]
    json: ClassVar[Mapping[str, Any]]
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    def __init_subclass__(cls, *, load_json: str = ...) -> None: ...
    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    def encode(self, version: int | None = ..., header: bool = ..., framed: bool = ...) -> bytearray: ...

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class Request(ApiMessage, Generic[ResponseT]):
    """Base class of requests; the type argument is the class of the response."""

@dataclass_transform(kw_only_default=True, eq_default=False)
class Response(ApiMessage):
    """Base class of responses."""

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class ApiData(DataContainer):
    """Base class of the keys and values of log records and of the consumer protocol's messages."""

    json: ClassVar[Mapping[str, Any]]
    max_version: ClassVar[int]
    def __init_subclass__(cls, *, load_json: str = ...) -> None: ...
    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    def encode(self, version: int | None = ..., header: bool = ..., framed: bool = ...) -> bytes: ...

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class _FrozenStruct(DataContainer): ...

@dataclass_transform(kw_only_default=True, eq_default=False)
class _Struct(DataContainer): ...
'''


def generate() -> str:
    """Returns the text of the stub."""
    lines = [_HEAD]
    exported = [getattr(messages, name) for name in messages.__all__]
    for message_class in exported:
        if getattr(message_class, "_struct", None) is not None:
            lines += [*_class_lines(message_class, _base(message_class), ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def _base(message_class: Any) -> str:
    if message_class.type == "request":
        return f"Request[{message_class.__name__.removesuffix('Request')}Response]"
    return "Response" if message_class.type == "response" else "ApiData"


def _class_lines(data_class: Any, base: str, indent: str) -> Iterator[str]:
    yield f"{indent}class {data_class.__name__}({base}):"
    indent += "    "
    fields = list(data_class._struct.fields.values())
    nested_base = "_Struct" if base in ("Response", "_Struct") else "_FrozenStruct"
    for field in fields:
        if field.is_struct() or field.is_struct_array():
            yield from _class_lines(getattr(data_class, field.type_str), nested_base, indent)
            yield ""
    first, last = data_class._struct.min_version, data_class._struct.max_version
    for field in fields:
        yield f"{indent}{field.name}: {_type(field)} = ...{_versions(field, first, last)}"
    if not fields:
        yield f"{indent}pass"


def _type(field: Any) -> str:
    if field.is_array():
        element = field.array_of
        name = f"Sequence[{element.type_str if element.is_struct() else _TYPES[element.type_str]}]"
    else:
        name = field.type_str if field.is_struct() else _TYPES[field.type_str]
    return f"{name} | None" if _is_nullable(field) else name


def _is_nullable(field: Any) -> bool:
    """True if null is allowed in any version, or if it stands for a field that is absent."""
    if field._nullable_versions is not None:
        return True
    try:
        return field.default is None
    except NotImplementedError:  # a struct that is never absent
        return False


def _versions(field: Any, first: int, last: int) -> str:
    """A comment with the versions of the field, if it is not in all versions of the struct."""
    low, high = max(field.min_version, first), min(field.max_version, last)
    if (low, high) == (first, last):
        return ""
    if high == low:
        return f"  # version {low}"
    return f"  # versions {low}+" if high in (last, _HIGHEST_VERSION) else f"  # versions {low}-{high}"


def main() -> int:
    text = generate()
    if "--check" not in sys.argv:
        STUB.write_text(text)
        return 0
    if STUB.read_text() == text:
        return 0
    print(f"{STUB.name} is out of date: run python {Path(__file__).name}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
