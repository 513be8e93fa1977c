"""Finds the marked tests, and tests without an assertion, in the source.

A test asserts if its body has an `assert` on something other than a constant, or calls `pytest.raises`, `pytest.warns`
or `pytest.fail`, or calls a function of the tests that does so. Methods of objects do not count: most of them set up
the state under test, and their assertions are about the setup.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path
from typing import Iterator, Sequence

_PYTEST_CHECKS = frozenset({"raises", "warns", "fail"})


class Module:
    """The functions and imports of one source file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    @cached_property
    def functions(self) -> dict[str, list[ast.FunctionDef]]:
        """Name -> the module-level functions and methods of this name."""
        found: dict[str, list[ast.FunctionDef]] = {}
        for node in self.tree.body:
            for child in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(child, ast.FunctionDef):
                    found.setdefault(child.name, []).append(child)
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Local name -> (module, name in that module); the second is empty for an imported module."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
            elif isinstance(node, ast.Import):
                found.update({alias.asname or alias.name: (alias.name, "") for alias in node.names})
        return found

    def marked(self, marker: str) -> Iterator[tuple[str, list[str]]]:
        """Each function with ``@pytest.mark.<marker>(...)``, also inside `parametrize`, and the arguments."""
        for node in self._decorated:
            if marks := _marks(node, marker):
                yield node.name, [str(ast.literal_eval(arg)) for mark in marks for arg in mark.args]

    @cached_property
    def _decorated(self) -> list[ast.FunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and node.decorator_list]

    def is_collected(self, name: str) -> bool:
        """Whether pytest runs the function `name`: a function of the module that is named as a test and not skipped."""
        functions = [node for node in self.tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        return name.startswith("test") and any(not _marks(node, "skip") for node in functions)


def _marks(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    calls = [node for each in function.decorator_list for node in ast.walk(each) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == name]


class Assertions:
    """Assertions of the tests below `roots`, the directories from which tests import helpers."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._modules: dict[Path, Module] = {}
        self._known: dict[tuple[Path, str], bool] = {}

    def module(self, path: Path) -> Module:
        if path not in self._modules:
            self._modules[path] = Module(path)
        return self._modules[path]

    def has_assertion(self, path: Path, name: str) -> bool:
        """Whether the function `name` of the file `path` asserts anything; False if there is no such function."""
        key = (path, name)
        if key not in self._known:
            self._known[key] = False  # ends a recursion
            module = self.module(path)
            self._known[key] = any(self._asserts(module, node) for node in module.functions.get(name, ()))
        return self._known[key]

    def _asserts(self, module: Module, function: ast.FunctionDef) -> bool:
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
                return True
            if isinstance(node, ast.Call) and self._is_check(module, node.func):
                return True
        return False

    def _is_check(self, module: Module, called: ast.expr) -> bool:
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            owner, name = module.imports.get(called.value.id, ("", "")), called.attr
            if owner == ("pytest", ""):
                return name in _PYTEST_CHECKS
            source = self._find(module, ".".join(filter(None, owner)))
        elif isinstance(called, ast.Name):
            if called.id in module.functions:
                return self.has_assertion(module.path, called.id)
            imported, name = module.imports.get(called.id, ("", ""))
            source = self._find(module, imported)
        else:
            return False
        return source is not None and self.has_assertion(source, name)

    def _find(self, module: Module, name: str) -> Path | None:
        """The source file of an imported module, None if it is not one of the tests."""
        if not name:
            return None
        for root in (module.path.parent, *self._roots):
            path = root.joinpath(*name.split(".")).with_suffix(".py")
            if path.exists():
                return path
        return None
