"""The session's order of things, against a group and a cluster that are plain tables; a manual clock."""

import json
import logging
from dataclasses import dataclass, field

import pytest

from spark_groupsource.client.cluster.metadata import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicInfo,
)
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.clock import ManualClock
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    DataLossError,
    ErrorCode,
    GenerationMismatchError,
)
from spark_groupsource.model import Node, OffsetAndMetadata, OffsetRange, TopicPartition
from spark_groupsource.net import Address
from spark_groupsource.source.options import parse_options
from spark_groupsource.source.session import Limits, StreamSession
from spark_groupsource.source.task_reader import TaskMembership

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
NO_LIMITS = Limits()


@dataclass
class FakeCluster:
    """Logs as pairs of start and end."""

    logs: dict = field(default_factory=lambda: {p: (0, 10) for p in (P0, P1, P2)})
    asked: int = 0
    topic_id: str | None = None
    settings = ClientSettings((Address("h", 1),))

    def metadata(self, topics=None, *, refresh=False):
        partitions = {p.partition: PartitionInfo(p.partition, 1, 0) for p in self.logs}
        if topics and not partitions:
            return ClusterMetadata({}, {}, errors={t: 3 for t in topics})
        return ClusterMetadata({1: Node(1, "h", 1)}, {"t": TopicInfo("t", self.topic_id, partitions)})

    def list_offsets(self, partitions, read_committed=None):
        self.asked += 1
        for p in partitions:
            if p not in self.logs:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offset of {p}")
        side = {EARLIEST: 0, LATEST: 1}
        return {p: OffsetAndTimestamp(self.logs[p][side[at]], -1, -1) for p, at in partitions.items()}

    def close(self):
        pass


@dataclass
class FakeGroup:
    """A group whose assignment the test sets; `calls` tells in which order it was used."""

    assigned: dict = field(default_factory=lambda: {P0: 0, P1: 0, P2: 1})
    commits: dict = field(default_factory=dict)
    generation_id: int = 0
    is_moving: bool = True
    next_assigned: dict | None = None
    commit_error: Exception | None = None
    calls: list = field(default_factory=list)
    joined: bool = False
    keeps: bool = False
    # how many polls more find the round still going on, and what it brings when it ends
    unsettled: int = 0
    finally_assigned: dict | None = None

    def refresh(self, timeout_ms):
        self.calls.append("poll")
        if self.is_moving:
            self.is_moving = False
            self.generation_id += 1
            self.assigned = self.assigned if self.next_assigned is None else self.next_assigned
            self.next_assigned = None
            self.joined = True
        if self.unsettled:
            self.unsettled -= 1
            return False
        if self.finally_assigned is not None:
            self.assigned, self.finally_assigned = self.finally_assigned, None
            self.generation_id += 1
        return True

    def owners(self):
        return dict(self.assigned) if self.joined else {}

    def members(self):
        return {m: TaskMembership("g", f"m{m}", self.generation_id, None, 3000) for m in set(self.owners().values())}

    def committed(self, partitions):
        return {p: self.commits.get(p) for p in partitions}

    def commit(self, offsets, patience_ms=None):
        self.calls.append(("commit", {p: o.offset for p, o in offsets.items()}))
        if self.commit_error is not None:
            raise self.commit_error
        assert set(offsets) <= set(self.owners())
        self.commits.update(offsets)

    def leave(self, reason):
        self.calls.append("leave")
        self.joined = False

    def rebalance(self, assigned):
        self.is_moving, self.next_assigned = True, assigned


