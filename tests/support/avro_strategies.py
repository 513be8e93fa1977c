"""Random pairs of Avro schemas, with values of the writer."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from hypothesis import strategies as st

Draw = Callable[..., Any]
_PROMOTED = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
    "boolean": ("boolean",),
}
_TEXT = st.text("ab\u00e9\U0001d11e", max_size=4)
_NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
}
SYMBOLS = ("A", "B", "C", "D")


class Pair(NamedTuple):
    """A writer's type, the reader's, and values of the writer."""

    writer: Any
    reader: Any
    values: st.SearchStrategy[Any]


class Names:
    """Distinct names of types and fields."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"n{self._count}"


def _scalar(draw: Draw, kinds: tuple[str, ...]) -> Pair:
    written = draw(st.sampled_from(kinds))
    read = draw(st.sampled_from(_PROMOTED[written]))
    if written in _NUMBERS:
        return Pair(written, read, _NUMBERS[written])
    if written == "boolean":
        return Pair(written, read, st.booleans())
    # bytes that become a string are text
    data = _TEXT.map(str.encode) if read == "string" else st.binary(max_size=6)
    return Pair(written, read, _TEXT if written == "string" else data)


def _named(draw: Draw, name: str, written: dict[str, Any], read: dict[str, Any]) -> tuple[Any, Any]:
    written = {"name": f"w.{name}", **written}
    if draw(st.booleans()):
        return written, {"name": f"other_{name}", "aliases": [f"w.{name}"], **read}
    return written, {"name": draw(st.sampled_from([f"w.{name}", f"r.{name}", name])), **read}


def _enum(draw: Draw, names: Names, depth: int) -> Pair:
    symbols = st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True)
    written, read = draw(symbols), draw(symbols)
    extra = {"default": draw(st.sampled_from(read))} if draw(st.booleans()) else {}
    writer, reader = _named(
        draw, names.next(), {"type": "enum", "symbols": written}, {"type": "enum", "symbols": read, **extra}
    )
    return Pair(writer, reader, st.sampled_from(written))


def _fixed(draw: Draw, names: Names, depth: int) -> Pair:
    size = draw(st.integers(0, 5))
    writer, reader = _named(draw, names.next(), {"type": "fixed", "size": size}, {"type": "fixed", "size": size})
    return Pair(writer, reader, st.binary(min_size=size, max_size=size))


def _array(draw: Draw, names: Names, depth: int) -> Pair:
    items = pair(draw, names, depth)
    values = st.lists(items.values, max_size=3)
    return Pair({"type": "array", "items": items.writer}, {"type": "array", "items": items.reader}, values)


def _map(draw: Draw, names: Names, depth: int) -> Pair:
    items = pair(draw, names, depth)
    values = st.dictionaries(st.sampled_from("klm"), items.values, max_size=3)
    return Pair({"type": "map", "values": items.writer}, {"type": "map", "values": items.reader}, values)


def record(draw: Draw, names: Names, depth: int) -> Pair:
    """Returns records; the reader reorders, renames, leaves out and adds fields."""
    written, read, values = [], [], {}
    for _ in range(draw(st.integers(1, 4))):
        inner, name = pair(draw, names, depth), names.next()
        written.append({"name": name, "type": inner.writer})
        values[name] = inner.values
        change = draw(st.sampled_from(["keep", "keep", "rename", "remove"]))
        if change == "keep":
            read.append({"name": name, "type": inner.reader})
        elif change == "rename":
            read.append({"name": names.next(), "aliases": ["x", name], "type": inner.reader})
    for _ in range(draw(st.integers(0 if read else 1, 2))):
        kind = pair(draw, names, depth).reader
        read.append({"name": names.next(), "type": kind, "default": default(draw, kind)})
    writer, reader = _named(
        draw, names.next(), {"type": "record", "fields": written},
        {"type": "record", "fields": draw(st.permutations(read))},
    )  # fmt: skip
    return Pair(writer, reader, st.fixed_dictionaries(values))


def _union(draw: Draw, names: Names, depth: int) -> Pair:
    """Returns unions whose branches have distinct types in Python; the reader's has others, or is one type."""
    makers = draw(st.lists(st.sampled_from(_BRANCHES), min_size=1, max_size=3, unique=True))
    pairs = [make(draw, names, depth) for make in makers]
    has_null = draw(st.booleans())
    written = [each.writer for each in pairs] + ["null"] * has_null
    values = st.one_of([each.values for each in pairs] + [st.none()] * has_null)
    read = [each.reader for each in pairs] + ["null"] * draw(st.booleans())
    if len(read) > 1 and draw(st.booleans()):
        read.pop(draw(st.integers(0, len(read) - 1)))
    reader = draw(st.permutations(read))
    if len(reader) == 1 and (draw(st.booleans()) or reader == ["null"]):
        reader = pairs[0].reader
    return Pair(draw(st.permutations(written)), reader, values)


def pair(draw: Draw, names: Names, depth: int) -> Pair:
    """Returns any types."""
    kinds = tuple(_PROMOTED)
    if depth <= 0 or draw(st.integers(0, 2)) == 0:
        found = _scalar(draw, kinds)
    else:
        found = draw(st.sampled_from([_enum, _fixed, _array, _map, record, _union]))(draw, names, depth - 1)
    if not isinstance(found.reader, list) and draw(st.integers(0, 3)) == 0:
        reader = draw(st.permutations([found.reader, "null"]))
        return found._replace(reader=reader)
    return found


_BRANCHES = [
    lambda draw, names, depth: _scalar(draw, ("int", "long", "float", "double")),
    lambda draw, names, depth: _scalar(draw, ("string", "bytes")),
    lambda draw, names, depth: _scalar(draw, ("boolean",)),
    _array,
    _map,
]


def default(draw: Draw, schema: Any) -> Any:
    """Returns a default value in JSON."""
    if isinstance(schema, list):
        return default(draw, schema[0])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("int", "long"):
        return draw(st.integers(-1000, 1000))
    if kind in ("float", "double"):
        return draw(st.sampled_from([0, 1.5, -2]))
    if kind == "array":
        return [default(draw, schema["items"]) for _ in range(draw(st.integers(0, 2)))]
    if kind == "map":
        return {"k": default(draw, schema["values"])} if draw(st.booleans()) else {}
    if kind == "record":
        # a field of the default may be missing if it has one itself
        return {
            each["name"]: default(draw, each["type"])
            for each in schema["fields"]
            if "default" not in each or draw(st.booleans())
        }
    if kind == "enum":
        return draw(st.sampled_from(schema["symbols"]))
    if kind == "fixed":
        return "\u00ff" * schema["size"]
    return {"null": None, "boolean": True, "string": "d\u00e9", "bytes": "\u0000\u00ff"}[kind]


@st.composite
def avro_cases(draw: Draw) -> tuple[Any, Any, list[Any]]:
    """Returns a writer's record, the reader's, and data of the writer."""
    found = record(draw, Names(), 3)
    return found.writer, found.reader, draw(st.lists(found.values, min_size=1, max_size=4))
