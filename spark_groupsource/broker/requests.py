"""Request context and response routing, shared by network, handlers, coordinators and fetch."""

from __future__ import annotations

import uuid
from enum import Enum
from typing import Any, Callable, Coroutine, Final, NamedTuple, Union

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

    DELAYED = "the response is sent by another call, later or already"
    NO_RESPONSE = "the client expects no response (Produce with acks=0)"


HandlerResult = Union[ApiMessage, ResponseAction, Coroutine[Any, Any, Union[ApiMessage, ResponseAction]]]
"""A response, or a coroutine that returns it."""

# the attributes of an Enum class are slow, and every request needs these
DELAYED: Final = ResponseAction.DELAYED
NO_RESPONSE: Final = ResponseAction.NO_RESPONSE

SendResponse = Callable[[int, "ApiMessage | None"], None]
"""Sends the response of the request with this token, None where the client expects none. Ignores unknown tokens."""
