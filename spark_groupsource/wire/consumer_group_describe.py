"""Messages of ConsumerGroupDescribe (KIP-848), which kafka-python lacks."""

from __future__ import annotations

from spark_groupsource.wire import messages

_RESOURCES = "spark_groupsource.wire.resources"


class ConsumerGroupDescribeRequest(messages.ApiMessage, load_json=_RESOURCES):
    """Asks for groups of type ``consumer``."""


class ConsumerGroupDescribeResponse(messages.ApiMessage, load_json=_RESOURCES):
    """State, epochs and members of each group."""
