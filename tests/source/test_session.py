"""`StreamSession` against an in-memory cluster and group on a manual clock."""

import json
import logging
from typing import Any

import pytest
from support.session_fakes import NO_LIMITS, P0, P1, P2, FakeCluster, FakeGroup, Query

from spark_groupsource.client.cluster.group_offsets import NO_IDS
from spark_groupsource.client.cluster.metadata import EARLIEST
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import (
    BrokerError,
    DataLossError,
    ErrorCode,
    GenerationMismatchError,
    NetworkError,
)
from spark_groupsource.model import OffsetAndMetadata, OffsetRange
from spark_groupsource.source.group.rebalance_reports import Reports
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.session import StreamSession


@pytest.mark.conformance("OF-002", "OF-003", "KC-037")
def test_new_query_starts_at_the_end_and_checkpoints_its_start_at_once():
    query = Query()
    assert query.trigger() == {}  # an empty batch writes the start offsets to the checkpoint
    assert query.start["t"] == {"0": 10, "1": 10, "2": 10}
    assert query.start["@group"]["acquired"] == {"t": {"0": 10, "1": 10, "2": 10}}
    assert query.trigger() is None
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


@pytest.mark.conformance("OF-008")
def test_new_query_from_earliest_reads_everything_once_and_commits_at_the_next_trigger():
    query = Query(startingOffsets="earliest")
    assert query.trigger() == {P0: (0, 10), P1: (0, 10), P2: (0, 10)}
    assert query.committed() == {}  # nothing is known to be checkpointed
    assert query.trigger() is None
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    assert query.group.commits[P0].metadata == f"groupsource {query.session.reader}"


def test_commit_has_the_ids_of_the_topic_and_of_its_cluster():
    topic_id = "0b1f3c1e-7f4e-4b43-9d0e-0e3f5d2d7a11"
    group = FakeGroup(assigned={P0: 0}, topic_ids={"t": topic_id})
    query = Query(None, FakeCluster(topic_id=topic_id, cluster_id="c1"), group)
    query.trigger()
    assert query.trigger() is None
    assert query.group.commits[P0].metadata == f'groupsource {query.session.reader} {{"i":"{topic_id}","c":"c1"}}'


def test_commit_precedes_the_rejoin():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.calls.clear()
    query.group.rebalance({P0: 0})
    assert query.trigger() == {}
    assert query.group.calls[:2] == [("commit", {P0: 10, P1: 10, P2: 10}), "poll"]
    assert query.start["t"] == {"0": 10}
    assert query.start["@group"]["acquired"] == {}


def start_rebalance(query, retained, finally_assigned, *, retains_partitions=True, polls=5):
    """Starts a rebalance of `polls` polls whose first phase leaves the partitions `retained`."""
    query.clock.advance_ms(500)
    query.group.rebalance(retained)
    query.group.retains_partitions, query.group.unsettled = retains_partitions, polls
    query.group.finally_assigned = finally_assigned
    query.group.calls.clear()


@pytest.mark.conformance("FT-030", "KC-084")
def test_retained_partitions_are_read_during_a_cooperative_rebalance():
    query = Query(startingOffsets="earliest")
    query.trigger()
    start_rebalance(query, {P0: 0}, {P0: 0, P1: 1})
    query.cluster.logs = {p: (0, 20) for p in (P0, P1, P2)}
    assert query.trigger() == {P0: (10, 20)}
    assert query.group.calls[:2] == [("commit", {P0: 10, P1: 10, P2: 10}), "poll"] and query.group.unsettled == 4
    query.group.commits[P1] = OffsetAndMetadata(15)  # committed by the previous owner
    assert query.trigger() == {P1: (15, 20)}
    assert query.committed() == {P0: 20, P1: 15, P2: 10} and query.group.unsettled == 0


def test_rebalance_is_waited_for_when_retained_partitions_have_no_records():
    query = Query(startingOffsets="earliest")
    query.session.prepare_available_now()
    query.trigger()
    start_rebalance(query, {P0: 0}, {P0: 0})
    assert query.trigger() == {} and query.group.unsettled == 4  # the revocation is checkpointed at once
    # no new records in the retained partition: availableNow must not end before the assignment is complete
    query.group.finally_assigned = {P0: 0, P1: 0}
    query.group.commits[P1] = OffsetAndMetadata(8)
    assert query.trigger() == {P1: (8, 10)} and query.group.unsettled == 0
    assert query.trigger() is None