class Query:
    """Plays Spark: hands back the last end, as it was when it came from a checkpoint."""

    def __init__(self, start=None, cluster=None, group=None, **options):
        base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g", **options}
        self.cluster, self.group = cluster or FakeCluster(), group or FakeGroup()
        self.clock = ManualClock()
        self.session = StreamSession(self.cluster, parse_options(base, "stream"), self.group, self.clock)
        self.start = start or {}

    def trigger(self, limits=NO_LIMITS):
        """One trigger: the tasks of the batch, or None when there was nothing to do."""
        begin, end = self.start, self.session.latest_offset(json.loads(json.dumps(self.start)), limits)
        if json.dumps(end) == json.dumps(begin) and begin:
            return None
        self.start = json.loads(json.dumps(end))
        tasks = self.session.input_partitions(begin, self.start)
        self.session.commit()
        return {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges}

    def committed(self):
        return {p: commit.offset for p, commit in self.group.commits.items()}


def ours(offset):
    return OffsetAndMetadata(offset, "groupsource abc")


def test_fresh_query_starts_at_the_end_and_persists_that_at_once():
    query = Query()
    assert query.trigger() == {}  # an empty batch, so that the checkpoint holds where the query began
    assert query.start["t"] == {"0": 10, "1": 10, "2": 10}
    assert query.start["@group"]["acquired"] == {"t": {"0": 10, "1": 10, "2": 10}}
    assert query.trigger() is None
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


@pytest.mark.parametrize("starting, begin", [("latest", 10), ("group-or-latest", 10), ("-4", 6), ("earliest", None)])
def test_where_a_group_begins_is_committed_before_anything_is_read(starting, begin):
    """A reader that dies before its first commit must leave to others where the group began, if that moves."""
    query = Query(startingOffsets=starting, group=FakeGroup(assigned={P0: 0}))
    end = query.session.latest_offset({}, NO_LIMITS)
    assert query.committed() == ({} if begin is None else {P0: begin})
    assert end["@group"]["acquired"] == {"t": {"0": begin or 0}}
    # what was found later belongs to this group from its begin on
    query.start = end
    query.group.rebalance({P0: 0, P1: 0})
    assert query.trigger() == {P1: (0, 10)}


def test_begin_that_cannot_be_committed_stops_nothing(caplog):
    group = FakeGroup(assigned={P0: 0}, commit_error=BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit"))
    query = Query(startingOffsets="latest", group=group)
    assert query.trigger() == {} and query.start["t"] == {"0": 10}
    assert "not committed yet" in caplog.text
    query.group.commit_error = None
    assert query.trigger() is None and query.committed() == {P0: 10}


def test_query_that_is_given_nothing_at_first_still_starts_where_it_was_told():
    """As every new member of a cooperative group: what it gets, others have to give up first."""
    query = Query(startingOffsets="-4", group=FakeGroup(assigned={}))
    assert query.trigger() == {} and query.start["@group"]["reader"]
    query.group.rebalance({P0: 0})
    assert query.trigger() == {P0: (6, 10)}


def test_fresh_query_from_earliest_reads_everything_once_and_commits_within_one_trigger():
    query = Query(startingOffsets="earliest")
    assert query.trigger() == {P0: (0, 10), P1: (0, 10), P2: (0, 10)}
    assert query.committed() == {}  # nothing is proved to be checkpointed
    assert query.trigger() is None
    assert query.committed() == {P0: 10, P1: 10, P2: 10}
    assert query.group.commits[P0].metadata == f"groupsource {query.session.reader}"


def test_what_is_owned_without_joining_goes_on_where_the_group_was_put():
    """With `assign`: the checkpoint must not be committed over what is in the group before both were compared."""
    before = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    before.trigger()
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(4)}, joined=True, is_moving=False)
    query = Query(start=before.start, group=group)
    assert query.trigger() == {P0: (4, 10)}
    assert query.committed() == {P0: 4}


def test_group_wins_over_starting_offsets():
    query = Query(group=FakeGroup(commits={P0: OffsetAndMetadata(4)}), startingOffsets="earliest")
    assert query.trigger() == {P0: (4, 10), P1: (0, 10), P2: (0, 10)}


