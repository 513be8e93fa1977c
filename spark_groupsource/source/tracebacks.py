"""Errors as the user should meet them: Spark prints the traceback of whatever a worker raises, before its message.

The message of a `GroupSourceError` names cause and mend; how the call got there helps nobody, and hides it.
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
    """A callback of Spark that raises errors of ours without traceback and context; level DEBUG logs them whole."""

    @functools.wraps(callback)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return callback(*args, **kwargs)
        except GroupSourceError as error:
            raise strip_traceback(error) from None

    return call


def strip_traceback(error: GroupSourceError) -> GroupSourceError:
    """The same error without traceback; raise it ``from None``. A worker of Spark it ends tells its message alone."""
    _log.debug("%s", error, exc_info=error)
    if _is_worker():
        # Spark's own switch (spark.sql.execution.pyspark.udf.hideTraceback.enabled); the worker ends with this error
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


def _is_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
