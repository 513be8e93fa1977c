"""Random types and JSON values, many of them damaged."""

from __future__ import annotations

import json
import random
from typing import Any, Callable

import pyarrow as pa
from support.json_grid import LITERALS, NUMBERS, RECORDS, SCALARS, STRINGS, arrow_scalar, quoted

_NAMES = ("v", "a", "key", "", "é", 'q"', "b\\", "k\n", "x.y", "V")
_CHARACTERS = '0123456789+-.,:eETZ /"\\{}[]_ntu\u00e9\u0661\U0001d7ce\ud800\x00\x07\x7f'
_DIGITS = "0123456789"
_OFFSETS = ("+00:00", "+5", "+5:3", "UTC+05:30", "-180000", "+18:00")


class JsonFuzz:
    """Draws types, values and records from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def scalar(self) -> str:
        """Returns a scalar type as DDL."""
        chosen = self._random.choice(SCALARS)
        if not chosen.startswith("decimal"):
            return chosen
        precision = self._random.randint(1, 38)
        return f"decimal({precision},{self._random.randint(0, precision)})"

    def kind(self) -> pa.DataType:
        """Returns a type of records."""
        if self._random.random() < 0.1:
            return self._choice([pa.list_(pa.field("element", self._type(2))), pa.map_(pa.string(), self._type(2))])
        return self._struct(3)

    def value(self) -> str:
        """Returns the JSON of a value that is no object, or what is none."""
        choices: list[Callable[[], str]] = [
            lambda: self._choice(NUMBERS), lambda: quoted(self._choice(STRINGS)), lambda: self._choice(LITERALS),
            self._number, lambda: quoted(self._number()), lambda: quoted(self._time()),
        ]  # fmt: skip
        found = self._choice(choices)()
        return found if self._random.random() < 0.7 else self._changed(found)

    def record(self, kind: pa.DataType) -> bytes | None:
        """Returns the JSON of a record, which may be damaged."""
        draw = self._random.random()
        if draw < 0.02:
            return self._choice([None, b"", b" ", *RECORDS])
        data = self._json(kind).encode("utf-8", "surrogatepass")
        if draw < 0.15 and data:
            at = self._random.randrange(len(data))
            data = (
                data[:at] + self._random.randbytes(self._random.randint(0, 2)) + data[at + self._random.randint(0, 2) :]
            )
        return data

    def _choice(self, options: Any) -> Any:
        return self._random.choice(options)

    def _type(self, levels: int) -> pa.DataType:
        nested = self._random.random() < 0.3 and levels
        if not nested:
            return arrow_scalar(self.scalar())
        inner = self._type(levels - 1)
        return self._choice(
            [pa.list_(pa.field("element", inner)), pa.map_(pa.string(), inner), self._struct(levels - 1)]
        )

    def _struct(self, levels: int) -> pa.DataType:
        names = self._random.sample(_NAMES, self._random.randint(1, 4))
        return pa.struct([(name, self._type(levels)) for name in names])

    def _json(self, kind: pa.DataType) -> str:
        """Returns JSON that mostly has the form of a type."""
        space = self._choice(["", "", "", " ", "\n", "\t "])
        if self._random.random() < 0.02:
            return self.value()
        if pa.types.is_struct(kind):
            names = [field.name for field in kind if self._random.random() < 0.9]
            if self._random.random() < 0.2:
                names += [self._choice([*_NAMES, *kind.names])]
            members = [self._member(name, kind) for name in names]
            return f"{{{space}{(',' + space).join(members)}}}"
        if pa.types.is_map(kind):
            keys = self._random.choices(_NAMES, k=self._random.randint(0, 3))
            return f"{{{','.join(f'{self._key(key)}:{space}{self._json(kind.item_type)}' for key in keys)}{space}}}"
        if pa.types.is_list(kind):
            elements = [self._json(kind.value_type) for _ in range(self._random.randint(0, 3))]
            return f"[{space}{','.join(elements)}]"
        return self._fitting(kind)

    def _member(self, name: str, kind: pa.DataType) -> str:
        at = kind.get_field_index(name)
        value = self._json(kind.field(at).type) if at >= 0 else self.value()
        return f"{self._key(name)}:{value}"

    def _key(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=self._random.random() < 0.5)

    def _fitting(self, kind: pa.DataType) -> str:
        """Returns a value that is mostly one of a scalar type."""
        if self._random.random() < 0.1:
            return self.value()
        if pa.types.is_boolean(kind):
            return self._choice(["true", "false", "null"])
        if pa.types.is_integer(kind):
            return str(self._random.randint(-(1 << kind.bit_width), 1 << kind.bit_width) >> self._random.randrange(20))
        if pa.types.is_temporal(kind):
            return quoted(self._time())
        if pa.types.is_binary(kind):
            return quoted(self._choice(["AAE=", "", "AAEC", "AA==", "AAE"]))
        if pa.types.is_string(kind):
            return quoted("".join(self._random.choices("ab\u00e9 ", k=self._random.randint(0, 5))))
        number = self._number()
        return number if self._random.random() < 0.7 else quoted(number)

    def _number(self) -> str:
        whole = "".join(
            self._random.choices(_DIGITS, k=self._choice([0, 1, 1, 2, 3, 5, 9, 10, 18, 19, 20, 38, 39]))
        ).lstrip("0")
        fraction = "".join(self._random.choices(_DIGITS, k=self._choice([0, 0, 0, 1, 2, 3, 6, 18, 38, 60])))
        exponent = self._choice(
            ["", "", "", "", f"e{self._random.randint(-420, 420)}", f"E+{self._random.randint(0, 40)}"]
        )
        return f"{self._choice(['', '', '-'])}{whole or '0'}{'.' if fraction else ''}{fraction}{exponent}"

    def _time(self) -> str:
        """Returns a time, of which each part may be left out or another one."""
        draw = self._random
        year = self._choice(
            ["2024", "2020", "0000", "0001", "9999", "10000", "-0044", "294247", str(draw.randint(0, 9999)).zfill(4)]
        )
        text = f"{year}-{draw.randint(0, 13):02}-{draw.randint(0, 32):02}"
        if draw.random() < 0.5:
            text = f"{year}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
        if draw.random() < 0.75:
            text += f"{self._choice('T T T  t')}{draw.randint(0, 24):02}:{draw.randint(0, 60):02}"
            if draw.random() < 0.9:
                text += f":{draw.randint(0, 60):02}"
            if draw.random() < 0.4:
                text += "." + "".join(draw.choices(_DIGITS, k=draw.randint(0, 10)))
            if draw.random() < 0.6:
                offset = (
                    f"{self._choice('+-')}{draw.randint(0, 19):02}{self._choice([':', ''])}{draw.randint(0, 60):02}"
                )
                text += self._choice(["Z", "Z", " Z", "UTC", "GMT", *_OFFSETS, offset, "CET"])
        return text[: draw.randint(0, len(text))] if draw.random() < 0.1 else text

    def _changed(self, text: str) -> str:
        at = self._random.randint(0, len(text))
        return text[:at] + self._choice(_CHARACTERS) + text[at + self._random.randint(0, 1) :]
