"""Errors as the user should meet them: Spark prints the traceback of whatever a callback raises, so ours have none.

The message of a `GroupSourceError` names cause and mend; how the call got there helps nobody, and hides it.
"""

from __future__ import annotations

import functools
import logging
from typing import Callable, ParamSpec, TypeVar

from spark_groupsource.errors import GroupSourceError

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def told_plainly(callback: Callable[_P, _T]) -> Callable[_P, _T]:
    """A callback of Spark that raises errors of ours without traceback and context; level DEBUG logs them whole."""

    @functools.wraps(callback)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return callback(*args, **kwargs)
        except GroupSourceError as error:
            raise plain(error) from None

    return call


def plain(error: GroupSourceError) -> GroupSourceError:
    """The same error without traceback; raise it ``from None``."""
    _log.debug("%s", error, exc_info=error)
    return error.with_traceback(None)
