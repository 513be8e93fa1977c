"""What a column has of an Avro schema.

Source: Spark `SchemaConverters.toSqlTypeHelper` with the option `recursiveFieldMaxDepth`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, NamedTuple

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.avro.avro_schema import MAX_DEPTH, AvroField, AvroType
from spark_groupsource.values.format_options import Wanted

SPARK_DIGITS = 38
"""Digits of Spark's decimals."""
LEFT_OUT = AvroType("left out")
"""In place of a branch of a union; the others keep their places."""
# a named type that is used several times is a column at each place
_MAX_TYPES = 20_000


class Expansion(NamedTuple):
    """The type of a column.

    Attributes:
        type: without references of types to themselves.
        left_out: path of each field that the column cannot have -> the reason.
    """

    type: AvroType
    left_out: Mapping[str, str]


class ExpansionRules(NamedTuple):
    """What a column can have.

    Attributes:
        column: its name.
        recursion_depth: how often a record may be within itself, itself included; at least once.
        digits: of a decimal.
        has_nulls: whether it can have a field that is always null.
    """

    column: str
    recursion_depth: int = -1
    digits: int = SPARK_DIGITS
    has_nulls: bool = False


def expanded(avro: AvroType, rules: ExpansionRules, wanted: Wanted | None = None) -> Expansion:
    """Returns the type of a column.

    Args:
        wanted: of other fields only the names are expanded.
    Raises: ConfigurationError if the column can have nothing of the schema, or has too many types.
    """
    expander = _Expander(rules)
    found = expander.expand(avro, rules.column, {}, 1, wanted)
    if isinstance(found, str):
        raise ConfigurationError(f"Option {rules.column}.schema has nothing that a column can have: it {found}.")
    return Expansion(found, expander.left_out)


class _Expander:
    def __init__(self, rules: ExpansionRules) -> None:
        self._rules = rules
        self._types = 0
        self.left_out: dict[str, str] = {}

    def expand(
        self, avro: AvroType, path: str, outer: Mapping[str, int], depth: int, wanted: Wanted | None
    ) -> AvroType | str:
        """Returns the type, or why a column cannot have it.

        Args:
            outer: name of each record that contains it -> how often.
            depth: number of types that contain it, itself included.
        """
        self._types += 1
        if self._types > _MAX_TYPES:
            raise ConfigurationError(
                f"Option {self._rules.column}.schema has more than {_MAX_TYPES} types, those that are used repeatedly "
                f"included. Declare the fields to read with .schema(...), or lower {self._option}."
            )
        if depth > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} types"
        if avro.kind == "record":
            return self._record(avro, path, outer, depth, wanted)
        if avro.kind == "union":
            return self._union(avro, path, outer, depth, wanted)
        if avro.items is not None:
            name = "element" if avro.kind == "array" else "value"
            inner = None if wanted is None else wanted.get(name, {})
            items = self.expand(avro.items, f"{path}.{name}", outer, depth + 1, inner)
            return items if isinstance(items, str) else AvroType(avro.kind, items=items)
        if avro.precision > self._rules.digits:
            return f"is a decimal of {avro.precision} digits, more than {self._rules.digits}"
        if avro.kind == "null" and not self._rules.has_nulls:
            return "is always null"
        return avro

    @property
    def _option(self) -> str:
        return f"{self._rules.column}.recursive.fields.max.depth"

    def _record(
        self, avro: AvroType, path: str, outer: Mapping[str, int], depth: int, wanted: Wanted | None
    ) -> AvroType | str:
        times = outer.get(avro.name, 0)
        if times >= max(self._rules.recursion_depth, 1):
            return f"is of type {avro.name[:60]}, which contains it; {self._option} is {self._rules.recursion_depth}"
        fields = []
        for each in avro.fields:
            kind: AvroType | str = AvroType(each.type.kind)
            if wanted is None or each.name in wanted:
                inner = None if wanted is None else wanted[each.name]
                kind = self.expand(
                    each.type, f"{path}.{each.name}", {**outer, avro.name: times + 1}, depth + 1, inner
                )
            if isinstance(kind, str):
                self.left_out[f"{path}.{each.name}"] = kind
            else:
                fields.append(AvroField(each.name, kind))
        found = AvroType("record", avro.name)
        found.add_fields(tuple(fields))
        return found

    def _union(
        self, avro: AvroType, path: str, outer: Mapping[str, int], depth: int, wanted: Wanted | None
    ) -> AvroType | str:
        if not avro.branches:
            return "is a union without types"
        if avro.only is not None:
            return self.expand(avro.only, path, outer, depth + 1, wanted)
        others = [each for each in avro.branches if each.kind != "null"]
        if not others:
            return self.expand(avro.branches[0], path, outer, depth + 1, wanted)
        branches = []
        left_out: dict[str, str] = {}
        for at, each in enumerate(others):
            name = f"member{at}"
            kind: AvroType | str = AvroType(each.kind)
            if wanted is None or name in wanted:
                inner = None if wanted is None else wanted[name]
                kind = self.expand(each, f"{path}.{name}", outer, depth + 1, inner)
            if isinstance(kind, str):
                left_out[f"{path}.{name}"] = kind
                kind = LEFT_OUT
            branches.append(kind)
        if len(left_out) == len(branches):
            return next(iter(left_out.values()))
        self.left_out |= left_out
        return replace(avro, branches=tuple(branches))
