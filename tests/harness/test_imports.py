"""Test modules are independent of each other, and helpers that directories share are in `support`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
MODULES = {path.relative_to(TESTS).with_suffix("").as_posix(): path for path in TESTS.rglob("*.py")}
PATHS = frozenset(MODULES.values())


@cache
def imported_modules(path: Path) -> tuple[Path, ...]:
    """The modules of the tests tree that a module imports."""
    return tuple(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[Path]:
    # pytest puts the directory of a module without a package, `tests` and `jobs` on the path
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            relative = name.replace(".", "/")
            for base in (path.parent, *path.parent.parents):
                if TESTS in (base, *base.parents) and (base / f"{relative}.py") in PATHS:
                    yield base / f"{relative}.py"
                    break
            else:
                # a module of another directory, which the import finds because pytest has added that directory
                yield from (module for module in MODULES.values() if module.stem == name and len(name) > 4)


def test_no_module_imports_a_test_module() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {module.relative_to(TESTS)}"
        for path in MODULES.values()
        for module in imported_modules(path)
        if module.stem.startswith("test_") or module.stem == "conftest"
    ]
    assert not wrong, "\n".join(wrong)


def test_only_support_is_shared_between_directories() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {module.relative_to(TESTS)}"
        for path in MODULES.values()
        for module in imported_modules(path)
        if module.parent != path.parent and TESTS / "support" not in module.parents
    ]
    assert not wrong, "\n".join(wrong)


def test_support_imports_no_other_directory() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {module.relative_to(TESTS)}"
        for path in MODULES.values()
        if TESTS / "support" in path.parents
        for module in imported_modules(path)
        if TESTS / "support" not in module.parents
    ]
    assert not wrong, "\n".join(wrong)