def test_commit_comes_before_the_hand_over():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.calls.clear()
    query.group.rebalance({P0: 0})
    assert query.trigger() == {}
    assert query.group.calls[:2] == [("commit", {P0: 10, P1: 10, P2: 10}), "poll"]
    assert query.start["t"] == {"0": 10}
    assert query.start["@group"]["acquired"] == {}


def in_a_round(query, kept, finally_assigned, *, keeps=True, polls=5):
    """A round that takes `polls` polls; its first phase leaves `kept`."""
    query.clock.advance_ms(500)
    query.group.rebalance(kept)
    query.group.keeps, query.group.unsettled, query.group.finally_assigned = keeps, polls, finally_assigned
    query.group.calls.clear()


def test_what_stays_is_read_while_a_cooperative_round_goes_on():
    query = Query(startingOffsets="earliest")
    query.trigger()
    in_a_round(query, {P0: 0}, {P0: 0, P1: 1})
    query.cluster.logs = {p: (0, 20) for p in (P0, P1, P2)}
    assert query.trigger() == {P0: (10, 20)}
    assert query.group.calls[:2] == [("commit", {P0: 10, P1: 10, P2: 10}), "poll"] and query.group.unsettled == 4
    query.group.commits[P1] = OffsetAndMetadata(15)  # what the round brings was read on by someone else
    assert query.trigger() == {P1: (15, 20)}
    assert query.committed() == {P0: 20, P1: 15, P2: 10} and query.group.unsettled == 0


def test_round_that_leaves_nothing_to_read_is_waited_for():
    query = Query(startingOffsets="earliest")
    query.session.prepare_available_now()
    query.trigger()
    in_a_round(query, {P0: 0}, {P0: 0})
    assert query.trigger() == {} and query.group.unsettled == 4  # what was given up is written down at once
    # nothing new of what stays: availableNow must not end before it knows what else it is given
    query.group.finally_assigned = {P0: 0, P1: 0}
    query.group.commits[P1] = OffsetAndMetadata(8)
    assert query.trigger() == {P1: (8, 10)} and query.group.unsettled == 0
    assert query.trigger() is None


def test_eager_round_is_waited_for_whatever_there_is_to_read():
    query = Query(startingOffsets="earliest")
    query.trigger()
    in_a_round(query, {}, {P0: 0}, keeps=False)
    query.cluster.logs[P0] = (0, 20)
    assert query.trigger() == {P0: (10, 20)} and query.group.unsettled == 0


def test_first_assignment_is_waited_for():
    query = Query(startingOffsets="earliest", group=FakeGroup(keeps=True, unsettled=3, finally_assigned={P0: 0}))
    assert query.trigger() == {P0: (0, 10)}


def test_drain_during_a_round_commits_and_leaves():
    query = Query(startingOffsets="earliest")
    query.trigger()
    in_a_round(query, {P0: 0}, {P0: 0}, polls=10**6)
    assert query.session.request_drain(None) is False
    assert query.trigger() is None
    assert query.session.drained.is_set() and query.committed() == {P0: 10, P1: 10, P2: 10}


def test_reacquired_partition_goes_on_where_the_other_member_committed():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.rebalance({P0: 0})
    query.trigger()
    query.cluster.logs[P1] = (0, 30)
    query.group.commits[P1] = OffsetAndMetadata(20)
    query.group.rebalance({P0: 0, P1: 1})
    assert query.trigger() == {P1: (20, 30)}
    assert query.start["@group"]["acquired"] == {"t": {"1": 20}}
    assert query.trigger() is None
    assert query.committed()[P1] == 30


def test_nothing_new_returns_the_very_same_text():
    query = Query(startingOffsets="earliest")
    query.trigger()
    text = json.dumps(query.start)
    query.group.rebalance(dict(query.group.assigned))  # a new generation that moved nothing
    assert query.trigger() is None
    assert json.dumps(query.start) == text


RESTART = {"t": {"0": 7}, "@group": {"acquired": {}, "generation": 3, "reader": "abc"}}