@pytest.mark.conformance("FT-029")
def test_eager_rebalance_is_waited_for():
    query = Query(startingOffsets="earliest")
    query.trigger()
    start_rebalance(query, {}, {P0: 0}, retains_partitions=False)
    query.cluster.logs[P0] = (0, 20)
    assert query.trigger() == {P0: (10, 20)} and query.group.unsettled == 0


def test_first_assignment_is_waited_for():
    group = FakeGroup(retains_partitions=True, unsettled=3, finally_assigned={P0: 0})
    query = Query(startingOffsets="earliest", group=group)
    assert query.trigger() == {P0: (0, 10)}


def test_drain_during_a_rebalance_commits_and_leaves():
    query = Query(startingOffsets="earliest")
    query.trigger()
    start_rebalance(query, {P0: 0}, {P0: 0}, polls=10**6)
    assert query.session.request_drain(None) is False
    assert query.trigger() is None
    assert query.session.drained.is_set() and query.committed() == {P0: 10, P1: 10, P2: 10}


def test_offset_without_new_records_has_the_same_text():
    query = Query(startingOffsets="earliest")
    query.trigger()
    text = json.dumps(query.start)
    query.group.rebalance(dict(query.group.assigned))  # a new generation that moved nothing
    assert query.trigger() is None
    assert json.dumps(query.start) == text


def test_limited_available_now_ends_at_the_offsets_of_its_start():
    query = Query(startingOffsets="earliest")
    query.session.prepare_available_now()
    read = query.trigger(Limits(max_offsets=15))
    query.cluster.logs = {p: (0, 50) for p in (P0, P1, P2)}
    while (more := query.trigger(Limits(max_offsets=15))) is not None:
        read = {p: (read[p][0], more.get(p, read[p])[1]) for p in read}
        query.clock.advance_ms(1000)
    assert read == {P0: (0, 10), P1: (0, 10), P2: (0, 10)}
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


def test_available_now_ends_after_a_rebalance():
    query = Query(group=FakeGroup(assigned={P0: 0}), startingOffsets="earliest")
    query.session.prepare_available_now()
    assert query.trigger() == {P0: (0, 10)}
    query.cluster.logs = {p: (0, 99) for p in (P0, P1, P2)}
    query.group.rebalance({P0: 0, P1: 0})
    assert query.trigger() == {P1: (0, 10)}
    assert query.trigger() is None


def test_min_offsets_is_waited_for_until_max_trigger_delay():
    query = Query(group=FakeGroup(assigned={P0: 0}), startingOffsets="earliest", maxTriggerDelay="10s")
    assert query.trigger(Limits(min_offsets=100)) == {P0: (0, 10)}
    query.cluster.logs[P0] = (0, 20)
    query.clock.advance_ms(200)
    assert query.trigger(Limits(min_offsets=100)) is None
    query.clock.advance_ms(10_000)
    assert query.trigger(Limits(min_offsets=100)) == {P0: (10, 20)}


def test_idle_query_sends_at_most_ten_lookups_per_second():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()
    lookups, began_ms = query.cluster.lookups, query.clock.now_ms()
    for _ in range(50):
        assert query.trigger() is None
    # and one after 5, 10, 20, 40 and 80 ms each
    assert query.cluster.lookups - lookups <= (query.clock.now_ms() - began_ms) / 100 + 6


def test_a_query_with_records_does_not_wait_before_the_next_lookup():
    query = Query(group=FakeGroup(assigned={P0: 0}), startingOffsets="earliest")
    query.trigger()
    for _ in range(20):
        assert query.trigger() is None
    query.cluster.logs[P0] = (0, 20)
    assert query.trigger() == {P0: (10, 20)}
    began_ms = query.clock.now_ms()
    for end in (30, 40, 50):
        query.cluster.logs[P0] = (0, end)
        assert query.trigger() == {P0: (end - 10, end)}
    assert query.clock.now_ms() == began_ms
    # the first pause after records is short
    assert query.trigger() is None and query.trigger() is None
    assert 0 < query.clock.now_ms() - began_ms < 20


