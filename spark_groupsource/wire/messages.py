"""Kafka's request, response and record classes, one for all versions.

The classes are built from Kafka's message schemas (`schemas.py`) at their first use.

A message is built with keyword arguments and encoded at the version that the connection negotiated. A field outside
that version has its schema default. Nested structs are class attributes:
``JoinGroupRequest.JoinGroupRequestProtocol(name=..., metadata=...)``.

Type checkers read `messages.pyi`, which ``tests/wire/generate_message_stubs.py`` writes from the same schemas. There, a
request is a `Request` of its response class, so a function from ``Request[R]`` to ``R`` keeps the response's type, and
the fields of requests and records are read-only.
"""

from __future__ import annotations

from typing import Any

from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.message_base import (
    ApiData,
    ApiMessage,
    DataContainer,
    Request,
    Response,
    ResponseT,
    build_class,
)
from spark_groupsource.wire.schemas import schema_of

_BUILT = {
    *(f"{key.api_name}Request" for key in ApiKey),
    *(f"{key.api_name}Response" for key in ApiKey),
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "TransactionLogKey",
    "TransactionLogValue",
}

__all__ = [
    "ApiData",
    "ApiMessage",
    "DataContainer",
    "Request",
    "Response",
    "ResponseT",
    *sorted(_BUILT),
]


def __getattr__(name: str) -> Any:
    """Builds a message class at its first use: a process needs a few of them only."""
    if name not in _BUILT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # two threads that build it at once get the same class
    return globals().setdefault(name, build_class(schema_of(name), __name__))
