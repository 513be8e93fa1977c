"""Members in each state and coordinator responses, for membership tests."""

from __future__ import annotations

from typing import Any

from spark_groupsource.client.membership.membership_values import Generation, Joined, MemberConfig
from spark_groupsource.client.membership.response_rules import Reaction
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.model import Assignment, TopicPartition
from spark_groupsource.wire.consumer_protocol import encode_assignment
from spark_groupsource.wire.messages import JoinGroupResponse, SyncGroupResponse

CONFIG = MemberConfig("g", ("range",))
OWNED = (TopicPartition("t", 0),)


def joining(member_id: str = "m", generation_id: int = 4) -> tuple[Membership, Generation]:
    """A member with a JoinGroup outstanding."""
    membership = Membership(CONFIG, 0)
    membership.generation = Generation(generation_id, member_id, "range")
    membership.prepare(("t",))
    membership.join_request([("range", b"")])
    return membership, membership.generation


def join_response(error_code: int = 0, **fields: Any) -> Any:
    values: dict[str, Any] = {"generation_id": 5, "protocol_type": "consumer", "protocol_name": "range"}
    values |= {"leader": "other", "member_id": "m", "members": [], "skip_assignment": False}
    return JoinGroupResponse(error_code=error_code, **(values | fields))


def syncing() -> tuple[Membership, Generation]:
    """A member with a SyncGroup outstanding."""
    membership, sent = joining()
    joined = membership.on_join_response(join_response(), sent, 0)
    assert isinstance(joined, Joined)
    membership.sync_request({})
    return membership, joined.generation


def sync_response(error_code: int = 0, partitions: tuple[TopicPartition, ...] = OWNED, **fields: Any) -> Any:
    values = {"protocol_type": "consumer", "protocol_name": "range"}
    return SyncGroupResponse(
        error_code=error_code, assignment=encode_assignment(Assignment(partitions)), **(values | fields)
    )


def stable() -> tuple[Membership, Generation]:
    """A member that owns one partition."""
    membership, sent = syncing()
    assert membership.on_sync_response(sync_response(), sent, 0).reaction is Reaction.CONTINUE
    completed = membership.complete(lambda topic: True)
    assert completed is not None and completed.gained == OWNED
    return membership, membership.generation