@pytest.mark.conformance("KC-085")
def test_tasks_carry_the_membership_of_their_member():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    tasks = query.session.input_partitions({}, end)
    assert [task.known_brokers for task in tasks] == [(Address("h0", 1), Address("h1", 1)), (Address("h2", 1),)]
    assert [(t.membership.member_id, t.membership.generation_id) for t in tasks] == [("m0", 1), ("m1", 1)]
    assert tasks[0].ranges == (OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10))


def test_no_batch_is_planned_in_a_former_generation_while_a_commit_fails():
    """A call has polled the group, and failed before it has resolved the positions of the new assignment."""

    class Interrupted(FakeGroup):
        """The first lookup of committed offsets in the second generation fails, and commits after it."""

        def committed(self, partitions, topic_ids=NO_IDS):
            if self.generation_id == 2 and not self.is_interrupted:
                self.is_interrupted, self.commit_error = True, NetworkError("lost")
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "OffsetFetch")
            return super().committed(partitions, topic_ids)

        is_interrupted = False

    query = Query(group=Interrupted(assigned={P0: 0, P1: 0}), startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = fenced()
    query.group.rebalance({P0: 0, P1: 0})
    query.cluster.logs = {p: (0, 12) for p in (P0, P1)}
    assert query.trigger() is None and query.group.is_interrupted
    query.group.commit_error = None
    end = query.session.latest_offset(query.start, NO_LIMITS)
    tasks = query.session.input_partitions(query.start, end)
    assert [task.membership.generation_id for task in tasks] == [2]


def test_batch_planned_before_a_fence_keeps_its_generation():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    query.group.joined = False  # the coordinator has removed the members between two callbacks
    tasks = query.session.input_partitions({}, end)
    assert all(task.membership.generation_id == 1 for task in tasks)


def fenced():
    return GenerationMismatchError(group_id="g", member_id="m0", generation_id=1, current_generation=2, cause="removed")


@pytest.mark.conformance("CC-043")
def test_fenced_commit_commits_nothing_and_the_query_continues(caplog):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = fenced()
    query.group.commits[P0] = OffsetAndMetadata(12)  # the new owner has read further
    query.cluster.logs[P0] = (0, 15)
    query.group.rebalance(dict(query.group.assigned))
    with caplog.at_level(logging.WARNING):
        begin = query.start
        end = query.session.latest_offset(begin, NO_LIMITS)
    assert "generation 1" in caplog.text
    assert end["@group"]["acquired"] == {"t": {"0": 12}}
    assert query.committed() == {P0: 12}
    ranges = [r for task in query.session.input_partitions(begin, end) for r in task.ranges]
    assert ranges == [OffsetRange(P0, 12, 15)]


@pytest.mark.conformance("OF-001")
def test_running_query_does_not_follow_a_reset():
    query = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    query.trigger()
    query.group.commit_error = fenced()
    query.group.commits[P0] = OffsetAndMetadata(3)
    query.group.rebalance({P0: 0})
    assert query.trigger() is None
    assert query.start["t"] == {"0": 10}


@pytest.mark.conformance("CC-037", "CC-042")
def test_failed_commit_is_retried_and_delays_the_rejoin():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")
    query.group.rebalance({P0: 0})
    query.group.calls.clear()
    assert query.trigger() is None
    query.session.commit()
    assert "poll" not in query.group.calls and query.committed() == {}
    query.group.commit_error = None
    query.group.calls.clear()
    query.trigger()
    assert query.group.calls[:2] == [("commit", {P0: 10, P1: 10, P2: 10}), "poll"]


def test_failed_commit_delays_a_rebalance_that_is_not_noticed_yet():
    """The poll itself may find the rebalance, and revoke at once."""
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")
    query.group.calls.clear()
    query.trigger()
    assert "poll" not in query.group.calls and query.committed() == {}
    query.group.commit_error = None
    query.trigger()
    assert "poll" in query.group.calls and query.committed() == {P0: 10, P1: 10, P2: 10}


def test_commit_that_fails_once_does_not_put_a_batch_before_the_rejoin():
    """A further batch would take as long as it takes while the others wait in JoinGroup."""
    query = Query(startingOffsets="earliest")
    query.trigger()
    commit, errors = query.group.commit, [BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")]

    def fails_once(*args):
        query.group.commit_error = errors.pop() if errors else None
        commit(*args)

    query.group.commit = fails_once
    query.group.rebalance({P0: 0})
    query.cluster.logs[P0] = (0, 20)
    query.group.calls.clear()
    query.trigger()
    committed = ("commit", {P0: 10, P1: 10, P2: 10})
    assert query.group.calls[:3] == [committed, committed, "poll"]


def test_commit_with_a_fatal_error_fails_the_query():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        query.trigger()


class OneReport(Reports):
    """One report, which is pending until it is committed."""

    report = "{}"

    def pending(self):
        return self.report

    def committed(self):
        self.report = ""


def test_the_lag_of_each_planned_batch_is_sampled():
    sampled = []

    class Samples(Reports):
        def lag_sampled(self, lags):
            sampled.append(dict(lags))

    query = Query(startingOffsets="earliest")
    query.session._reports = Samples()  # private: the reports of a session are those of a group
    query.trigger()
    query.trigger()
    assert sampled == [{P0: 10, P1: 10, P2: 10}, {P0: 0, P1: 0, P2: 0}]


def test_report_that_the_broker_does_not_store_is_left_out(caplog):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.session._reports = OneReport()  # private: a report of the first commit alone
    commit = query.group.commit

    def limited(offsets, *arguments):
        if any("{" in each.metadata for each in offsets.values()):
            raise BrokerError(ErrorCode.OFFSET_METADATA_TOO_LARGE, "commit")
        commit(offsets, *arguments)

    query.group.commit = limited
    query.trigger()
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    assert "offset.metadata.max.bytes is too small" in caplog.text


def test_metadata_that_the_broker_does_not_store_are_left_out(caplog):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.session._reports = OneReport()  # private: a report of the first commit alone
    commit = query.group.commit

    def limited(offsets, *arguments):
        if any(each.metadata for each in offsets.values()):
            raise BrokerError(ErrorCode.OFFSET_METADATA_TOO_LARGE, "commit")
        commit(offsets, *arguments)

    query.group.commit = limited
    query.trigger()
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    query.cluster.logs = {p: (0, 12) for p in (P0, P1, P2)}
    query.clock.advance_ms(1_000)
    query.trigger()
    query.trigger()
    assert query.committed() == {P0: 12, P1: 12, P2: 12}
    assert caplog.text.count("Commits have no metadata, because offset.metadata.max.bytes of the brokers is too") == 1


def test_commit_is_rejected_after_the_topic_was_recreated(caplog):
    """The position is one of the deleted topic; in the new one it would skip records."""
    cluster = FakeCluster(topic_id="old")
    query = Query(startingOffsets="earliest", failOnDataLoss="false", cluster=cluster, group=FakeGroup({P0: 0}))
    assert query.trigger() == {P0: (0, 10)}
    cluster.topic_id, cluster.logs, query.group.topic_ids = "new", {P0: (0, 4)}, {"t": "new"}
    assert query.trigger() == {P0: (0, 4)}
    assert query.committed() == {} and "Offsets of deleted partitions are not committed: t-0." in caplog.text
    assert query.trigger() is None and query.committed() == {P0: 4}


def test_deleted_topic_that_is_assigned_again_is_looked_up_by_name():
    """The leader's metadata may be older than the coordinator's, which no longer knows the id."""
    cluster, group = FakeCluster(topic_id="old"), FakeGroup({P0: 0})
    query = Query(startingOffsets="earliest", failOnDataLoss="false", cluster=cluster, group=group)
    query.trigger()
    query.trigger()
    cluster.logs, group.topic_ids = {}, {}
    group.rebalance({P0: 0, P1: 0})
    query.trigger()
    assert query.committed() == {P0: 10}


def test_topic_recreated_during_the_run_is_detected_by_its_id():
    query = Query(
        startingOffsets="earliest",
        cluster=FakeCluster(topic_id="old"),
        group=FakeGroup(assigned={P0: 0}),
        failOnDataLoss="false",
    )
    assert query.trigger() == {P0: (0, 10)}
    query.cluster.topic_id, query.cluster.logs[P0] = "new", (0, 12)
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (0, 12)}
    assert query.trigger() is None
    assert query.committed() == {P0: 12}


def test_topic_recreated_with_as_many_records_is_committed():
    cluster, group = FakeCluster(topic_id="old"), FakeGroup({P0: 0})
    query = Query(startingOffsets="earliest", cluster=cluster, group=group, failOnDataLoss="false")
    query.trigger()
    assert query.trigger() is None and query.committed() == {P0: 10}
    # the coordinator deletes the offsets of a deleted topic
    query.cluster.topic_id, query.group.commits = "new", {}
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (0, 10)}
    assert query.trigger() is None and query.committed() == {P0: 10}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("committed, end", [(None, 12), (8, 12), (8, 3)])
