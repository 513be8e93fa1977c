"""Named tuples without constructors have all of their fields."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "spark_groupsource"


def literal_calls(file: Path) -> Iterator[tuple[str, int]]:
    """Yields the class and the number of values of each `new_tuple(CLASS, (VALUES))`."""
    for node in ast.walk(ast.parse(file.read_text())):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "new_tuple"
        if not is_call:
            continue
        owner, values = node.args
        if isinstance(owner, ast.Name) and isinstance(values, ast.Tuple):
            if not any(isinstance(value, ast.Starred) for value in values.elts):
                yield owner.id, len(values.elts)


def test_named_tuples_without_constructors_have_all_fields():
    checked = 0
    for file in sorted(PACKAGE.rglob("*.py")):
        if "new_tuple(" not in file.read_text():
            continue
        module = importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
        for name, count in literal_calls(file):
            assert (file.name, name, count) == (file.name, name, len(getattr(module, name)._fields))
            checked += 1
    assert checked >= 15