@pytest.mark.parametrize(
    "committed, reaction, expected, finally_committed",
    [
        (None, "follow", (7, 10), 10),
        (ours(7), "follow", (7, 10), 10),
        (ours(5), "follow", (7, 10), 10),  # the crash came before the commit
        (OffsetAndMetadata(9), "follow", (9, 10), 10),
        (OffsetAndMetadata(5), "follow", (5, 10), 10),
        (OffsetAndMetadata(5), "ignore", (7, 10), 10),
    ],
)
def test_which_offset_wins_at_restart(committed, reaction, expected, finally_committed):
    group = FakeGroup(assigned={P0: 0}, commits={P0: committed} if committed else {})
    query = Query(RESTART, group=group, onGroupReset=reaction)
    assert query.trigger() == {P0: expected}
    query.trigger()
    assert query.committed() == {P0: finally_committed}


def test_reset_fails_where_asked():
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(5)})
    with pytest.raises(ConfigurationError, match="moved back from outside, to 5; the checkpoint is at 7"):
        Query(RESTART, group=group, onGroupReset="fail").trigger()


def test_commit_of_a_foreign_member_that_was_followed_is_no_reset_after_a_crash():
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(5)})
    killed = Query(group=group, onGroupReset="fail")
    assert killed.trigger() == {P0: (5, 10)}
    # its batch is checkpointed, and it never came to commit it
    assert query_again(killed).trigger() is None
    # what an operator does afterwards is a reset all the same
    group.commits[P0] = OffsetAndMetadata(5)
    with pytest.raises(ConfigurationError, match="moved back from outside, to 5; the checkpoint is at 10"):
        query_again(killed).trigger()


def query_again(killed):
    group = FakeGroup(assigned=killed.group.assigned, commits=killed.group.commits)
    return Query(killed.start, killed.cluster, group, onGroupReset="fail")


def test_restart_without_new_data_commits_the_checkpoint():
    group = FakeGroup(assigned={P0: 0}, commits={P0: ours(5)})
    query = Query(RESTART, FakeCluster({P0: (0, 7)}), group)
    assert query.trigger() is None
    assert query.committed() == {P0: 7}


def test_partition_unknown_to_checkpoint_and_group_starts_at_earliest_after_the_first_batch():
    query = Query(RESTART, FakeCluster({P0: (0, 7), P1: (3, 9)}), FakeGroup(assigned={P0: 0, P1: 0}))
    assert query.trigger() == {P1: (3, 9)}


def test_checkpoint_of_sparks_own_source_is_continued():
    query = Query({"t": {"0": 4, "1": 10}}, group=FakeGroup(assigned={P0: 0, P1: 0}))
    assert query.trigger() == {P0: (4, 10)}
    assert query.start["@group"]["reader"]


def test_limit_and_availableNow_end_at_the_first_snapshot():
    query = Query(startingOffsets="earliest")
    query.session.prepare_available_now()
    read = query.trigger(Limits(max_offsets=15))
    query.cluster.logs = {p: (0, 50) for p in (P0, P1, P2)}
    while (more := query.trigger(Limits(max_offsets=15))) is not None:
        read = {p: (read[p][0], more.get(p, read[p])[1]) for p in read}
        query.clock.advance_ms(1000)
    assert read == {P0: (0, 10), P1: (0, 10), P2: (0, 10)}
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


def test_rebalance_during_availableNow_still_ends():
    query = Query(group=FakeGroup(assigned={P0: 0}), startingOffsets="earliest")
    query.session.prepare_available_now()
    assert query.trigger() == {P0: (0, 10)}
    query.cluster.logs = {p: (0, 99) for p in (P0, P1, P2)}
    query.group.rebalance({P0: 0, P1: 0})
    assert query.trigger() == {P1: (0, 10)}
    assert query.trigger() is None