def test_topic_recreated_during_a_lookup_does_not_end_the_query(
    is_first: bool, committed: int | None, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup has found no topic; the metadata that are requested then have the new one.

    A position that was acquired from another member is one of the former topic, too.
    """
    cluster = FakeCluster(topic_id="old")
    commits = {} if committed is None else {P0: OffsetAndMetadata(committed)}
    group = FakeGroup({P0: 0}, commits)
    query = Query(startingOffsets="earliest", cluster=cluster, group=group, failOnDataLoss="false")
    if not is_first:
        assert query.trigger() == {P0: (committed or 0, 10)}
    found = cluster.list_offsets

    def recreate(*_: object, **__: object) -> None:
        monkeypatch.setattr(cluster, "list_offsets", found)
        cluster.topic_id, cluster.logs[P0] = "new", (0, end)
        group.commits.clear()
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "offset of t-0")

    monkeypatch.setattr(cluster, "list_offsets", recreate)
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (0, end)}
    assert query.trigger() is None and query.committed() == {P0: end}


def test_recreated_topic_that_is_deleted_once_more_does_not_end_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({P0: (0, 10)}, topic_id="old")
    query = Query(startingOffsets="earliest", cluster=cluster, group=FakeGroup({P0: 0}), failOnDataLoss="false")
    query.trigger()
    found = cluster.list_offsets

    def delete(requested: Any, **_: object) -> Any:
        if set(requested.values()) == {EARLIEST}:
            monkeypatch.setattr(cluster, "list_offsets", found)
            cluster.logs.clear()
        return found(requested)

    monkeypatch.setattr(cluster, "list_offsets", delete)
    cluster.topic_id = "new"
    query.clock.advance_ms(500)
    assert query.trigger() == {}
    cluster.topic_id, cluster.logs[P0] = "newest", (0, 12)
    query.clock.advance_ms(1_500)
    assert query.trigger() == {P0: (0, 12)}


@pytest.mark.parametrize("is_lenient", [True, False])
def test_topic_recreated_with_a_shorter_log_is_not_a_truncated_one(
    is_lenient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ListOffsets names topics without ids, and the cached metadata still have the former one."""
    cluster = FakeCluster(topic_id="old")
    lenient = {"failOnDataLoss": str(not is_lenient)}
    query = Query(startingOffsets="earliest", cluster=cluster, group=FakeGroup({P0: 0}), **lenient)
    assert query.trigger() == {P0: (0, 10)}
    metadata = cluster.metadata

    def cached(topics: Any = None, *, refresh: bool = False) -> Any:
        cluster.topic_id = "new" if refresh else cluster.topic_id
        return metadata(topics, refresh=refresh)

    monkeypatch.setattr(cluster, "metadata", cached)
    cluster.logs[P0] = (0, 3)
    query.clock.advance_ms(500)
    if is_lenient:
        assert query.trigger() == {P0: (0, 3)}
    else:
        with pytest.raises(DataLossError, match="t-0 was deleted and recreated; t-0 was read to offset 10"):
            query.trigger()


@pytest.mark.parametrize("is_noticed", [False, True])
def test_topic_recreated_with_fewer_partitions_is_read_from_its_start(is_noticed, caplog):
    """The leader of the group, another client, has not assigned the remaining partitions yet."""
    lenient = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = Query(cluster=FakeCluster(topic_id="old"), **lenient)
    query.trigger()
    if is_noticed:
        query.cluster.logs = {}
        query.clock.advance_ms(500)
        query.trigger()
    query.cluster.topic_id, query.cluster.logs = "new", {P0: (0, 12)}
    query.clock.advance_ms(1_500)
    assert query.trigger() == {P0: (0, 12)}
    query.group.not_existing = {P1, P2}
    query.clock.advance_ms(1_500)
    assert query.trigger() is None and query.committed()[P0] == 12
    query.group.rebalance({P0: 0})
    assert query.trigger() == {} and query.start["t"] == {"0": 12}
    assert "PARTITIONS_DELETED" in caplog.text


def test_deleted_partition_is_data_loss(caplog):
    query = Query(startingOffsets="earliest")
    query.trigger()
    del query.cluster.logs[P1]
    query.clock.advance_ms(500)
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED_AND_.*\] t-1 was deleted; t-1 was read to offset 10"):
        query.trigger()
    lenient = Query(startingOffsets="earliest", failOnDataLoss="false")
    lenient.trigger()
    lenient.cluster.logs = {P0: (0, 20), P2: (0, 10)}
    lenient.clock.advance_ms(500)
    assert lenient.trigger() == {P0: (10, 20)}
    assert lenient.trigger() is None
    assert "PARTITIONS_DELETED" in caplog.text


