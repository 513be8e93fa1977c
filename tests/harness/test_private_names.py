"""Private names of the package in tests: each module says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import spark_groupsource

TESTS = Path(__file__).parents[1]
PACKAGE = Path(spark_groupsource.__file__).parent
DEFINITION = re.compile(r"(?:\bself\.|\bdef |\bclass |^)(_[a-z]\w*)", re.MULTILINE)
ACCESS = re.compile(r"(?<![\w.])(?!self\.|cls\.)[\w)\]]+(?:\.\w+|\([^()]*\)|\[[^\]]*\])*\.(_[a-z]\w*)")
# of namedtuple, of IPython, and columns of data frames
PUBLIC = frozenset({"_replace", "_asdict", "_make", "_fields", "_repr_html_", "_display_", "_error"})
# a comment or docstring is on the line or among the lines before it
LINES_BEFORE = 3


def unexplained(path: Path, names: frozenset[str]) -> Iterator[str]:
    """Yields the lines that use a private name for the first time in their module, and give no reason."""
    text = path.read_text(encoding="utf-8")
    own = set(DEFINITION.findall(text)) | PUBLIC
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for name in ACCESS.findall(line):
            if name in names and name not in own:
                own.add(name)
                near = " ".join(lines[max(0, number - LINES_BEFORE) : number + 1])
                if "#" not in near and '"""' not in near:
                    yield f"{path.relative_to(TESTS)}:{number + 1}: {line.strip()}"


def test_each_use_of_a_private_name_is_explained() -> None:
    names = {name for path in PACKAGE.rglob("*.py") for name in DEFINITION.findall(path.read_text(encoding="utf-8"))}
    found = [line for path in sorted(TESTS.rglob("test_*.py")) for line in unexplained(path, frozenset(names))]
    assert found == []