def test_minimum_is_waited_for_until_the_longest_delay():
    query = Query(group=FakeGroup(assigned={P0: 0}), startingOffsets="earliest", maxTriggerDelay="10s")
    assert query.trigger(Limits(min_offsets=100)) == {P0: (0, 10)}
    query.cluster.logs[P0] = (0, 20)
    query.clock.advance_ms(200)
    assert query.trigger(Limits(min_offsets=100)) is None
    query.clock.advance_ms(10_000)
    assert query.trigger(Limits(min_offsets=100)) == {P0: (10, 20)}


def test_idle_polling_asks_the_brokers_ten_times_a_second():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()
    asked, began_ms = query.cluster.asked, query.clock.now_ms()
    for _ in range(50):
        assert query.trigger() is None
    assert query.cluster.asked - asked <= (query.clock.now_ms() - began_ms) / 100 + 1


def test_tasks_act_for_their_members():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    tasks = query.session.input_partitions({}, end)
    assert [(t.membership.member_id, t.membership.generation_id) for t in tasks] == [("m0", 1), ("m1", 1)]
    assert tasks[0].ranges == (OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10))


def test_batch_planned_before_a_fence_is_still_fenced():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    query.group.joined = False  # the members were thrown out between two callbacks
    tasks = query.session.input_partitions({}, end)
    assert all(task.membership.generation_id == 1 for task in tasks)


def test_replay_reads_the_logged_range_without_membership(caplog):
    query = Query(RESTART)
    end = {"t": {"0": 9, "1": 8}, "@group": {"acquired": {"t": {"1": 6}}, "generation": 3, "reader": "abc"}}
    with caplog.at_level(logging.WARNING):
        tasks = query.session.input_partitions(RESTART, end)
    assert [(t.membership, t.ranges) for t in tasks] == [(None, (OffsetRange(P0, 7, 9), OffsetRange(P1, 6, 8)))]
    assert "reading a logged batch of t-0, t-1 again, without membership" in caplog.text
    assert query.group.calls == []  # no join


def test_replay_of_batch_zero_needs_no_start():
    query = Query(startingOffsets="earliest")
    query.trigger()
    again = Query()
    tasks = again.session.input_partitions({}, query.start)
    assert {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges} == {
        p: (0, 10) for p in (P0, P1, P2)
    }


def fenced():
    return GenerationMismatchError(group_id="g", member_id="m0", generation_id=1, current_generation=2, cause="gone")


@pytest.mark.conformance("CC-043")
def test_fenced_commit_moves_nothing_and_the_query_goes_on(caplog):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = fenced()
    query.group.commits[P0] = OffsetAndMetadata(12)  # the new owner went on from our position and beyond
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


def test_run_in_progress_never_goes_back():
    query = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    query.trigger()
    query.group.commit_error = fenced()
    query.group.commits[P0] = OffsetAndMetadata(3)
    query.group.rebalance({P0: 0})
    assert query.trigger() is None
    assert query.start["t"] == {"0": 10}


@pytest.mark.conformance("CC-037", "CC-042")
def test_failed_commit_is_repeated_and_holds_up_the_hand_over(caplog):
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


def test_refused_commit_fails_the_query():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        query.trigger()


