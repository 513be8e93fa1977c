"""Request context and response routing, shared by network, handlers, coordinators and fetch."""

from __future__ import annotations

import uuid
from enum import Enum
from typing import Callable, Final, NamedTuple

from spark_groupsource.wire.messages import ApiMessage

TopicId = uuid.UUID

ZERO_UUID = uuid.UUID(int=0)
"""The topic id of a topic that a request names."""


class ApiRequestContext(NamedTuple):
    """A request's origin and version.

    Attributes: `token`, identifies the request when its response is sent; `client_host`, address of the client;
    `node_id`, the node that received the request.
    """

    token: int
    api_key: int
    api_version: int
    client_id: str
    client_host: str
    node_id: int


class ResponseAction(Enum):
    """What a handler returns when it has no response to send at once."""

    DELAYED = "the response is sent later"
    NO_RESPONSE = "the client expects no response (Produce with acks=0)"


# the attributes of an Enum class are slow, and every request needs these
DELAYED: Final = ResponseAction.DELAYED
NO_RESPONSE: Final = ResponseAction.NO_RESPONSE

SendResponse = Callable[[int, "ApiMessage | None"], None]
"""Sends the response of the request with this token, None where the client expects none. Ignores unknown tokens."""
