"""Connections to a broker with three nodes, and requests of members."""

from __future__ import annotations

from contextlib import ExitStack

from support.commit_requests import commit_topics
from support.raw_broker import (
    RawConnection,
)

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

CONFIG = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
NODES = (1, 2, 3)


class connected(ExitStack):
    """A connection to each node, by node id."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        super().__init__()
        self._addresses = broker.bootstrap_servers.split(",")

    def __enter__(self):
        return {node: self.enter_context(RawConnection(at)) for node, at in zip(NODES, self._addresses)}


def other_than(node: int) -> int:
    return next(each for each in NODES if each != node)


# --- groups ---


def join(group, member_id=""):
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")]
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=protocols,
    )


def sync(group, generation, member_id):
    given = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[given],
    )


def heartbeat(group, generation, member_id):
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=None)


def commit(group, generation, member_id, topic, offset):
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=commit_topics(OffsetCommitRequest, {topic: {0: offset}}),
    )


def committed(group):
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    return OffsetFetchRequest(groups=[wanted], require_stable=False)


def member_of(connection, group):
    """Makes a stable group of one member; returns (member id, generation)."""
    member_id = connection.call(join(group), 5).member_id
    joined = connection.call(join(group, member_id), 5)
    assert joined.error_code == 0 and joined.leader == member_id
    assert connection.call(sync(group, joined.generation_id, member_id), 5).assignment == b"mine"
    return member_id, joined.generation_id
