"""Removes tracebacks from errors that Spark shows to the user.

Spark prints the traceback of an error in a Python worker before its message. The message of a `GroupSourceError` names
cause and remedy, and the user would have to search it below the traceback.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import Callable, ParamSpec, TypeVar

from spark_groupsource.errors import GroupSourceError

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def without_traceback(callback: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates a callback of Spark: errors of this package are raised without traceback and context.

    Level DEBUG logs the traceback.
    """

    @functools.wraps(callback)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return callback(*args, **kwargs)
        except GroupSourceError as error:
            raise strip_traceback(error) from None

    return call


def strip_traceback(error: GroupSourceError) -> GroupSourceError:
    """Returns the error without its traceback; raise it ``from None``."""
    _log.debug("%s", error, exc_info=error)
    if _is_spark_worker():
        # what spark.sql.execution.pyspark.udf.hideTraceback.enabled sets; this error ends the worker
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
