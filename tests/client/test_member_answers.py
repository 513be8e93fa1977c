"""Every row of the member's tables, applied to a member in every state a request can be answered in."""

from __future__ import annotations

from typing import Any

import pytest

from spark_groupsource.client.membership.response_rules import (
    HEARTBEAT_RULES,
    JOIN_RULES,
    PROTOCOL_MISMATCH,
    SYNC_RULES,
    Reaction,
    Reset,
    ResponseRule,
    fatal_error,
)
from spark_groupsource.client.membership.state_machine import (
    Generation,
    Idle,
    Joined,
    MemberConfig,
    Membership,
    MemberState,
    SendHeartbeat,
)
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode, RemoteProtocolError
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


def join_answer(error_code: int = 0, **fields: Any) -> Any:
    values = {"generation_id": 5, "protocol_type": "consumer", "protocol_name": "range", "leader": "other"}
    values |= {"member_id": "m", "members": [], "skip_assignment": False}
    return JoinGroupResponse(error_code=error_code, **(values | fields))


def syncing() -> tuple[Membership, Generation]:
    """A member with a SyncGroup outstanding."""
    membership, sent = joining()
    joined = membership.on_join_response(join_answer(), sent, 0)
    assert isinstance(joined, Joined)
    membership.sync_request({})
    return membership, joined.generation


def sync_answer(error_code: int = 0, partitions: tuple[TopicPartition, ...] = OWNED, **fields: Any) -> Any:
    values = {"protocol_type": "consumer", "protocol_name": "range"}
    return SyncGroupResponse(
        error_code=error_code, assignment=encode_assignment(Assignment(partitions)), **(values | fields)
    )


def stable() -> tuple[Membership, Generation]:
    """A member that owns one partition."""
    membership, sent = syncing()
    assert membership.on_sync_response(sync_answer(), sent, 0).reaction is Reaction.CONTINUE
    completed = membership.complete(lambda topic: True)
    assert completed is not None and completed.gained == OWNED
    return membership, membership.generation


def expected_generation(before: Generation, reset: Reset) -> Generation:
    if reset is Reset.ALL:
        return Generation()
    if reset is Reset.GENERATION:
        return Generation(-1, before.member_id, None)
    return before


@pytest.mark.parametrize("code", [c for c in ErrorCode if c != ErrorCode.NONE])
def test_join_answer(code: ErrorCode) -> None:
    membership, sent = joining()
    rule = JOIN_RULES.get(code, ResponseRule(Reaction.FAIL))

    assert membership.on_join_response(join_answer(code), sent, 0) == rule
    assert membership.state is MemberState.UNJOINED
    assert membership.rejoin_needed
    if code == ErrorCode.MEMBER_ID_REQUIRED:
        assert membership.generation == Generation(-1, "m", None)
    else:
        assert membership.generation == expected_generation(sent, rule.reset)
        assert code.name in membership.rejoin_reason
    # the owner must hear first of what stops the member, and of what was lost with a reset
    stops = rule.reaction in (Reaction.FAIL, Reaction.FENCED) or rule.reset is not Reset.NOTHING
    assert membership.prepare_needed == stops


@pytest.mark.parametrize("code", [c for c in ErrorCode if c != ErrorCode.NONE])
def test_sync_answer(code: ErrorCode) -> None:
    membership, sent = syncing()
    rule = SYNC_RULES.get(code, ResponseRule(Reaction.FAIL))

    assert membership.on_sync_response(sync_answer(code), sent, 0) == rule
    assert membership.state is MemberState.UNJOINED
    assert membership.rejoin_needed
    assert membership.generation == expected_generation(sent, rule.reset)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_heartbeat_answer_to_a_stable_member(code: ErrorCode) -> None:
    membership, sent = stable()
    rule = HEARTBEAT_RULES.get(code, ResponseRule(Reaction.RETRY_HEARTBEAT))

    assert membership.on_heartbeat_response(code, sent, 10) == rule
    assert membership.generation == expected_generation(sent, rule.reset)
    assert membership.state is (MemberState.STABLE if rule.reset is Reset.NOTHING else MemberState.UNJOINED)
    assert membership.rejoin_needed == (rule.reset is not Reset.NOTHING or rule.reaction is Reaction.REBALANCE)
    # what is owned is given up in prepare(), in the owner's thread, and not before
    assert membership.owned == OWNED
    assert membership.is_fenced == (rule.reset is not Reset.NOTHING)


