"""Imports of test modules: shared helpers are in the packages of ``tests``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PATHS = frozenset(TESTS.rglob("*.py"))
MODULES = {path.relative_to(TESTS).with_suffix("").as_posix(): path for path in PATHS}
# directories below `tests` that other directories import
PACKAGES = frozenset(path.parent for path in TESTS.glob("*/__init__.py"))
STEMS = {path.stem: path for path in PATHS if len(path.stem) > 4}
# found by their text, because to parse every file of the tests takes seconds
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(.*))", re.MULTILINE)


@cache
def imported_modules(path: Path) -> tuple[Path, ...]:
    """The modules of the tests tree that a module imports."""
    found = (module for name in imported_names(path) for module in find_module(path.parent, name))
    return tuple(dict.fromkeys(found))


def imported_names(path: Path) -> Iterator[str]:
    for source, members, modules in IMPORT.findall(path.read_text(encoding="utf-8")):
        if source:
            yield source
            yield from (f"{source}.{name}" for name in names_in(members))
        else:
            yield from names_in(modules)


def names_in(text: str) -> list[str]:
    """The names of an import statement, without what follows ``as``."""
    text = re.sub(r"#.*", "", text)
    return [part.split()[0] for part in text.strip("() \t\n").split(",") if part.strip()]


@cache
def find_module(directory: Path, name: str) -> tuple[Path, ...]:
    # pytest puts the directory of a module without a package, `tests` and `jobs` on the path
    relative = f"{name.replace('.', '/')}.py"
    while directory != TESTS.parent:
        if (found := directory / relative) in PATHS:
            return (found,)
        directory = directory.parent
    # a module of another directory, which the import finds because pytest has added that directory
    return (STEMS[name],) if name in STEMS else ()


def test_no_module_imports_a_test_module() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {module.relative_to(TESTS)}"
        for path in MODULES.values()
        for module in imported_modules(path)
        if module.stem.startswith("test_") or module.stem == "conftest"
    ]
    assert not wrong, "\n".join(wrong)


def test_only_packages_are_shared_between_directories() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {module.relative_to(TESTS)}"
        for path in MODULES.values()
        for module in imported_modules(path)
        if module.parent != path.parent and PACKAGES.isdisjoint(module.parents)
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


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports a module without its directory; a run of some files does not show that two names are equal."""
    names = Counter(path.name for path in MODULES.values() if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_test_that_needs_pandas_is_skipped_without_it() -> None:
    """An import at the top of a module would stop the collection of every test."""
    optional = re.compile(r"^(?:import|from) pandas\b", re.MULTILINE)
    assert [path.name for path in PATHS if optional.search(path.read_text(encoding="utf-8"))] == []
