"""Messages of ConsumerGroupDescribe (KIP-848), which kafka-python lacks."""

from __future__ import annotations

from spark_groupsource.wire.message_base import ApiMessage

_RESOURCES = "spark_groupsource.wire.resources"


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_RESOURCES):
    """Requests groups of type ``consumer``."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_RESOURCES):
    """State, epochs and members of each group."""
