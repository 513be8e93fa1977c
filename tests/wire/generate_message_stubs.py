"""Generator of `spark_groupsource/wire/messages.pyi` from the message schemas.

Usage: ``python tests/wire/generate_message_stubs.py`` writes the file; ``--check`` only compares, and exits with 1 if
the file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator, Sequence

from spark_groupsource.wire import messages
from spark_groupsource.wire.schemas import LAST_VERSION, Field, Schema

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
_HEAD = '''\
# Written by tests/wire/generate_message_stubs.py from the message schemas. Do not edit.
import uuid
from typing import AbstractSet, Sequence

from spark_groupsource.wire.message_base import ApiData as ApiData
from spark_groupsource.wire.message_base import ApiMessage as ApiMessage
from spark_groupsource.wire.message_base import DataContainer as DataContainer
from spark_groupsource.wire.message_base import FrozenStruct, Struct
from spark_groupsource.wire.message_base import Request as Request
from spark_groupsource.wire.message_base import Response as Response
from spark_groupsource.wire.message_base import ResponseT as ResponseT
'''


def generate() -> str:
    """Returns the text of the stub."""
    lines = [_HEAD]
    for name in messages.__all__:
        message_class = getattr(messages, name)
        schema = getattr(message_class, "SCHEMA", None)
        if schema is not None:
            # all versions of a request or response up to the last one can be encoded
            versions = schema.versions if schema.type == "data" else range(schema.versions.stop)
            lines += [*_class_lines(name, _base(schema), schema.fields, versions, ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def _base(schema: Schema) -> str:
    if schema.type == "request":
        return f"Request[{schema.name.removesuffix('Request')}Response]"
    return "Response" if schema.type == "response" else "ApiData"


def _class_lines(name: str, base: str, fields: Sequence[Field], versions: range, indent: str) -> Iterator[str]:
    yield f"{indent}class {name}({base}):"
    indent += "    "
    nested_base = "Struct" if base in ("Response", "Struct") else "FrozenStruct"
    for field in fields:
        if field.fields is not None:
            yield from _class_lines(field.type, nested_base, field.fields, field.versions, indent)
            yield ""
    for field in fields:
        yield f"{indent}{field.name}: {_type(field)} = ...{_versions(field, versions)}"
    if not fields:
        yield f"{indent}pass"


def _type(field: Field) -> str:
    element = _TYPES[field.type] if field.fields is None else field.type
    name = f"Sequence[{element}]" if field.is_array else element
    return f"{name} | None" if _is_nullable(field) else name


def _is_nullable(field: Field) -> bool:
    """True if null is allowed in any version, or if it stands for a field that is absent."""
    is_struct = field.fields is not None and not field.is_array
    return bool(field.nullable) or field.default is None and (not is_struct or field.tag is not None)


def _versions(field: Field, outer: range) -> str:
    """A comment with the versions of the field, if it is not in all versions of the struct."""
    low, high = max(field.versions.start, outer.start), min(field.versions.stop, outer.stop) - 1
    if (low, high) == (outer.start, outer.stop - 1):
        return ""
    if high == low:
        return f"  # version {low}"
    return f"  # versions {low}+" if high in (outer.stop - 1, LAST_VERSION) else f"  # versions {low}-{high}"


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
