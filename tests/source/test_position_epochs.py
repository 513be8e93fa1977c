"""Leader epochs of stream positions, commits and tasks (KIP-320)."""

from __future__ import annotations

import pytest
from support.session_fakes import NO_LIMITS, P0, FakeCluster, FakeGroup, Query

from spark_groupsource.client.cluster.metadata import EpochEndOffset
from spark_groupsource.errors import BrokerError, DataLossError, ErrorCode, UnsupportedVersionError
from spark_groupsource.model import OffsetAndMetadata


def one_partition(**cluster: object) -> Query:
    fake = FakeCluster(logs={P0: (0, 10)}, **cluster)  # type: ignore[arg-type]
    return Query(cluster=fake, group=FakeGroup({P0: 0}), startingOffsets="earliest")


def regrown(query: Query) -> None:
    """A new leader without the records from 6 on was elected, and the log ends above the position."""
    query.cluster.leader_epoch, query.cluster.epoch_ends = 1, {0: EpochEndOffset(0, 6)}
    query.cluster.logs[P0] = (0, 15)
    query.clock.advance_ms(1_000)


def test_log_that_was_truncated_and_has_grown_again_is_data_loss() -> None:
    query = one_partition()
    assert query.trigger() == {P0: (0, 10)}
    regrown(query)
    with pytest.raises(DataLossError, match="PARTITION_OFFSET_CHANGED.*t-0 has other records from offset 6 on; .* 10"):
        query.trigger()


@pytest.mark.parametrize("end", [15, 8])
def test_stream_continues_where_the_log_diverges_without_fail_on_data_loss(end: int) -> None:
    fake = FakeCluster(logs={P0: (0, 10)})
    query = Query(cluster=fake, group=FakeGroup({P0: 0}), startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    regrown(query)
    fake.logs[P0] = (0, end)
    assert query.trigger() == {P0: (6, end)}


def test_restarted_query_validates_the_epoch_of_its_commit() -> None:
    query = one_partition()
    query.trigger()
    query.trigger()
    assert query.group.commits[P0].leader_epoch == 0
    restarted = Query(query.start, query.cluster, query.group, startingOffsets="earliest")
    regrown(restarted)
    with pytest.raises(DataLossError, match="PARTITION_OFFSET_CHANGED.*other records from offset 6"):
        restarted.trigger()


def test_change_of_leader_without_truncation_is_no_data_loss() -> None:
    query = one_partition()
    query.trigger()
    query.cluster.leader_epoch, query.cluster.epoch_ends = 1, {0: EpochEndOffset(0, 12)}
    query.cluster.logs[P0] = (0, 15)
    query.clock.advance_ms(1_000)
    assert query.trigger() == {P0: (10, 15)}


def test_change_of_leader_is_no_data_loss_where_the_log_has_no_epochs() -> None:
    """Message formats before v2: the leader knows no epoch, not even its own."""
    query = one_partition(leader_epoch=2)
    query.trigger()
    query.cluster.leader_epoch = 3
    query.cluster.epoch_ends = {epoch: EpochEndOffset(-1, -1) for epoch in range(4)}
    query.cluster.logs[P0] = (0, 15)
    query.clock.advance_ms(1_000)
    assert query.trigger() == {P0: (10, 15)}


def test_epoch_that_its_leader_does_not_know_is_data_loss() -> None:
    query = one_partition(leader_epoch=2)
    query.trigger()
    query.cluster.leader_epoch, query.cluster.epoch_ends = 3, {2: EpochEndOffset(-1, -1)}
    query.cluster.logs[P0] = (0, 15)
    query.clock.advance_ms(1_000)
    with pytest.raises(DataLossError, match="from an unknown offset on"):
        query.trigger()


def test_epochs_of_a_recreated_topic_start_again() -> None:
    """In the former topic, epoch 3 began at offset 9; the commit of offset 5 must not have the epoch before it."""
    fake = FakeCluster(logs={P0: (0, 10)}, topic_id="old", leader_epoch=3, epoch_ends={2: EpochEndOffset(2, 9)})
    query = Query(cluster=fake, group=FakeGroup({P0: 0}), startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    assert query.trigger() is None and query.group.commits[P0].leader_epoch == 3
    fake.topic_id, fake.logs[P0] = "new", (0, 5)
    fake.epoch_ends = {2: EpochEndOffset(2, 1), 3: EpochEndOffset(3, 2)}
    query.clock.advance_ms(1_000)
    assert query.trigger() == {P0: (0, 5)}
    assert query.trigger() is None and query.group.commits[P0] == (5, query.group.commits[P0].metadata, 3)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({2: EpochEndOffset(1, 4)}, 3),
        ({2: EpochEndOffset(1, 10), 0: EpochEndOffset(0, 2)}, 1),
        ({2: EpochEndOffset(1, 10), 0: EpochEndOffset(0, 10)}, 0),
        # Kafka's consumer would take the log for truncated where it continues at an epoch
        ({2: EpochEndOffset(-1, -1)}, -1),
    ],
    ids=["the leader's epoch", "an earlier epoch", "two epochs without records", "a log without epochs"],
)
def test_commit_carries_the_epoch_of_the_last_record(ends: dict[int, EpochEndOffset], expected: int) -> None:
    query = one_partition(leader_epoch=3, epoch_ends=ends)
    query.trigger()
    query.trigger()
    assert query.group.commits[P0].offset == 10
    assert query.group.commits[P0].leader_epoch == expected


def test_failed_lookup_of_an_epoch_does_not_fail_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    query = one_partition(leader_epoch=3)

    def fail(epochs: object, timeout_ms: int | None = None) -> None:
        raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "OffsetForLeaderEpoch")

    monkeypatch.setattr(query.cluster, "end_offsets_for_epochs", fail)
    query.trigger()
    query.trigger()
    assert query.group.commits[P0].leader_epoch == 3


def test_epochs_are_not_validated_where_the_broker_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    query = one_partition()
    query.trigger()
    regrown(query)

    def fail(epochs: object, timeout_ms: int | None = None) -> None:
        raise UnsupportedVersionError("OffsetForLeaderEpoch")

    monkeypatch.setattr(query.cluster, "end_offsets_for_epochs", fail)
    assert query.trigger() == {P0: (10, 15)}


def test_tasks_carry_the_epoch_in_which_their_ranges_were_planned() -> None:
    query = one_partition(leader_epoch=4)
    end = query.session.latest_offset({}, NO_LIMITS)
    (task,) = query.session.input_partitions({}, end)
    assert task.leader_epochs == {P0: 4}


def test_epochs_of_foreign_commits_are_validated_when_they_are_followed() -> None:
    group = FakeGroup({P0: 0}, commits={P0: OffsetAndMetadata(10, "", 0)})
    query = Query(cluster=FakeCluster(logs={P0: (0, 10)}), group=group)
    regrown(query)
    with pytest.raises(DataLossError, match="other records from offset 6"):
        query.trigger()
