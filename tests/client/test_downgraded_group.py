"""Members of a group that is downgraded before they rejoin (KIP-848)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.scripted_group import T0, T1, Bench, joined

from spark_groupsource.client.membership.fencing import GENERATIONS_AHEAD
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.errors import BrokerError, ErrorCode, GenerationMismatchError
from spark_groupsource.model import OffsetAndMetadata

ASSIGNORS = pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
AT_5 = {T0: OffsetAndMetadata(5)}


class Downgraded:
    """Coordinator whose members have a later generation; in state Stable, the later one is of another rebalance."""

    def __init__(self, generation_id: int, state: str = "PreparingRebalance") -> None:
        self.generation_id = generation_id
        self.accepted = ErrorCode.NONE if state == "Stable" else ErrorCode.REBALANCE_IN_PROGRESS

    def code(self, generation_id: int) -> int:
        return self.accepted if generation_id == self.generation_id else ErrorCode.ILLEGAL_GENERATION

    def prepare(self, bench: Bench) -> None:
        def heartbeat(request: Any) -> Any:
            return bench.script.default_response(request, self.code(request.generation_id))

        def commit(request: Any) -> Any:
            is_right = request.generation_id_or_member_epoch == self.generation_id
            return bench.script.default_response(request, 0 if is_right else ErrorCode.ILLEGAL_GENERATION)

        bench.script.prepare("Heartbeat", *[heartbeat] * 2 * GENERATIONS_AHEAD)
        bench.script.prepare("OffsetCommit", *[commit] * 4)

    def call_coordinator(self, group: str, request: Any, timeout_ms: int, **versions: Any) -> Any:
        return SimpleNamespace(error_code=self.code(request.generation_id))


@ASSIGNORS
@pytest.mark.parametrize("first", ["Heartbeat", "OffsetCommit"])
def test_member_commits_in_the_generation_of_the_downgrade_and_rejoins(assignor: str, first: str) -> None:
    bench = joined(assignors=(assignor,))
    bench.callbacks()
    Downgraded(3).prepare(bench)
    if first == "Heartbeat":
        bench.heartbeat()
        assert bench.client.rejoin_needed and bench.client.view.partitions == (T0, T1)
    bench.client.commit(AT_5)
    assert bench.client.rejoin_needed and bench.member.generation.generation_id == 3
    bench.script.clear_prepared()
    assert bench.settle().is_stable
    assert "lost" not in [name for name, _ in bench.callbacks()]


@ASSIGNORS
def test_transaction_has_the_offsets_of_the_generation_of_the_downgrade(assignor: str) -> None:
    bench = joined(assignors=(assignor,))
    Downgraded(3).prepare(bench)
    tried = []

    class TransactionsOfTheGroup:
        def commit_offsets_each(self, group: str, commits: Any) -> list[BrokerError | None]:
            tried.extend(member.generation_id for member, _ in commits)
            rejected = BrokerError(ErrorCode.ILLEGAL_GENERATION, "TxnOffsetCommit")
            return [None if member.generation_id == 3 else rejected for member, _ in commits]

    transactions: Any = TransactionsOfTheGroup()
    bench.client.commit_in_transaction(AT_5, transactions)
    assert tried == [1, 3] and bench.client.rejoin_needed


@pytest.mark.parametrize("first", ["Heartbeat", "OffsetCommit"])
@pytest.mark.parametrize(
    "coordinator, instance_id",
    [(Downgraded(3, "Stable"), None), (Downgraded(1 + GENERATIONS_AHEAD + 1), None), (Downgraded(3), "static")],
)
def test_member_that_a_rebalance_left_out_is_fenced(coordinator: Downgraded, instance_id: str, first: str) -> None:
    bench = joined(group_instance_id=instance_id)
    coordinator.prepare(bench)
    if first == "Heartbeat":
        bench.heartbeat()
    with pytest.raises(GenerationMismatchError, match="ILLEGAL_GENERATION"):
        bench.client.commit(AT_5)


def heartbeat(coordinator: Downgraded, instance_id: str | None = None) -> int:
    cluster: Any = coordinator
    task = TaskHeartbeat(cluster, group_id="g", member_id="m", generation_id=1, group_instance_id=instance_id)
    return task.send_heartbeat(1_000)


def test_task_reads_on_in_the_generation_of_the_downgrade() -> None:
    assert heartbeat(Downgraded(3)) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "coordinator, instance_id",
    [(Downgraded(3, "Stable"), None), (Downgraded(1 + GENERATIONS_AHEAD + 1), None), (Downgraded(3), "static")],
)
def test_task_of_a_member_that_a_rebalance_left_out_is_fenced(coordinator: Downgraded, instance_id: str) -> None:
    assert heartbeat(coordinator, instance_id) == ErrorCode.ILLEGAL_GENERATION
