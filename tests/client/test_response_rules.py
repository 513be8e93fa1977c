"""Every response rule of the membership state machine, in every state."""

from __future__ import annotations

import pytest
from support.memberships import OWNED, join_response, joining, stable, sync_response, syncing

from spark_groupsource.client.membership.membership_values import Generation, Idle, MemberState, SendHeartbeat
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
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode, RemoteProtocolError
from spark_groupsource.wire.messages import SyncGroupResponse


def expected_generation(before: Generation, reset: Reset) -> Generation:
    if reset is Reset.ALL:
        return Generation()
    if reset is Reset.GENERATION:
        return Generation(-1, before.member_id, None)
    return before


@pytest.mark.parametrize("code", [c for c in ErrorCode if c != ErrorCode.NONE])
def test_join_error_is_handled_by_its_rule(code: ErrorCode) -> None:
    membership, sent = joining()
    rule = JOIN_RULES.get(code, ResponseRule(Reaction.FAIL))

    assert membership.on_join_response(join_response(code), sent, 0) == rule
    assert membership.state is MemberState.UNJOINED
    assert membership.rejoin_needed
    if code == ErrorCode.MEMBER_ID_REQUIRED:
        assert membership.generation == Generation(-1, "m", None)
    else:
        assert membership.generation == expected_generation(sent, rule.reset)
        assert code.name in membership.rejoin_reason
    # the owner gets fatal errors and lost partitions before the member joins again
    stops = rule.reaction in (Reaction.FAIL, Reaction.FENCED) or rule.reset is not Reset.NOTHING
    assert membership.prepare_needed == stops


@pytest.mark.parametrize("code", [c for c in ErrorCode if c != ErrorCode.NONE])
def test_sync_error_is_handled_by_its_rule(code: ErrorCode) -> None:
    membership, sent = syncing()
    rule = SYNC_RULES.get(code, ResponseRule(Reaction.FAIL))

    assert membership.on_sync_response(sync_response(code), sent, 0) == rule
    assert membership.state is MemberState.UNJOINED
    assert membership.rejoin_needed
    assert membership.generation == expected_generation(sent, rule.reset)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_heartbeat_error_is_handled_by_its_rule(code: ErrorCode) -> None:
    membership, sent = stable()
    rule = HEARTBEAT_RULES.get(code, ResponseRule(Reaction.RETRY_HEARTBEAT))

    assert membership.on_heartbeat_response(code, sent, 10) == rule
    assert membership.generation == expected_generation(sent, rule.reset)
    assert membership.state is (MemberState.STABLE if rule.reset is Reset.NOTHING else MemberState.UNJOINED)
    assert membership.rejoin_needed == (rule.reset is not Reset.NOTHING or rule.reaction is Reaction.REBALANCE)
    # owned partitions are released by prepare() only
    assert membership.owned == OWNED
    assert membership.is_fenced == (rule.reset is not Reset.NOTHING)


@pytest.mark.parametrize("code", sorted(FENCING_ERRORS))
def test_heartbeat_response_to_an_older_generation_is_ignored(code: int) -> None:
    membership, sent = stable()

    rule = membership.on_heartbeat_response(code, sent._replace(generation_id=sent.generation_id - 1), 10)

    assert rule == HEARTBEAT_RULES[ErrorCode.NONE]
    assert membership.generation == sent and membership.is_settled


@pytest.mark.parametrize("code", sorted(FENCING_ERRORS))
def test_join_response_to_an_older_generation_resets_nothing(code: int) -> None:
    membership, sent = joining()

    membership.on_join_response(join_response(code), sent._replace(generation_id=sent.generation_id - 1), 0)

    assert membership.generation == sent


def test_rebalance_error_before_the_assignment_is_dropped() -> None:
    membership, sent = syncing()

    membership.on_heartbeat_response(ErrorCode.REBALANCE_IN_PROGRESS, sent, 0)
    membership.on_sync_response(sync_response(), sent, 0)

    assert not membership.rejoin_needed
    membership.complete(lambda topic: True)
    membership.on_heartbeat_response(ErrorCode.REBALANCE_IN_PROGRESS, sent, 0)
    assert membership.rejoin_needed and membership.rejoin_reason == "group is already rebalancing"


@pytest.mark.parametrize("code", sorted(FENCING_ERRORS))
def test_fencing_commit_error_resets_the_member(code: int) -> None:
    membership, sent = stable()

    membership.on_commit_response(code, sent._replace(generation_id=0))
    assert membership.is_settled

    membership.on_commit_response(code, sent)
    kept = "m" if code == ErrorCode.ILLEGAL_GENERATION else ""
    assert membership.generation == Generation(-1, kept, None)
    assert membership.is_fenced and membership.loss_cause == FENCING_ERRORS[code]


def test_commit_error_during_a_rebalance_only_requests_a_rejoin() -> None:
    membership, sent = syncing()

    assert membership.on_commit_response(ErrorCode.REBALANCE_IN_PROGRESS, sent)

    assert membership.rejoin_needed and membership.generation == sent and not membership.is_fenced


def test_commit_error_during_a_rebalance_does_not_fence() -> None:
    membership, sent = syncing()

    assert membership.on_commit_response(ErrorCode.ILLEGAL_GENERATION, sent)

    assert membership.generation == sent and not membership.is_fenced


def test_commit_error_of_a_rebalance_that_has_ended_meanwhile_starts_no_other() -> None:
    membership, sent = stable()

    assert membership.on_commit_response(ErrorCode.REBALANCE_IN_PROGRESS, sent)

    assert not membership.rejoin_needed and membership.is_settled


def test_join_response_of_another_protocol_type_fails() -> None:
    membership, sent = joining()
    assert membership.on_join_response(join_response(protocol_type="connect"), sent, 0) == PROTOCOL_MISMATCH


def test_join_response_after_a_reset_is_dropped() -> None:
    membership, sent = joining()
    membership.on_leave("poll timeout")

    rule = membership.on_join_response(join_response(), sent, 0)

    assert isinstance(rule, ResponseRule) and rule.reaction is Reaction.REJOIN
    assert membership.generation == Generation()


def test_sync_response_after_a_reset_counts_as_illegal_generation() -> None:
    membership, sent = syncing()
    membership.on_leave("poll timeout")

    assert membership.on_sync_response(sync_response(), sent, 0) == SYNC_RULES[ErrorCode.ILLEGAL_GENERATION]
    assert not membership.needs_complete


def test_sync_response_of_another_assignor_fails() -> None:
    membership, sent = syncing()
    assert membership.on_sync_response(sync_response(protocol_name="sticky"), sent, 0) == PROTOCOL_MISMATCH


def test_malformed_assignment_fails_the_rebalance() -> None:
    membership, sent = syncing()

    with pytest.raises(RemoteProtocolError):
        membership.on_sync_response(SyncGroupResponse(error_code=0, assignment=b"\0"), sent, 0)

    assert membership.state is MemberState.UNJOINED and membership.rejoin_needed


def test_codes_that_a_member_cannot_handle_are_raised() -> None:
    raised = {code for code in ErrorCode if JOIN_RULES.get(code, ResponseRule(Reaction.FAIL)).reaction is Reaction.FAIL}
    assert {ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_AUTHORIZATION_FAILED} <= raised
    error = fatal_error("g", "JoinGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert "partition.assignment.strategy" in str(error) and "g" in str(error)


def test_failed_heartbeat_is_retried() -> None:
    membership, _ = stable()
    membership.on_heartbeat_failure(3_000, 150)
    assert membership.next_action(3_100) == Idle(3_150)
    assert membership.next_action(3_150) == SendHeartbeat()
