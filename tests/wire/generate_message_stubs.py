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
from typing import AbstractSet, Sequence

from spark_groupsource.wire.message_base import UUID as UUID
from spark_groupsource.wire.message_base import ApiData as ApiData
from spark_groupsource.wire.message_base import ApiMessage as ApiMessage
from spark_groupsource.wire.message_base import BaseField as BaseField
from spark_groupsource.wire.message_base import BitField as BitField
from spark_groupsource.wire.message_base import DataContainer as DataContainer
from spark_groupsource.wire.message_base import EncodeBuffer as EncodeBuffer
from spark_groupsource.wire.message_base import EncodeBufferPool as EncodeBufferPool
from spark_groupsource.wire.message_base import FrozenStruct, Struct
from spark_groupsource.wire.message_base import Request as Request
from spark_groupsource.wire.message_base import Response as Response
from spark_groupsource.wire.message_base import ResponseT as ResponseT
from spark_groupsource.wire.message_base import StructField as StructField
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
    nested_base = "Struct" if base in ("Response", "Struct") else "FrozenStruct"
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
