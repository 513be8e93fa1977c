"""Random Avro schemas of every kind, values of them, and damaged bytes."""

from __future__ import annotations

import random
from typing import Any

_LOGICAL: list[Any] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "string", "logicalType": "unknown"},
    *(
        {"type": "long", "logicalType": f"{kind}timestamp-{unit}"}
        for kind in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    ),
]
_SCALARS = ["boolean", "int", "long", "float", "double", "bytes", "string"]
_EDGES = [0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**31, 2**55, 2**56, 2**63 - 1, -(2**63)]


class RandomAvro:
    """Random schemas with distinct names, and values of them.

    Args:
        can_recur: whether records may contain themselves.
    """

    def __init__(self, rng: random.Random, can_recur: bool = True) -> None:
        self.rng = rng
        self._can_recur = can_recur
        self._names = 0
        self._outer: list[str] = []
        self.named: dict[str, Any] = {}

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def schema(self, depth: int) -> Any:
        """Returns a schema of at most `depth` nested types, and some."""
        kinds = ["scalar", "scalar", "logical", "decimal", "enum", "fixed"]
        if depth > 0:
            kinds += ["record", "record", "array", "map", "union", "union"]
            kinds += ["recursion"] if self._outer and self._can_recur else []
        kind = self.rng.choice(kinds)
        found = getattr(self, f"_{kind}")(depth - 1)
        if isinstance(found, dict) and "name" in found:
            self.named[found["name"]] = found
        return found

    def record(self, depth: int) -> Any:
        """Returns a record."""
        found = self._record(depth)
        self.named[found["name"]] = found
        return found

    def _scalar(self, depth: int) -> Any:
        return self.rng.choice(_SCALARS if self.rng.random() < 0.9 else ["null"])

    def _logical(self, depth: int) -> Any:
        return dict(self.rng.choice(_LOGICAL))

    def _decimal(self, depth: int) -> Any:
        precision = self.rng.choice([1, 2, 9, 18, 19, 20, 37, 38, 38, 39, 64])
        found = {"type": "bytes", "logicalType": "decimal", "precision": precision}
        found["scale"] = self.rng.choice([0, precision // 2, precision])
        if self.rng.random() < 0.4:
            found |= {"type": "fixed", "name": self._name(), "size": self.rng.randrange(1, 20)}
        return found

    def _enum(self, depth: int) -> Any:
        symbols = self.rng.sample("ABCDEFG", self.rng.randrange(1, 5))
        found: dict[str, Any] = {"type": "enum", "name": self._name(), "symbols": symbols}
        return found | ({"default": symbols[0]} if self.rng.random() < 0.3 else {})

    def _fixed(self, depth: int) -> Any:
        return {"type": "fixed", "name": self._name(), "size": self.rng.choice([0, 1, 2, 7, 8, 17])}

    def _array(self, depth: int) -> Any:
        return {"type": "array", "items": self.schema(depth)}

    def _map(self, depth: int) -> Any:
        return {"type": "map", "values": self.schema(depth)}

    def _recursion(self, depth: int) -> Any:
        name = self.rng.choice(self._outer)
        return self.rng.choice([["null", name], {"type": "array", "items": name}, {"type": "map", "values": name}])

    def _record(self, depth: int) -> Any:
        name = self._name()
        self._outer.append(name)
        count = self.rng.choice([0, 1, 2, 3, 4])
        fields = [{"name": f"f{at}", "type": self.schema(depth)} for at in range(count)]
        self._outer.pop()
        return {"type": "record", "name": name, "fields": fields}

    def _union(self, depth: int) -> Any:
        branches: list[Any] = ["null"] if self.rng.random() < 0.6 else []
        seen = {"null"}
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            branch = self.schema(depth)
            kind = branch if isinstance(branch, str) else "union" if isinstance(branch, list) else branch["type"]
            if kind == "union" or (kind in seen and kind not in ("record", "enum", "fixed")):
                continue
            seen.add(kind)
            branches.append(branch)
        self.rng.shuffle(branches)
        return branches or ["null", "int"]

    def encoded(self, schema: Any, depth: int = 6) -> bytes:
        """Returns a value; of a type that contains itself it has about `depth` levels."""
        rng = self.rng
        if isinstance(schema, list):
            at = rng.randrange(len(schema))
            if depth <= 0 and "null" in schema:
                at = schema.index("null")
            return varint(at) + self.encoded(schema[at], depth - 1)
        if isinstance(schema, str) and schema in self.named:
            return self.encoded(self.named[schema], depth - 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return b"".join(self.encoded(each["type"], depth - 1) for each in schema["fields"])
        if kind in ("array", "map"):
            return self._blocks(schema, kind == "map", depth)
        if kind == "enum":
            return varint(rng.randrange(len(schema["symbols"])))
        if kind == "boolean":
            return rng.choice([b"\0", b"\1"])
        if kind in ("float", "double"):
            return rng.randbytes(4 if kind == "float" else 8)
        if kind in ("int", "long"):
            bits = 31 if kind == "int" else 63
            number = rng.choice([rng.choice(_EDGES), rng.randrange(-(1 << rng.randrange(1, bits)), 1 << bits)])
            return varint(max(min(number, (1 << bits) - 1), -(1 << bits)))
        if kind == "string":
            text = "".join(rng.choice("ab\u00e9\U0001d11e") for _ in range(rng.randrange(5))).encode()
            return varint(len(text)) + text
        if kind == "null":
            return b""
        size = schema["size"] if kind == "fixed" else rng.choice([0, 1, 2, 8, 16, 17, 20])
        data = rng.randbytes(size)
        if rng.random() < 0.5 and size:
            # small numbers, and the least of 8 and 16 bytes
            zeros, ones = bytes(size - 1), b"\xff" * (size - 1)
            data = rng.choice([zeros + data[:1], ones + data[:1], b"\x80" + zeros])
        return data if kind == "fixed" else varint(size) + data

    def _blocks(self, schema: Any, is_map: bool, depth: int) -> bytes:
        found = b""
        for _ in range(self.rng.choice([0, 1, 1, 2]) if depth > 0 else 0):
            count = self.rng.choice([1, 1, 2, 3])
            items = b""
            for at in range(count):
                key = f"k{at}".encode()
                items += varint(len(key)) + key if is_map else b""
                items += self.encoded(schema["values" if is_map else "items"], depth - 1)
            found += varint(-count) + varint(len(items)) + items if self.rng.random() < 0.3 else varint(count) + items
        return found + b"\0"

    def damaged(self, data: bytes) -> bytes:
        """Returns other bytes."""
        rng = self.rng
        at = rng.randrange(len(data) + 1)
        return rng.choice(
            [
                data[:at],
                data + rng.randbytes(rng.randrange(1, 3)),
                data[:at] + rng.randbytes(1) + data[at + 1 :],
                data[:at] + rng.choice([b"\xff", b"\x80", b"\x01", b"\x7f"]) * rng.randrange(1, 12) + data[at:],
                data[:at] + data[at + 1 :],
                rng.randbytes(rng.randrange(20)),
            ]
        )

    def reader(self, schema: Any) -> Any:
        """Returns another schema, which may or may not read values of `schema`."""
        rng = self.rng
        if isinstance(schema, list):
            branches = [self.reader(each) for each in schema if rng.random() < 0.9]
            branches = [each for each in branches if not isinstance(each, list)]
            rng.shuffle(branches)
            return rng.choice([branches or ["null"], self.reader(rng.choice(schema))])
        if rng.random() < 0.05:
            return rng.choice(_SCALARS + _LOGICAL)
        if isinstance(schema, str):
            wider = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
                     "string": ["bytes"], "bytes": ["string"]}  # fmt: skip
            found: Any = rng.choice(wider.get(schema, [schema])) if rng.random() < 0.3 else schema
            return [found, "null"] if rng.random() < 0.15 else found
        found = dict(schema)
        if found["type"] == "record":
            fields = [{**each, "type": self.reader(each["type"])} for each in found["fields"] if rng.random() < 0.8]
            for each in fields:
                if rng.random() < 0.2:
                    each["aliases"], each["name"] = [each["name"]], f"x{each['name']}"
            rng.shuffle(fields)
            if rng.random() < 0.3:
                fields.append({"name": "added", "type": ["null", "int"], "default": None})
            if rng.random() < 0.3:
                fields.append({"name": "number", "type": rng.choice(["int", "long"]), "default": rng.choice(_EDGES)})
            return found | {"fields": fields}
        if "items" in found:
            return found | {"items": self.reader(found["items"])}
        if "values" in found:
            return found | {"values": self.reader(found["values"])}
        if found["type"] == "enum":
            symbols = rng.sample("ABCDEFG", rng.randrange(1, 7))
            return found | {"symbols": symbols, "default": symbols[-1]}
        if rng.random() < 0.2 and found["type"] == "long":
            return dict(rng.choice(_LOGICAL))
        if "precision" in found and rng.random() < 0.3:
            return found | {"precision": min(found["precision"] + 1, 38)}
        return found


def varint(number: int) -> bytes:
    """Returns an int or a long."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])
