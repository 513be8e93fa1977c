"""Avro schemas that are recursive, or nested by their names."""

from __future__ import annotations

from typing import Any

from support.random_avro import varint


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]}


LIST = {
    "type": "record", "name": "L", "fields": [{"name": "x", "type": "int"}, {"name": "next", "type": ["null", "L"]}],
}  # fmt: skip


def listed(count: int) -> bytes:
    return b"".join(varint(number) + b"\2" for number in range(1, count)) + varint(count) + b"\0"


def doubled(levels: int, innermost: Any) -> Any:
    """Returns a schema of `levels` records, each of which has the previous one twice."""
    kind = innermost
    for level in range(levels):
        inner = kind["name"] if isinstance(kind, dict) else kind
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": inner}]
        kind = {"type": "record", "name": f"d{level}", "fields": fields}
    return kind


def chained(levels: int) -> dict[str, Any]:
    """Returns a record whose fields are defined one after the other, each of which contains the previous one."""
    fields = [("f0", record(("x", "int")) | {"name": "c0"})]
    fields += [
        (f"f{level}", record(("p", ["null", f"c{level - 1}"])) | {"name": f"c{level}"}) for level in range(1, levels)
    ]
    return record(*fields)
