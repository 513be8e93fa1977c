"""Deferred packages: their ``__init__`` runs at first use, not at import."""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

_PENDING = "_is_deferred_by_groupsource"
_lock = threading.RLock()


class _DeferredPackage(ModuleType):
    """A package whose ``__init__`` runs when an attribute is read that the package does not have yet."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            # during the ``__init__`` itself a missing attribute is an error, as in any package
            if self.__dict__.pop(_PENDING, False):
                try:
                    assert self.__spec__ is not None and self.__spec__.loader is not None
                    self.__spec__.loader.exec_module(self)
                except BaseException:
                    self.__dict__[_PENDING] = True
                    raise
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def defer_package(name: str) -> None:
    """Makes an installed package importable without running its ``__init__``; does nothing once it was imported.

    Modules of the package can be imported as usual. Everything that the ``__init__`` defines is there for every other
    user of the package in this process: it runs when one of its names is read for the first time.

    Raises: ModuleNotFoundError.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = importlib.util.module_from_spec(spec)
    package.__dict__[_PENDING] = True
    package.__class__ = _DeferredPackage
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
