"""Removes tracebacks from errors that Spark shows to the user.

Spark prints the traceback of an error in a Python worker before its message. The message of a `GroupSourceError` names
cause and remedy, and the user would have to search it below the traceback.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, Callable, ParamSpec, TypeVar

from spark_groupsource.errors import REMEDIES, BrokerError, ErrorCode, GroupSourceError

if TYPE_CHECKING:
    from spark_groupsource.client.network.security import SecuritySettings

_log = logging.getLogger(__name__)
_AUTHORIZATION = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
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
            client = getattr(getattr(args[0] if args else None, "_options", None), "client", None)
            raise strip_traceback(error, getattr(client, "security", None)) from None

    return call


def strip_traceback(error: GroupSourceError, security: SecuritySettings | None = None) -> GroupSourceError:
    """Returns the error without its traceback, and with the principal that lacks a permission; raise it ``from None``.
    """
    error = _with_principal(error, security)
    _log.debug("%s", error, exc_info=error)
    if _is_spark_worker():
        # what spark.sql.execution.pyspark.udf.hideTraceback.enabled sets; this error ends the worker
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


def _with_principal(error: GroupSourceError, security: SecuritySettings | None) -> GroupSourceError:
    if security is None or not isinstance(error, BrokerError) or error.code not in _AUTHORIZATION:
        return error
    hint = (error.hint or REMEDIES.get(error.code, "")).replace("User:NAME", security.principal)
    named = BrokerError(error.code, f"{error.operation} as {security.principal}", hint)
    named.__cause__ = error.__cause__
    return named


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
