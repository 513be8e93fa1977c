"""Request context and response routing, shared by network, handlers, coordinators and fetch."""

from __future__ import annotations

import uuid
from enum import Enum
from typing import Any, Callable, Final, Generator, NamedTuple, Union

from spark_groupsource.wire.messages import ApiMessage

TopicId = uuid.UUID

ZERO_UUID = uuid.UUID(int=0)
"""The topic id of a topic that a request names."""

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that has not authenticated."""

SMALL_RESPONSE_BYTES = 16_384
"""A response that is sent also while clients have not read the responses that memory permits."""


class ApiRequestContext(NamedTuple):
    """A request's origin and version.

    Attributes: `token`, identifies the request when its response is sent; `client_host`, address of the client;
    `node_id`, the node that received the request; `connection_id`, of the connection, 0 if unknown; `listener`, name of
    the listener that received it; `principal`, ``User:NAME``.
    """

    token: int
    api_key: int
    api_version: int
    client_id: str
    client_host: str
    node_id: int
    connection_id: int = 0
    listener: str = "PLAINTEXT"
    principal: str = ANONYMOUS


class ResponseAction(Enum):
    """Result of a handler without a response to send at once."""

    DELAYED = "the response is sent later"
    NO_RESPONSE = "the client expects no response (Produce with acks=0)"


# the attributes of an Enum class are slow, and every request needs these
DELAYED: Final = ResponseAction.DELAYED
NO_RESPONSE: Final = ResponseAction.NO_RESPONSE

SendResponse = Callable[[int, "ApiMessage | None"], None]
"""Sends the response of the request with this token, None where the client expects none. Ignores unknown tokens."""

Steps = Generator[Union[None, Callable[[], Any]], Any, "ApiMessage | ResponseAction"]
"""A request that is handled in steps, because it may take longer than a time slice.

``yield`` marks a point at which other requests may run, so the next step checks again what the previous ones have read.
``result = yield function`` calls `function` in the worker thread: it must be pure, and must not access the broker's
state. ``return`` gives the result of the handler. The steps are dropped when the client disconnects.
"""


def in_a_slice() -> None:
    """Yielded by short steps that are to continue in a time slice, after the requests of other clients.

    They take little memory, so they do not wait for the end of long requests.
    """