@pytest.mark.parametrize("code", sorted(FENCING_ERRORS))
def test_heartbeat_answer_to_an_older_generation_means_nothing(code: int) -> None:
    membership, sent = stable()

    rule = membership.on_heartbeat_response(code, sent._replace(generation_id=sent.generation_id - 1), 10)

    assert rule == HEARTBEAT_RULES[ErrorCode.NONE]
    assert membership.generation == sent and membership.is_settled


@pytest.mark.parametrize("code", sorted(FENCING_ERRORS))
def test_join_answer_to_an_older_generation_resets_nothing(code: int) -> None:
    membership, sent = joining()

    membership.on_join_response(join_answer(code), sent._replace(generation_id=sent.generation_id - 1), 0)

    assert membership.generation == sent


def test_rebalance_heard_before_the_assignment_is_dropped() -> None:
    membership, sent = syncing()

    membership.on_heartbeat_response(ErrorCode.REBALANCE_IN_PROGRESS, sent, 0)
    membership.on_sync_response(sync_answer(), sent, 0)

    assert not membership.rejoin_needed
    membership.complete(lambda topic: True)
    membership.on_heartbeat_response(ErrorCode.REBALANCE_IN_PROGRESS, sent, 0)
    assert membership.rejoin_needed and membership.rejoin_reason == "group is already rebalancing"


@pytest.mark.parametrize("code", sorted(FENCING_ERRORS))
def test_refused_commit(code: int) -> None:
    membership, sent = stable()

    membership.on_commit_response(code, sent._replace(generation_id=0))
    assert membership.is_settled

    membership.on_commit_response(code, sent)
    kept = "m" if code == ErrorCode.ILLEGAL_GENERATION else ""
    assert membership.generation == Generation(-1, kept, None)
    assert membership.is_fenced and membership.loss_cause == FENCING_ERRORS[code]


def test_commit_while_the_group_rebalances_asks_for_a_rejoin_only() -> None:
    membership, sent = stable()

    membership.on_commit_response(ErrorCode.REBALANCE_IN_PROGRESS, sent)

    assert membership.rejoin_needed and membership.generation == sent and not membership.is_fenced


def test_join_answer_of_another_protocol_type_fails() -> None:
    membership, sent = joining()
    assert membership.on_join_response(join_answer(protocol_type="connect"), sent, 0) == PROTOCOL_MISMATCH


def test_join_answer_after_a_reset_is_dropped() -> None:
    membership, sent = joining()
    membership.on_leave("poll time-out")

    rule = membership.on_join_response(join_answer(), sent, 0)

    assert isinstance(rule, ResponseRule) and rule.reaction is Reaction.REJOIN
    assert membership.generation == Generation()


def test_sync_answer_after_a_reset_is_taken_for_an_illegal_generation() -> None:
    membership, sent = syncing()
    membership.on_leave("poll time-out")

    assert membership.on_sync_response(sync_answer(), sent, 0) == SYNC_RULES[ErrorCode.ILLEGAL_GENERATION]
    assert not membership.needs_complete


def test_sync_answer_of_another_assignor_fails() -> None:
    membership, sent = syncing()
    assert membership.on_sync_response(sync_answer(protocol_name="sticky"), sent, 0) == PROTOCOL_MISMATCH


def test_assignment_that_cannot_be_read_fails_the_round() -> None:
    membership, sent = syncing()

    with pytest.raises(RemoteProtocolError):
        membership.on_sync_response(SyncGroupResponse(error_code=0, assignment=b"\0"), sent, 0)

    assert membership.state is MemberState.UNJOINED and membership.rejoin_needed


def test_only_codes_a_member_cannot_mend_are_raised() -> None:
    raised = {code for code in ErrorCode if JOIN_RULES.get(code, ResponseRule(Reaction.FAIL)).reaction is Reaction.FAIL}
    assert {ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_AUTHORIZATION_FAILED} <= raised
    error = fatal_error("g", "JoinGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert "partition.assignment.strategy" in str(error) and "g" in str(error)


def test_heartbeats_go_on_after_a_failed_one() -> None:
    membership, _ = stable()
    membership.on_heartbeat_failure(3_000, 150)
    assert membership.next_action(3_100) == Idle(3_150)
    assert membership.next_action(3_150) == SendHeartbeat()
