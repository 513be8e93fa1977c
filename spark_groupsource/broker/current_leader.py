"""Current leader in error responses of Fetch and Produce (KIP-951).

The client sends its next request to the new leader without a metadata request in between.
"""

from __future__ import annotations

from typing import Any, Iterable, TypeVar

from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.wire.messages import FetchResponse, ProduceResponse

_FetchPartition = FetchResponse.FetchableTopicResponse.PartitionData
_ProducePartition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_Entry = TypeVar("_Entry", _FetchPartition, _ProducePartition)
_LEADER_CHANGED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def add_current_leaders(
    response: FetchResponse | ProduceResponse,
    failed: Iterable[tuple[TopicPartition, _Entry]],
    leaders: Leaders,
    nodes: Iterable[Node],
) -> None:
    """Adds the current leader to each partition of `failed` whose leader has changed, and its endpoint to `response`.

    `nodes` are the running ones. `response` is a Fetch response of version 16 or later, or a Produce response (older
    versions do not encode the fields).
    """
    leader_ids = set()
    for topic_partition, entry in failed:
        if entry.error_code in _LEADER_CHANGED:
            leader = leaders.leader(topic_partition)
            entry.current_leader = type(entry).LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
            leader_ids.add(leader.node_id)
    if leader_ids:
        endpoint: Any = type(response).NodeEndpoint
        response.node_endpoints = [
            endpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes
            if node.node_id in leader_ids
        ]