def test_shrunken_log_is_data_loss():
    group = FakeGroup(assigned={P0: 0})
    with pytest.raises(DataLossError, match=r"KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED.*t-0 ends at 3, not 7"):
        Query(RESTART, FakeCluster({P0: (0, 3)}), group).trigger()
    lenient = Query(RESTART, FakeCluster({P0: (0, 3)}), FakeGroup(assigned={P0: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {}  # an empty batch, which tells where it goes on
    assert lenient.start["t"] == {"0": 3}
    lenient.cluster.logs[P0] = (0, 6)
    lenient.clock.advance_ms(500)
    assert lenient.trigger() == {P0: (3, 6)}
    assert lenient.committed() == {P0: 3}


def test_topic_made_anew_is_data_loss_although_it_is_longer_now(caplog):
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "topic_ids": {"t": "old"}}}
    group = FakeGroup(assigned={P0: 0})
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED_AND.*\] t-0 was deleted and made anew; .*offset 7"):
        Query(start, FakeCluster(topic_id="new"), group).trigger()
    lenient = Query(start, FakeCluster(topic_id="new"), FakeGroup(assigned={P0: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {P0: (0, 10)}
    assert lenient.start["@group"]["topic_ids"] == {"t": "new"}
    assert lenient.trigger() is None
    assert lenient.committed() == {P0: 10}
    assert "made anew" in caplog.text


def test_partition_added_with_records_missing_is_data_loss(caplog):
    """One that was there before, another member's, is not meant."""
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "partitions": {"t": 2}}}
    cluster = FakeCluster({P0: (0, 7), P1: (3, 9), P2: (5, 9)})
    there_before = Query(start, cluster, FakeGroup(assigned={P0: 0, P1: 0}))
    assert there_before.trigger() == {P1: (3, 9)}
    assert there_before.start["@group"]["partitions"] == {"t": 3}
    message = r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO\] t-2 begins at offset 5 and not at 0: .* by group g\."
    with pytest.raises(DataLossError, match=message):
        Query(start, cluster, FakeGroup(assigned={P0: 0, P2: 0})).trigger()
    lenient = Query(start, cluster, FakeGroup(assigned={P0: 0, P2: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {P2: (5, 9)}
    assert "t-2 begins at offset 5" in caplog.text


def test_partition_deleted_before_its_begin_was_found(caplog):
    cluster = FakeCluster({P0: (0, 7)})
    message = r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS\] where t-1 begins cannot be found out"
    with pytest.raises(DataLossError, match=message):
        Query(RESTART, cluster, FakeGroup(assigned={P0: 0, P1: 0})).trigger()
    lenient = Query(RESTART, cluster, FakeGroup(assigned={P0: 0, P1: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {}
    assert lenient.trigger() is None
    assert "where t-1 begins" in caplog.text


def test_topic_made_anew_during_the_run_is_noticed_with_the_metadata():
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


def test_partition_that_a_rebalance_took_because_it_was_deleted_is_data_loss_too():
    query = Query(startingOffsets="earliest")
    query.trigger()
    del query.cluster.logs[P1]
    query.group.rebalance({P0: 0, P2: 1})
    with pytest.raises(DataLossError, match="t-1 was deleted"):
        query.trigger()


@pytest.mark.conformance("CC-127")
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


def test_drain_by_proof_needs_no_trigger():
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.session.request_drain(query.start) is True
    assert query.committed() == {P0: 10, P1: 10, P2: 10}


def test_proof_of_an_older_batch_does_not_drain():
    query = Query(startingOffsets="earliest")
    query.trigger()
    older = query.start
    query.cluster.logs[P0] = (0, 20)
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (10, 20)}
    assert query.session.request_drain(older) is False
    assert query.committed()[P0] == 10


def test_report_names_the_log_ends_of_owned_partitions():
    query = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    assert query.session.report_latest() is None
    query.trigger()
    assert query.session.report_latest() == {"t": {"0": 10}}


def test_assign_has_no_owners_to_commit_for_without_group():
    from spark_groupsource.source.ownership import AssignedPartitions

    options = parse_options(
        {"kafka.bootstrap.servers": "h:1", "assign": '{"t":[0,2]}', "startingOffsets": "earliest"}, "stream"
    )
    cluster = FakeCluster()
    session = StreamSession(cluster, options, AssignedPartitions(cluster, options), ManualClock())
    end = session.latest_offset({}, NO_LIMITS)
    tasks = session.input_partitions({}, end)
    assert [(t.membership, t.ranges) for t in tasks] == [(None, (OffsetRange(P0, 0, 10), OffsetRange(P2, 0, 10)))]
    assert session.latest_offset(end, NO_LIMITS) == end
