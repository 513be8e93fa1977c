"""Limits of modules: lines, function lines, first lines, class names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    file
    for directory in ("spark_groupsource", "jobs", "tests", "benchmarks", "docs")
    for file in sorted((ROOT / directory).rglob("*.py"))
]
MODULE_LINES = 500
FUNCTION_LINES = 50
TITLE_WORDS = 12
# function -> reason why it is not divided
LONG_FUNCTIONS = {
    "records/plain_records.py: _check": "a loop over bytes, in which a call for each field doubles its time",
}
_DEFINITION = re.compile(r"( *)(?:async )?def ")


def long_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yields the name and the number of lines of each function that exceeds the limit."""
    lines = text.splitlines()
    if not _may_have_long_function(lines):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield node.name, length


def _may_have_long_function(lines: list[str]) -> bool:
    """Compares indentations, because to parse every file takes seconds; a class after a function may mislead it."""
    starts = [(number, len(found[1])) for number, line in enumerate(lines) if (found := _DEFINITION.match(line))]
    for at, (number, indent) in enumerate(starts):
        end = next((later for later, other in starts[at + 1 :] if other <= indent), len(lines))
        if end - number > FUNCTION_LINES:
            return True
    return False


def test_modules_have_at_most_500_lines() -> None:
    lengths = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8").count("\n") for file in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_functions_have_at_most_50_lines() -> None:
    found = {
        f"{file.parent.name}/{file.name}: {name}": lines
        for file in FILES
        for name, lines in long_functions(file.read_text("utf-8"))
    }
    assert {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS} == {}
    assert LONG_FUNCTIONS.keys() <= found.keys(), "functions that are short enough by now"


def test_first_lines_have_at_most_12_words() -> None:
    wrong = {}
    for file in FILES:
        docstring = re.match(r'"""(.*?)("""|\n)', file.read_text("utf-8"))
        title = docstring[1] if docstring else ""
        if not 0 < len(title.split()) <= TITLE_WORDS:
            wrong[file.relative_to(ROOT).as_posix()] = title
    assert wrong == {}


def test_a_long_function_is_found() -> None:
    text = "class A:\n    def f(self):\n" + "        pass\n" * 50 + "\n    def g(self):\n" + "        pass\n" * 49
    assert list(long_functions(text)) == [("f", 51)]


def test_names_of_public_classes_are_unique() -> None:
    """A search for a class finds one."""
    files: dict[str, list[str]] = {}
    for file in FILES:
        if file.is_relative_to(ROOT / "spark_groupsource"):
            for name in re.findall(r"^class ([A-Z]\w*)", file.read_text("utf-8"), re.MULTILINE):
                files.setdefault(name, []).append(file.relative_to(ROOT).as_posix())
    assert {name: found for name, found in files.items() if len(found) > 1} == {}
