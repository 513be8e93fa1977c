"""Inference of why a member left its group.

A member was alive when it received its assignment and when it committed. If it was gone before a timeout has elapsed
since then, the timeout did not remove it: that is certain. If it was gone later, the time of its last commit shows the
timeout, unless the member committed rarely.

Source: Kafka `GroupMetadataManager` (expiration of heartbeats; LeaveGroup of a client whose poll timer has expired).
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from spark_groupsource.monitor.rebalances.group_steps import CommitTimes, GroupGeneration, Step, identity
from spark_groupsource.monitor.rebalances.rebalance import Cause
from spark_groupsource.wire.group_records import MemberValue

# a heartbeat interval of Kafka's default, after which the other members have noticed a rebalance, and its handling
NOTICE_MS = 3_500
# a client that is removed is notified at its next heartbeat and joins a group, which may wait for its initial members
_RETURN_MS = 8_000
# of one member after the other
_RESTART_MS = 30_000
_SLACK = 1.15
# the default of auto.commit.interval.ms, and a margin
_BACKGROUND_MS = 6_000


class Departure(NamedTuple):
    """Why a member is gone: the cause, and whether the member with the same client id and host came back."""

    cause: Cause
    has_returned: bool


def departure(step: Step, member: MemberValue) -> Departure:
    """Infers why a member of the previous generation is gone."""
    returned_ms = return_ms(step, member)
    has_returned = returned_ms is not None
    commits = step.current.record.commits.get(identity(member))
    gap_ms = step.current.joined_ms - last_alive_ms(step.previous, commits)
    timeout = _timeout(step, member, has_returned)
    if timeout is Cause.POLL_EXCEEDED and step.has_moved and gap_ms >= member.session_timeout_ms:
        # the outage has ended the commits, not a long batch; the new coordinator removes members that stay away
        timeout = Cause.SESSION_EXPIRED
    if timeout is not None:
        return Departure(timeout, has_returned)
    if member.group_instance_id is not None:
        # a static member does not leave when it is closed
        return Departure(
            Cause.REMOVED_BY_OPERATOR if gap_ms < member.session_timeout_ms else Cause.SESSION_EXPIRED, False
        )
    if returned_ms is not None and returned_ms <= _RETURN_MS and not _is_last_commit_explicit(step, commits):
        cause = Cause.LEFT if _is_rolling_restart(step, member) else Cause.REMOVED_BY_OPERATOR
        return Departure(cause, True)
    return Departure(Cause.LEFT, has_returned)


def last_alive_ms(generation: GroupGeneration, commits: CommitTimes | None) -> int:
    """Returns the last time at which the history shows that a member of a generation was alive."""
    return generation.completed_ms if commits is None else max(generation.completed_ms, commits.last_ms)


def return_ms(step: Step, member: MemberValue) -> int | None:
    """Time until the client joined again with a new member id, 0 within the same rebalance; None if it did not.

    None too for a client id that several members of the host have.
    """
    client = (member.client_id, member.client_host)
    same = [m for m in step.previous.members.values() if (m.client_id, m.client_host) == client]
    if len(same) > 1 or member.group_instance_id is not None:
        return None
    for following in (step, *step.later):
        if any((m.client_id, m.client_host) == client for m in following.joined):
            return following.current.joined_ms - step.current.joined_ms
    return None


def _is_rolling_restart(step: Step, member: MemberValue) -> bool:
    """True if other members, too, are gone and have returned in one of the rebalances just before or after.

    Each is started again once: a member that was gone just before is not part of the restart, nor one that a timeout
    has removed.
    """
    own = (member.client_id, member.client_host)
    near = [
        other
        for other in (*step.earlier, *step.later)
        if abs(other.current.joined_ms - step.current.joined_ms) <= _RESTART_MS
    ]
    if any(own == (m.client_id, m.client_host) for other in near if other in step.earlier for m in other.gone):
        return False
    for at, other in enumerate(near):
        closed = [m for m in other.gone if m.group_instance_id is None and _timeout(other, m, True) is None]
        gone = {(m.client_id, m.client_host) for m in closed} - {own}
        # the step in which it returned is the same or one of the next
        following = [each for each in (*near[at:], step) if each.current.joined_ms >= other.current.joined_ms]
        soon = [s for s in following if s.current.joined_ms - other.current.joined_ms <= _RETURN_MS]
        if gone & {(m.client_id, m.client_host) for s in soon for m in s.joined}:
            return True
    return False


def _timeout(step: Step, member: MemberValue, has_returned: bool) -> Cause | None:
    """Returns the timeout that removed a member; None if none has elapsed, or if the member committed too rarely."""
    commits = step.current.record.commits.get(identity(member))
    gap_ms = step.current.joined_ms - last_alive_ms(step.previous, commits)
    session_ms, poll_ms = member.session_timeout_ms, member.rebalance_timeout_ms
    can_expire = gap_ms >= session_ms
    # the poll timer of a static member does not make it leave
    usual_ms = None if commits is None else _usual_gap_ms(commits)
    # some clients commit in the background, up to one interval after the last poll
    background_ms = min(usual_ms or 0, _BACKGROUND_MS)
    # a client whose rebalance timeout is its session timeout has not sent its poll interval (aiokafka, JoinGroup v0)
    has_interval = poll_ms > 0 and poll_ms != session_ms and member.group_instance_id is None
    can_exceed = has_interval and gap_ms + background_ms >= poll_ms
    if not can_expire and not can_exceed:
        return None
    is_session = can_expire and _fits(gap_ms, session_ms, usual_ms)
    is_poll = can_exceed and _fits(gap_ms, poll_ms, usual_ms)
    if is_session and is_poll:
        is_near = [_is_near(gap_ms, timeout_ms, usual_ms) for timeout_ms in (session_ms, poll_ms)]
        # a client whose poll interval has elapsed is alive, and returns
        is_poll = is_near == [False, True] or (is_near[0] == is_near[1] and has_returned)
    if is_poll:
        return Cause.POLL_EXCEEDED
    return Cause.SESSION_EXPIRED if is_session else None


def _fits(gap_ms: int, timeout_ms: int, usual_ms: int | None) -> bool:
    """True if a silence shows the timeout: it is about as long, or commits usually follow each other far sooner."""
    return _is_near(gap_ms, timeout_ms, usual_ms) or (usual_ms is not None and usual_ms * 2 <= timeout_ms)


def _is_near(gap_ms: int, timeout_ms: int, usual_ms: int | None) -> bool:
    return gap_ms <= timeout_ms * _SLACK + NOTICE_MS + (usual_ms or 0)


def _usual_gap_ms(commits: CommitTimes) -> int | None:
    """Longest time between two commits; None after a single one."""
    return max(commits.longest_gap_ms, commits.last_gap_ms) if commits.moments > 1 else None


def _is_last_commit_explicit(step: Step, commits: CommitTimes | None) -> bool:
    """True if the member committed as it left: sooner after the commit before than usual, and just before the end."""
    if commits is None or commits.moments < 3:
        return False
    is_recent = step.current.joined_ms - commits.last_ms <= NOTICE_MS
    return is_recent and commits.last_gap_ms < median(commits.gaps_ms) * 0.8