def test_deleted_partition_leaves_the_commits_and_the_rebalance_proceeds(caplog):
    query = Query(startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    del query.cluster.logs[P1]
    query.group.not_existing = {P1}
    query.group.rebalance({P0: 0})
    query.group.calls.clear()
    assert query.trigger() == {}
    everything = {P0: 10, P1: 10, P2: 10}
    assert query.group.calls == [("commit", everything), ("commit", {P0: 10, P2: 10}), "poll"]
    assert "Offsets of deleted partitions are not committed: t-1." in caplog.text
    assert "PARTITIONS_DELETED" in caplog.text and query.start["t"] == {"0": 10}


def test_deleted_partition_is_committed_once_in_vain():
    query = Query(startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    del query.cluster.logs[P1]
    query.group.not_existing = {P1}
    query.trigger()
    query.group.calls.clear()
    assert query.trigger() is None and query.group.calls == ["poll"]
    strict = Query(startingOffsets="earliest")
    strict.trigger()
    del strict.cluster.logs[P1]
    strict.group.not_existing = {P1}
    strict.clock.advance_ms(500)
    with pytest.raises(DataLossError, match="t-1 was deleted; t-1 was read to offset 10"):
        strict.trigger()
    assert strict.committed() == {P0: 10, P2: 10}


@pytest.mark.parametrize("topic_id, begin", [("old", 10), ("new", 0)])
def test_deleted_partition_is_read_again_when_it_exists_again(topic_id, begin):
    """As after a wrong response of one broker, or when the topic was recreated."""
    query = Query(startingOffsets="earliest", failOnDataLoss="false", cluster=FakeCluster(topic_id="old"))
    query.trigger()
    del query.cluster.logs[P1]
    query.clock.advance_ms(500)
    assert query.trigger() is None
    query.cluster.logs[P1], query.cluster.topic_id = (0, 15), topic_id
    query.clock.advance_ms(1_000)
    assert query.trigger()[P1] == (begin, 15)
    query.clock.advance_ms(1_000)
    assert query.trigger() is None and query.committed()[P1] == 15


def test_revoked_partition_that_one_response_lacks_is_not_deleted():
    query = Query(startingOffsets="earliest")
    query.trigger()
    known, responses = query.cluster.metadata, [FakeCluster({})]

    def metadata(topics=None, *, refresh=False):
        return responses.pop().metadata(topics) if refresh and responses else known(topics)

    query.cluster.metadata = metadata
    query.group.rebalance({P0: 0, P2: 1})
    query.trigger()
    assert responses == [] and query.session.status()["partitions"] == [P0, P2]


def test_partition_revoked_because_it_was_deleted_is_data_loss():
    query = Query(startingOffsets="earliest")
    query.trigger()
    del query.cluster.logs[P1]
    query.group.rebalance({P0: 0, P2: 1})
    with pytest.raises(DataLossError, match="t-1 was deleted"):
        query.trigger()


@pytest.mark.parametrize("subscribed", [{"subscribe": "t"}, {"subscribePattern": "[a-t]"}])
def test_topic_that_is_no_longer_subscribed_may_be_deleted(subscribed):
    query = Query(startingOffsets="earliest")
    query.trigger()
    checkpoint = {**query.start, "u": {"0": 5}}
    parsed = parse_options({"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", **subscribed}, "stream")
    restarted = Query(checkpoint, query.cluster, query.group, parsed=parsed)
    restarted.trigger()
    assert "u" not in restarted.start


@pytest.mark.conformance("CC-127")
@pytest.mark.conformance("KC-060")
def test_drain_commits_and_leaves_at_the_next_trigger():
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.session.request_drain(None) is False
    query.cluster.logs[P0] = (0, 99)
    assert query.trigger() is None
    assert query.session.request_drain(None) is True
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    assert query.group.calls[-1] == "leave"
    assert query.trigger() is None


def test_drain_with_the_last_end_offset_needs_no_trigger():
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.session.request_drain(query.start) is True
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


@pytest.mark.parametrize("how", ["trigger", "last end offset", "rebalance"])
def test_committed_offset_that_went_back_is_committed_again_before_the_partition_is_left(how):
    """A commit that arrives late, or a coordinator that lost what it acknowledged; the query is idle."""
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.trigger() is None
    query.group.commits[P1] = OffsetAndMetadata(4, "late")
    assert query.trigger() is None and query.committed()[P1] == 4
    if how == "rebalance":
        query.group.rebalance({P0: 0})
        query.trigger()
        assert query.group.calls.count("poll") == 4
    else:
        assert query.session.request_drain(query.start if how == "last end offset" else None) is (how != "trigger")
        query.trigger()
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


@pytest.mark.parametrize("how", ["trigger", "last end offset"])
def test_member_that_has_returned_commits_its_last_batch_before_it_leaves(how):
    """The member was removed before it could commit its last batch, which no other member has read."""
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = fenced()
    query.session.batch_finished(query.start)
    assert query.committed() == {}
    query.group.commit_error = None
    query.group.rebalance({P0: 0, P1: 0, P2: 0})
    query.session.rejoin_if_idle()
    query.session.request_drain(query.start if how == "last end offset" else None)
    query.trigger()
    assert query.session.drained.is_set() and query.committed() == {P0: 10, P1: 10, P2: 10}


def test_everything_is_committed_once_before_a_long_rebalance():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()
    start_rebalance(query, {P0: 0, P1: 0, P2: 1}, {P0: 0})
    for _ in range(3):
        query.group.rejoin_needed = True
        query.trigger()
    assert query.group.calls.count(("commit", {P0: 10, P1: 10, P2: 10})) <= 2


def test_end_offset_of_an_older_batch_does_not_drain():
    query = Query(startingOffsets="earliest")
    query.trigger()
    older = query.start
    query.cluster.logs[P0] = (0, 20)
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (10, 20)}
    assert query.session.request_drain(older) is False
    assert query.committed()[P0] == 10


@pytest.mark.conformance("KC-087")
def test_report_contains_the_end_offsets_of_owned_partitions():
    query = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    assert query.session.report_latest() is None
    query.trigger()
    assert query.session.report_latest() == {"t": {"0": 10}}


@pytest.mark.conformance("KC-032")
def test_assign_without_group_reads_and_commits_nothing():
    from spark_groupsource.source.group.ownership import AssignedPartitions

    options = parse_options(
        {"kafka.bootstrap.servers": "h:1", "assign": '{"t":[0,2]}', "startingOffsets": "earliest"}, "stream"
    )
    cluster = FakeCluster()
    session = StreamSession(cluster, options, AssignedPartitions(cluster, options), ManualClock())
    end = session.latest_offset({}, NO_LIMITS)
    tasks = session.input_partitions({}, end)
    assert [(t.membership, t.ranges) for t in tasks] == [(None, (OffsetRange(P0, 0, 10), OffsetRange(P2, 0, 10)))]
    assert session.latest_offset(end, NO_LIMITS) == end
