"""Filter expressions over rows: part of Python's syntax, without calls. Pure."""

from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Iterator, Mapping, Sequence

from spark_groupsource.common.arguments import near_names
from spark_groupsource.errors import ConfigurationError

_EXAMPLE = "delay > 60 and carrier == 'UA'"
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip


Row = Mapping[str, Any]


class RowFilter:
    """Selects rows by an expression; a row for which the expression fails is not selected."""

    def __init__(self, tree: ast.expr) -> None:
        self._tree = tree

    def __call__(self, row: Row) -> bool:
        try:
            return bool(_value(self._tree, row))
        except (KeyError, TypeError, IndexError, ZeroDivisionError, AttributeError):
            return False

    def check_names(self, rows: Sequence[Row]) -> None:
        """Checks that some row has each name of the expression; a misspelled one would select nothing.

        Raises: ConfigurationError with the near names.
        """
        for path in _paths(self._tree) if rows else ():
            parents = list(rows)
            for at, name in enumerate(path):
                known = [set(_names(parent) if at == 0 else parent) for parent in parents]
                if not any(name in names for names in known):
                    full = ".".join(map(str, path[: at + 1]))
                    hint = near_names(str(name), {str(each) for names in known for each in names})
                    raise ConfigurationError(
                        f"Argument where names {full}, which none of the {len(rows):,} records read has. {hint}"
                    )
                found = [_named(name, p) if at == 0 else p[name] for p, names in zip(parents, known) if name in names]
                parents = [each for each in found if isinstance(each, Mapping)]
                if not parents:
                    # a text, a list or null: the expression is evaluated as it is
                    break


def parse_filter(text: str) -> RowFilter:
    """Parses an expression of names, constants, comparisons, ``and``, ``or``, ``not``, ``in``, ``+ - / %`` and ``[]``.

    A name is a column, or a field of a decoded value.

    Raises: ConfigurationError.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"Argument where must be a function or an expression such as {_EXAMPLE}, got {text!r}: {error}."
        ) from error
    return RowFilter(tree)


def _paths(tree: ast.expr) -> Iterator[tuple[Any, ...]]:
    """Yields the names of the expression with the fields that are selected of each: ``b.c[1]`` is (b, c)."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and id(node) not in inner:
            path: list[Any] = []
            at: ast.expr = node
            while isinstance(at, (ast.Attribute, ast.Subscript)):
                inner.add(id(at.value))
                if isinstance(at, ast.Attribute):
                    path.insert(0, at.attr)
                elif isinstance(at.slice, ast.Constant) and isinstance(at.slice.value, str):
                    path.insert(0, at.slice.value)
                else:
                    path.clear()
                at = at.value
            if isinstance(at, ast.Name):
                yield (at.id, *path)


def _names(row: Row) -> set[str]:
    """Returns the columns of a row and the fields of its decoded key and value."""
    fields = (row.get(column) for column in ("value", "key"))
    return set(row).union(*(each for each in fields if isinstance(each, Mapping)))


_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.Name, ast.Load, ast.Constant,
    ast.Subscript, ast.Attribute, ast.List, ast.Tuple, ast.BinOp, *_COMPARE, *_BINARY,
)  # fmt: skip


def _check(tree: ast.expr) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ValueError(f"{type(node).__name__} is not supported")


def _value(node: ast.expr, row: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        values = (_value(each, row) for each in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, row)
        return not value if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.Compare):
        left = _value(node.left, row)
        for operation, right_node in zip(node.ops, node.comparators):
            right = _value(right_node, row)
            if not _COMPARE[type(operation)](left, right):
                return False
            left = right
        return True
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, row), _value(node.right, row))
    if isinstance(node, ast.Name):
        return _named(node.id, row)
    if isinstance(node, ast.Attribute):
        return _value(node.value, row)[node.attr]
    if isinstance(node, ast.Subscript):
        return _value(node.value, row)[_value(node.slice, row)]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each, row) for each in node.elts]
    assert isinstance(node, ast.Constant)
    return node.value


def _named(name: str, row: Mapping[str, Any]) -> Any:
    for column in ("value", "key"):
        fields = row.get(column)
        if isinstance(fields, Mapping) and name in fields:
            return fields[name]
    return row[name]
