"""What a refused Fetch or Produce is told beside the error: who leads now, and where that node is reached.

The client then goes there at once, without asking for metadata first.

Source: KIP-951.
"""

from __future__ import annotations

from typing import Iterable

from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.wire.messages import Message

_LED_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def name_leaders(
    response: Message,
    entries: Iterable[tuple[TopicPartition, Message]],
    leaders: Leaders,
    nodes: Iterable[Node],
) -> None:
    """Adds the leader to each of `entries` that was refused for want of the present one, and its node to `response`.

    Both are messages of Fetch, of version 16 at least, or of Produce, where older versions have no place for the hint.
    """
    named = set()
    for topic_partition, entry in entries:
        if entry.error_code in _LED_ELSEWHERE:
            leader = leaders.leader(topic_partition)
            entry.current_leader = type(entry).LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
            named.add(leader.node_id)
    if named:
        response.node_endpoints = [
            type(response).NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes
            if node.node_id in named
        ]
