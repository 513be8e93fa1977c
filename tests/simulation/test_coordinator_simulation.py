"""Simulation: schedules of one seed, and detection of injected defects.

SIMULATION_SEED and SIMULATION_SCHEDULES select other schedules.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Callable

import pytest
from simulation.coordinator_simulation import main, simulate
from simulation.run import run
from simulation.schedule import draw, from_text, shorten, to_text
from support.examples import scaled

from spark_groupsource.broker.group import SessionTimer, committed_offsets, group_shard, member_sessions, sync_group
from spark_groupsource.broker.group import group_rebalance as rebalance
from spark_groupsource.broker.group.classic_group import ClassicGroup
from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.broker.group.outcome import OutcomeBuilder
from spark_groupsource.broker.group.pending_transactional_offsets import PendingTransactionalOffsets
from spark_groupsource.broker.group.responses import join_response, sync_success_response
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.group_records import GroupKey, decode_key

SEED = int(os.environ.get("SIMULATION_SEED", "20240"))
SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", scaled(2000)))
PARTS = 10

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("part", range(PARTS))
def test_invariants_hold_and_every_client_joins(part: int) -> None:
    failure = simulate(SEED, range(part, SCHEDULES, PARTS))
    assert failure is None, str(failure)


# --- injected defects


def two_leaders(patch: Patch) -> None:
    patch.setattr(
        rebalance,
        "join_success",
        lambda group, member_id: partial(join_response, group, member_id, member_id, with_members=True),
    )


def commits_of_any_generation_are_accepted(patch: Patch) -> None:
    def accept(group: ClassicGroup | None, request: Any, api_version: int) -> committed_offsets.CommitCheck:
        return committed_offsets.CommitCheck(ErrorCode.NONE)

    patch.setattr(committed_offsets, "check_commit", accept)


def heartbeats_are_not_checked(patch: Patch) -> None:
    patch.setattr(member_sessions, "_heartbeat", lambda *_: ErrorCode.NONE)


def followers_get_the_assignment_of_the_leader(patch: Patch) -> None:
    def assignment_of_leader(group: ClassicGroup, assignment: bytes) -> Any:
        return sync_success_response(group, group.members[group.leader_id or ""].assignment)

    patch.setattr(sync_group, "sync_success_response", assignment_of_leader)


def commits_are_dropped(patch: Patch) -> None:
    store = OutcomeBuilder.store_offset

    def store_most(builder: OutcomeBuilder, key: Any, value: Any) -> None:
        if value is None or key.partition != 1:
            store(builder, key, value)

    patch.setattr(OutcomeBuilder, "store_offset", store_most)


def failed_commits_are_acknowledged(patch: Patch) -> None:
    patch.setattr(committed_offsets, "failed_commit_response", lambda response, error: response)


def replay_loses_a_member(patch: Patch) -> None:
    read = ClassicGroup.from_value.__func__  # type: ignore[attr-defined]

    def without_last_member(cls: type[ClassicGroup], group_id: str, value: Any) -> Any:
        if value is not None and len(value.members) > 1:
            value = value._replace(members=value.members[:-1])
        return read(cls, group_id, value)

    patch.setattr(ClassicGroup, "from_value", classmethod(without_last_member))


def replay_ignores_tombstones(patch: Patch) -> None:
    replay = GroupStore.replay

    def replay_values(store: GroupStore, key: bytes, value: bytes | None, *args: Any) -> None:
        if value is not None or isinstance(decode_key(key), GroupKey):
            replay(store, key, value, *args)

    patch.setattr(GroupStore, "replay", replay_values)


def aborted_offsets_are_committed(patch: Patch) -> None:
    end = PendingTransactionalOffsets.end
    patch.setattr(
        PendingTransactionalOffsets, "end", lambda pending, producer_id, committed: end(pending, producer_id, True)
    )


def subscribed_offsets_expire(patch: Patch) -> None:
    patch.setattr(ClassicGroup, "subscribes_to", lambda group, topic: False)


def pending_member_ids_are_lost(patch: Patch) -> None:
    patch.setattr(ClassicGroup, "add_pending_join", lambda group, member_id: None)


def join_phases_do_not_end(patch: Patch) -> None:
    patch.setattr(rebalance, "expire_join", lambda builder, group: None)


def leaving_starts_no_rebalance(patch: Patch) -> None:
    patch.setattr(member_sessions, "rebalance_or_complete", lambda builder, group, reason, trigger: None)


def loading_starts_no_sessions(patch: Patch) -> None:
    patch.setattr(group_shard, "SessionTimer", lambda group_id, member_id: SessionTimer(group_id, "unknown"))


BROKEN: list[tuple[Callable[[Patch], None], str, int]] = [
    (two_leaders, "leader", 3),
    (commits_of_any_generation_are_accepted, "generation", 4),
    (heartbeats_are_not_checked, "generation", 4),
    (followers_get_the_assignment_of_the_leader, "owner", 3),
    (commits_are_dropped, "acknowledged", 2),
    (failed_commits_are_acknowledged, "acknowledged", 3),
    (replay_loses_a_member, "replay", 3),
    (replay_ignores_tombstones, "replay", 4),
    (aborted_offsets_are_committed, "replay", 3),
    (subscribed_offsets_expire, "acknowledged", 4),
    (pending_member_ids_are_lost, "liveness", 2),
    (join_phases_do_not_end, "counters", 2),
    (leaving_starts_no_rebalance, "counters", 3),
    (loading_starts_no_sessions, "counters", 3),
]


@pytest.mark.slow
@pytest.mark.parametrize("inject, violated, enough", BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_injected_defect_is_found_and_its_schedule_shortened(
    inject: Callable[[Patch], None], violated: str, enough: int, monkeypatch: Patch
) -> None:
    inject(monkeypatch)

    failure = simulate(SEED, range(1_000))

    assert failure is not None
    assert failure.what.startswith(f"{violated}: ")
    assert len(failure.events) <= enough < 8, str(failure)
    # the printed schedule can be replayed
    again = run(from_text(str(failure)))
    assert again == failure.what
    monkeypatch.undo()
    assert run(failure.events) is None


def test_schedule_round_trips_through_text() -> None:
    for number in range(50):
        events = draw(SEED, number)
        assert from_text(to_text(events)) == events == draw(SEED, number)
    with pytest.raises(ValueError, match="must start with a time.*'crash 5'"):
        from_text("1 move 5\ncrash 5")


def test_shortened_schedule_still_fails() -> None:
    events = [(number, "move", 1) for number in range(20)]
    needed = {events[3], events[11], events[12]}
    assert shorten(events, lambda fewer: needed <= set(fewer)) == sorted(needed)


def test_simulation_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Patch) -> None:
    assert main(["--seed", "3", "--schedules", "2"]) == 0
    assert "2 schedules of seed 3: no violations" in capsys.readouterr().out
    assert main(["--seed", "3", "--only", "5", "--trace"]) == 0
    assert "sends v" in capsys.readouterr().out

    commits_are_dropped(monkeypatch)
    assert main(["--seed", "3", "--schedules", "50"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("# seed 3, schedule ")
    (tmp_path / "failure").write_text(printed)
    assert main(["--replay", str(tmp_path / "failure")]) == 1
    assert "acknowledged: " in capsys.readouterr().out
