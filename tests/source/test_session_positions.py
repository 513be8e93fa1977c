"""Start positions and replays of ``StreamSession`` on an in-memory cluster."""

import json
import logging
from dataclasses import replace

import pytest
from support.session_fakes import NO_LIMITS, P0, P1, P2, P3, FakeCluster, FakeGroup, Query

from spark_groupsource.client.cluster.group_offsets import NO_IDS
from spark_groupsource.client.cluster.metadata import LATEST
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    DataLossError,
    ErrorCode,
    GenerationMismatchError,
)
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, TopicPartition
from spark_groupsource.source.group.co_readers import CoReaders
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.wire.commit_reports import author_metadata, commit_metadata, committed_topic_id, is_author

OLD_ID, NEW_ID = (f"00000000-0000-0000-0000-{number:012}" for number in (1, 2))


def own_commit(offset):
    return OffsetAndMetadata(offset, "groupsource abc")


@pytest.mark.parametrize("starting, begin", [("latest", 10), ("group-or-latest", 10), ("-4", 6), ("earliest", None)])
def test_initial_position_that_moves_is_committed_before_anything_is_read(starting, begin):
    """If the reader crashes before its first commit, the new owner must start at the same offset."""
    query = Query(startingOffsets=starting, group=FakeGroup(assigned={P0: 0}))
    end = query.session.latest_offset({}, NO_LIMITS)
    assert query.committed() == ({} if begin is None else {P0: begin})
    assert end["@group"]["acquired"] == {"t": {"0": begin or 0}}
    # another partition starts where startingOffsets was when the query started, one added later at its earliest offset
    query.start = end
    query.cluster.logs |= {P1: (0, 20), P3: (0, 20)}
    query.group.rebalance({P0: 0, P1: 0, P3: 0})
    assert query.trigger() == {P1: (begin or 0, 20), P3: (0, 20)}


def test_failed_commit_of_the_initial_position_does_not_fail_the_query(caplog):
    group = FakeGroup(assigned={P0: 0}, commit_error=BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit"))
    query = Query(startingOffsets="latest", group=group)
    assert query.trigger() == {} and query.start["t"] == {"0": 10}
    assert "Commit failed, retrying" in caplog.text
    query.group.commit_error = None
    assert query.trigger() is None and query.committed() == {P0: 10}


def test_first_position_is_committed_again_until_it_succeeds():
    group = FakeGroup(assigned={P0: 0}, commit_error=BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit"))
    query = Query(startingOffsets="latest", group=group)
    begin = query.session.latest_offset({}, NO_LIMITS)
    assert begin["t"] == {"0": 10}
    query.group.commit_error = None
    query.session.commit()
    assert query.committed() == {P0: 10}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_standby_query_starts_where_starting_offsets_was_when_it_started(is_restarted):
    standby = Query(startingOffsets="latest", group=FakeGroup(assigned={}))
    assert standby.trigger() == {} and standby.start["@group"]["starting"] == {"t": {"0": 10, "1": 10, "2": 10}}
    text = json.dumps(standby.start)
    assert standby.trigger() is None and json.dumps(standby.start) == text
    query = standby
    if is_restarted:
        query = Query(standby.start, standby.cluster, FakeGroup(assigned={}), startingOffsets="latest")
        assert query.trigger() is None
    query.cluster.logs = {p: (0, 25) for p in (P0, P1, P3)}
    query.clock.advance_ms(500)
    query.group.commits[P0] = OffsetAndMetadata(20)
    query.group.rebalance({P0: 0, P1: 0, P3: 0})
    assert query.trigger() == {P0: (20, 25), P1: (10, 25), P3: (0, 25)}


def test_standby_query_reads_a_recreated_topic_from_its_start():
    standby = Query(startingOffsets="latest", cluster=FakeCluster(topic_id="old"), group=FakeGroup(assigned={}))
    standby.trigger()
    query = Query(standby.start, FakeCluster(topic_id="new"), FakeGroup(assigned={P0: 0}), startingOffsets="latest")
    assert query.trigger() == {P0: (0, 10)}
    assert query.start["@group"]["topic_ids"] == {"t": "new"} and "starting" not in query.start["@group"]


def test_checkpoint_of_an_earlier_version_resolves_starting_offsets_at_the_acquisition():
    start = {"@group": {**RESTART["@group"], "partitions": {"t": 1}}}
    query = Query(start, group=FakeGroup(assigned={P0: 0, P1: 0}), startingOffsets="-4")
    assert query.trigger() == {P0: (6, 10), P1: (0, 10)}


def test_query_without_partitions_at_first_uses_starting_offsets_later():
    """A new member of a cooperative group gets partitions only after other members have revoked them."""
    query = Query(startingOffsets="-4", group=FakeGroup(assigned={}))
    assert query.trigger() == {} and query.start["@group"]["reader"]
    query.group.rebalance({P0: 0})
    assert query.trigger() == {P0: (6, 10)}


def test_assigned_partitions_continue_at_the_offset_an_operator_has_set():
    """With option assign, the checkpoint must not overwrite the committed offset before both are compared."""
    before = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    before.trigger()
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(4)}, joined=True, rejoin_needed=False)
    query = Query(start=before.start, group=group)
    assert query.trigger() == {P0: (4, 10)}
    assert query.committed() == {P0: 4}


@pytest.mark.conformance("KC-036", "KC-039")
def test_committed_offset_has_precedence_over_starting_offsets():
    query = Query(group=FakeGroup(commits={P0: OffsetAndMetadata(4)}), startingOffsets="earliest")
    assert query.trigger() == {P0: (4, 10), P1: (0, 10), P2: (0, 10)}


def test_reacquired_partition_continues_at_the_commit_of_the_other_member():
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


RESTART = {"t": {"0": 7}, "@group": {"acquired": {}, "generation": 3, "reader": "abc"}}


@pytest.mark.parametrize(
    "committed, reaction, expected, finally_committed",
    [
        (None, "follow", (7, 10), 10),
        (own_commit(7), "follow", (7, 10), 10),
        (own_commit(5), "follow", (7, 10), 10),  # crashed before the commit
        (OffsetAndMetadata(9), "follow", (9, 10), 10),
        (OffsetAndMetadata(5), "follow", (5, 10), 10),
        (OffsetAndMetadata(5), "ignore", (7, 10), 10),
    ],
)
def test_position_after_a_restart(committed, reaction, expected, finally_committed):
    group = FakeGroup(assigned={P0: 0}, commits={P0: committed} if committed else {})
    query = Query(RESTART, group=group, onGroupReset=reaction)
    assert query.trigger() == {P0: expected}
    query.trigger()
    assert query.committed() == {P0: finally_committed}


def test_reset_fails_the_query_with_on_group_reset_fail():
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(5)})
    with pytest.raises(ConfigurationError, match="reset by an operator to 5; the checkpoint is at 7"):
        Query(RESTART, group=group, onGroupReset="fail").trigger()


def test_log_line_about_resets_is_bounded(caplog):
    partitions = [TopicPartition("t", n) for n in range(8)]
    start = {"t": {str(n): 7 for n in range(8)}, "@group": RESTART["@group"]}
    commits = {p: OffsetAndMetadata(5) for p in partitions}
    group = FakeGroup(assigned=dict.fromkeys(partitions, 0), commits=commits)
    Query(start, FakeCluster({p: (0, 10) for p in partitions}), group).trigger()
    (line,) = (record.getMessage() for record in caplog.records if "reset by an operator" in record.getMessage())
    names = ", ".join(f"t-{n} (5 < 7)" for n in range(5))
    assert line.endswith(f"(onGroupReset=follow): {names} and 3 more.")


@pytest.mark.parametrize("end_committed", [False, True])
@pytest.mark.parametrize("reset, is_below_last_commit", [(2, True), (5, False)])
def test_only_a_commit_below_the_last_one_of_the_query_is_a_reset(end_committed, reset, is_below_last_commit):
    """Between it and the checkpoint, another member has processed what this query has delivered."""
    query = Query(group=FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(4)}))
    assert query.trigger() == {P0: (4, 10)}
    if end_committed:
        assert query.trigger() is None
    query.group.commits[P0] = OffsetAndMetadata(reset)
    if is_below_last_commit or end_committed:
        with pytest.raises(ConfigurationError, match=f"reset by an operator to {reset}; the checkpoint is at 10"):
            restarted(query).trigger()
    else:
        again = restarted(query)
        assert again.trigger() is None and again.committed() == {P0: 10}


@pytest.mark.parametrize(
    "commit, is_reset",
    [
        (OffsetAndMetadata(5), True),  # of Kafka's tools
        (OffsetAndMetadata(5, "", 3), False),  # of a consumer
        (OffsetAndMetadata(5, "", 0), False),
        (OffsetAndMetadata(5, "groupsource other"), False),
        (OffsetAndMetadata(5, "worker 7"), False),
        (OffsetAndMetadata(3, "groupsource other"), True),
    ],
)
def test_reset_is_recognized_by_the_commit_where_earlier_commits_are_not_readable(commit, is_reset):
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "committed": {"t": {"0": 4}}}}
    query = Query(start, group=FakeGroup(assigned={P0: 0}, commits={P0: commit}))
    assert query.trigger() == {P0: (commit.offset if is_reset else 7, 10)}


@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize("ids", [("", ""), ("11111111-2222-3333-4444-555555555555", "cluster-1")])
def test_query_that_no_longer_writes_in_transactions_reads_what_it_has_not_published(ids, is_in_transaction):
    """Its last batch was finished without its records; without the mark they were delivered before the commit."""
    metadata = commit_metadata("abc", ids[0], "", ids[1], is_in_transaction=is_in_transaction)
    start = {"t": {"0": 9}, "@group": {**RESTART["@group"], "committed": {"t": {"0": 7}}}}
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(7, metadata)})
    query = Query(start, group=group)
    assert query.trigger() == {P0: (7 if is_in_transaction else 9, 10)}
    assert committed_topic_id(metadata) == ids[0] and is_author(metadata, author_metadata("abc"))


@pytest.mark.parametrize(
    ("commit", "acquired", "is_reset"),
    [
        (OffsetAndMetadata(5), {}, True),  # of Kafka's tools
        (OffsetAndMetadata(5, "", 3), {}, False),  # of a consumer
        (OffsetAndMetadata(5, "groupsource other"), {}, False),
        # killed in the first batch of the partition, whose begin another client has committed
        (OffsetAndMetadata(5), {"t": {"0": 4}}, False),
    ],
)
def test_reset_is_recognized_by_the_commit_where_compaction_has_removed_earlier_ones(commit, acquired, is_reset):
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "acquired": acquired, "committed": {"t": {"0": 4}}}}
    start["@group"]["group_id"] = "g"
    query = Query(start, group=FakeGroup(assigned={P0: 0}, commits={P0: commit}, is_history_complete=True))
    assert query.trigger() == {P0: (commit.offset if is_reset else 7, 10)}


def test_query_that_has_committed_nothing_was_not_reset():
    """It crashed in its first batch, and a member whose commits look like those of Kafka's tools has read a part."""
    group = FakeGroup(assigned={P0: 0}, is_history_complete=True)
    killed = Query(group=group, startingOffsets="earliest")
    assert killed.trigger() == {P0: (0, 10)}
    group.commits[P0] = OffsetAndMetadata(5)
    again = restarted(killed)
    assert again.trigger() is None and again.committed() == {P0: 10}


def test_followed_commit_of_a_foreign_member_is_no_reset_after_a_crash():
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(5)})
    killed = Query(group=group, onGroupReset="fail")
    assert killed.trigger() == {P0: (5, 10)}
    # its batch is checkpointed, but it crashed before the commit
    assert restarted(killed).trigger() is None
    # an operator resets the offset afterwards
    group.commits[P0] = OffsetAndMetadata(5)
    with pytest.raises(ConfigurationError, match="reset by an operator to 5; the checkpoint is at 10"):
        restarted(killed).trigger()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("committed, begin", [(7, 10), (12, 12), (2, 2)])
def test_partition_that_is_lost_and_acquired_again_is_not_read_again(is_restarted, committed, begin):
    """A batch was checkpointed, but its commit was fenced; the new owner reads it again, commits a part and leaves."""
    query = Query(group=FakeGroup(commits={P0: OffsetAndMetadata(4)}), startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = GenerationMismatchError(group_id="g", member_id="m0", generation_id=1, cause="removed")
    query.group.rebalance({P1: 0, P2: 1})
    assert query.trigger() == {} and query.start["@group"]["delivered"] == {"t": {"0": 10}}
    assert query.start["@group"]["committed"]["t"]["0"] == 4
    query.group.commit_error = None
    assert query.trigger() is None
    if is_restarted:
        query = Query(query.start, query.cluster, query.group)
    query.group.commits[P0] = OffsetAndMetadata(committed)
    query.cluster.logs[P0] = (0, 20)
    query.clock.advance_ms(500)
    query.group.rebalance({P0: 0, P1: 0, P2: 1})
    assert query.trigger()[P0] == (begin, 20)
    assert "delivered" not in query.start["@group"]


def test_partition_that_is_lost_again_before_it_was_in_a_batch_keeps_its_position():
    """A restarted query reads a logged batch again, acquires the partition, and loses it at the next rebalance."""
    query = Query(group=FakeGroup(commits={P0: OffsetAndMetadata(4)}), startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = GenerationMismatchError(group_id="g", member_id="m0", generation_id=1, cause="removed")
    query.group.rebalance({P1: 0, P2: 1})
    query.trigger()
    query.group.commit_error = None
    query.cluster.logs[P1] = (0, 20)
    query.clock.advance_ms(500)
    logged = query.session.latest_offset(query.start, NO_LIMITS)
    assert logged["@group"]["delivered"] == {"t": {"0": 10}}

    group = replace(query.group, assigned={P0: 0, P1: 0, P2: 1}, rejoin_needed=True, joined=False)
    again = Query(query.start, query.cluster, group)
    again.session.input_partitions(query.start, logged)
    again.start = logged
    group.rebalance({P1: 0, P2: 1})
    again.trigger()
    again.cluster.logs[P0] = (0, 20)
    again.clock.advance_ms(500)
    group.rebalance({P0: 0, P1: 0, P2: 1})
    assert again.trigger()[P0] == (10, 20)


def restarted(killed):
    group = replace(killed.group, calls=[], generation_id=0, rejoin_needed=True, joined=False)
    return Query(killed.start, killed.cluster, group, onGroupReset="fail")


def test_restart_without_new_data_commits_the_checkpoint():
    group = FakeGroup(assigned={P0: 0}, commits={P0: own_commit(5)})
    query = Query(RESTART, FakeCluster({P0: (0, 7)}), group)
    assert query.trigger() is None
    assert query.committed() == {P0: 7}


def test_partition_unknown_to_checkpoint_and_group_starts_at_earliest_after_the_first_batch():
    query = Query(RESTART, FakeCluster({P0: (0, 7), P1: (3, 9)}), FakeGroup(assigned={P0: 0, P1: 0}))
    assert query.trigger() == {P1: (3, 9)}


def test_checkpoint_of_sparks_kafka_source_is_continued():
    query = Query({"t": {"0": 4, "1": 10}}, group=FakeGroup(assigned={P0: 0, P1: 0}))
    assert query.trigger() == {P0: (4, 10)}
    assert query.start["@group"]["reader"]


@pytest.mark.parametrize("reaction, expected", [("follow", (9, 10)), ("ignore", (7, 10))])
def test_restored_checkpoint_behind_the_group(reaction, expected, caplog):
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(9)})
    query = Query(RESTART, group=group, onGroupAhead=reaction)
    assert query.trigger() == {P0: expected}
    assert f"(onGroupAhead={reaction}): t-0 (9 > 7)." in caplog.text
    query.cluster.logs[P0] = (0, 12)
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (10, 12)} and query.committed() == {P0: 10}


def test_restored_checkpoint_behind_the_group_fails_with_on_group_ahead_fail():
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(9)})
    with pytest.raises(ConfigurationError, match=r"ahead of the checkpoint \(onGroupAhead=fail\): t-0 \(9 > 7\)"):
        Query(RESTART, group=group, onGroupAhead="fail").trigger()


def test_commits_of_other_members_are_followed_during_a_run():
    query = Query(RESTART, group=FakeGroup(assigned={P0: 0}), onGroupAhead="fail")
    assert query.trigger() == {P0: (7, 10)}
    query.group.rebalance({P1: 0})
    query.trigger()
    query.group.commits[P0] = OffsetAndMetadata(11)
    query.group.rebalance({P0: 0})
    query.cluster.logs[P0] = (0, 12)
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (11, 12)}


def test_replay_joins_the_group_and_reads_what_it_owns(caplog):
    query = Query(RESTART)
    end = {"t": {"0": 9, "1": 8}, "@group": {"acquired": {"t": {"1": 6}}, "generation": 3, "reader": "abc"}}
    with caplog.at_level(logging.WARNING):
        tasks = query.session.input_partitions(RESTART, end)
    assert [t.ranges for t in tasks] == [(OffsetRange(P0, 7, 9), OffsetRange(P1, 6, 8))]
    assert tasks[0].membership.member_id == "m0" and tasks[0].membership.generation_id == 1
    assert "Reading a logged batch again: t-0, t-1." in caplog.text
    assert query.group.calls == ["poll"]


class OtherOwner(FakeGroup):
    """Another member owns t-1 and commits an offset of `steps` at each lookup."""

    steps: tuple[int, ...] = ()

    def committed(self, partitions, topic_ids=NO_IDS):
        if self.steps and self.joined:
            self.commits[P1], self.steps = OffsetAndMetadata(self.steps[0]), self.steps[1:]
        return super().committed(partitions, topic_ids)


TWO_PARTITIONS = {"t": {"0": 9, "1": 8}, "@group": {"acquired": {"t": {"1": 6}}, "generation": 3, "reader": "abc"}}


def test_replay_waits_until_another_member_has_committed_what_it_owns(caplog):
    group = OtherOwner(assigned={P0: 0})
    group.steps = (6, 6, 7, 8)
    query = Query(RESTART, group=group)
    with caplog.at_level(logging.INFO):
        (task,) = query.session.input_partitions(RESTART, TWO_PARTITIONS)
    assert task.ranges == (OffsetRange(P0, 7, 9),) and group.steps == ()
    assert "Waiting for other members to commit parts of a logged batch: t-1." in caplog.text
    assert "Reading a logged batch again: t-0." in caplog.text


def test_replay_reads_what_a_member_without_progress_owns(caplog):
    group = OtherOwner(assigned={P0: 0})
    group.steps = (6, 7)
    timeouts = {"kafka.session.timeout.ms": "60000", "kafka.max.poll.interval.ms": "60000"}
    query = Query(RESTART, group=group, **timeouts)
    begin_ms = query.clock.now_ms()
    tasks = query.session.input_partitions(RESTART, TWO_PARTITIONS)
    assert [(t.membership is None, t.ranges) for t in tasks] == [
        (True, (OffsetRange(P1, 7, 8),)),
        (False, (OffsetRange(P0, 7, 9),)),
    ]
    assert 720_000 <= query.clock.now_ms() - begin_ms < 721_000 + 2 * 60_000
    assert "have committed nothing for 720000 ms; reading them again: t-1." in caplog.text
    # it leaves the group meanwhile, for a time between one and two session timeouts
    assert 3 <= group.calls.count("step back") <= 6


@pytest.mark.parametrize("why", ["deleted", "not subscribed"])
def test_replay_reads_what_no_member_owns_without_membership(why, monkeypatch):
    cluster = FakeCluster({P0: (0, 10)} if why == "deleted" else {P0: (0, 10), P1: (0, 10)})
    query = Query(RESTART, cluster, FakeGroup(assigned={P0: 0}))
    if why == "not subscribed":
        # the cluster of these tests has one topic
        monkeypatch.setattr(SourceOptions, "subscribes", lambda options, topic: False)
    begin_ms = query.clock.now_ms()
    tasks = query.session.input_partitions(RESTART, TWO_PARTITIONS)
    assert query.clock.now_ms() - begin_ms < 1_000
    assert [(t.membership is None, t.ranges) for t in tasks] == [
        (True, (OffsetRange(P1, 6, 8),)),
        (False, (OffsetRange(P0, 7, 9),)),
    ]


@pytest.mark.parametrize("is_drain", [False, True])
def test_replayed_batch_is_committed_before_its_partitions_are_revoked(is_drain):
    query = Query(RESTART, group=FakeGroup(assigned={P0: 0, P1: 0}))
    query.session.input_partitions(RESTART, TWO_PARTITIONS)
    query.start = TWO_PARTITIONS
    query.group.rebalance({})
    query.group.calls.clear()
    if is_drain:
        query.session.request_drain(None)
    query.trigger()
    after = "leave" if is_drain else "poll"
    calls = query.group.calls
    assert ("commit", {P0: 9, P1: 8}) in calls[: calls.index(after)]
    assert query.committed() == {P0: 9, P1: 8}


def test_replayed_batch_of_a_lost_generation_is_not_committed():
    query = Query(RESTART, group=FakeGroup(assigned={P0: 0, P1: 0}))
    query.session.input_partitions(RESTART, TWO_PARTITIONS)
    query.group.rebalance({P0: 0})
    query.group.poll(0)
    query.group.commits[P0] = OffsetAndMetadata(10)
    query.start = TWO_PARTITIONS
    query.trigger()
    assert query.committed() == {P0: 10}


def test_replay_requests_other_sources_of_the_query_to_join_before_its_tasks_are_planned():
    """A source that joined later would start a rebalance, which fences the tasks."""
    group = FakeGroup()

    class FirstReader(CoReaders):
        def join_not_started(self):
            group.calls.append("request")

    query = Query(RESTART, group=group, co_readers=FirstReader("g", list, ManualClock()))
    query.session.input_partitions(RESTART, TWO_PARTITIONS)
    assert group.calls == ["request", "poll"]


def test_drain_waits_for_a_replay():
    """What another member owns is neither read again nor left out."""
    group = OtherOwner(assigned={P0: 0})
    group.steps = (6, 6, 7, 8)
    query = Query(RESTART, group=group)
    query.session.request_drain(None)
    (task,) = query.session.input_partitions(RESTART, TWO_PARTITIONS)
    assert task.ranges == (OffsetRange(P0, 7, 9),) and group.steps == ()
    query.start = TWO_PARTITIONS
    query.trigger()
    assert query.session.drained.is_set() and query.committed() == {P0: 9, P1: 8}


def test_close_ends_the_wait_of_a_replay():
    query = Query(RESTART, group=FakeGroup(assigned={P0: 0}))
    query.session.close("the query was stopped")
    query.session.input_partitions(RESTART, TWO_PARTITIONS)
    assert query.clock.now_ms() < 1_000


def test_replay_begins_where_other_members_have_committed(caplog):
    commits = {P0: OffsetAndMetadata(9), P1: OffsetAndMetadata(8), P2: OffsetAndMetadata(1)}
    query = Query(RESTART, group=FakeGroup(commits=commits))
    end = {"t": {"0": 10, "1": 8, "2": 6}, "@group": {**RESTART["@group"], "acquired": {"t": {"1": 6, "2": 2}}}}
    with caplog.at_level(logging.INFO):
        tasks = query.session.input_partitions(RESTART, end)
    assert [task.ranges for task in tasks] == [(OffsetRange(P0, 9, 10),), (OffsetRange(P2, 2, 6),)]
    text = "committed offsets within the logged batch, which are not read again: t-0 [7, 9), t-1 [6, 8)."
    assert text in caplog.text and "WARNING" not in [r.levelname for r in caplog.records if text in r.message]


@pytest.mark.parametrize("author", ["abc", "other"])
@pytest.mark.parametrize("is_owned", [True, False])
def test_logged_batch_of_a_restored_checkpoint_is_read_in_full_with_on_group_ahead_ignore(author, is_owned):
    """A backup that was taken during a batch has its plan, and the group has passed it."""
    commits = dict.fromkeys((P0, P1), OffsetAndMetadata(10, f"groupsource {author}"))
    group = FakeGroup(assigned={P0: 0, P1: 0} if is_owned else {P0: 0}, commits=commits)
    query = Query(RESTART, group=group, onGroupAhead="ignore")
    tasks = query.session.input_partitions(RESTART, TWO_PARTITIONS)
    read = {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges}
    # what another member owns is its own
    assert read == {P0: (7, 9)} | ({P1: (6, 8)} if is_owned else {})
    query.start = TWO_PARTITIONS
    assert query.trigger() == {P0: (9, 10)} | ({P1: (8, 10)} if is_owned else {})


def test_logged_batch_of_a_restored_checkpoint_fails_with_on_group_ahead_fail():
    commits = {P0: OffsetAndMetadata(8, "groupsource abc"), P1: OffsetAndMetadata(6)}
    query = Query(RESTART, group=FakeGroup(assigned={P0: 0, P1: 0}, commits=commits), onGroupAhead="fail")
    with pytest.raises(ConfigurationError, match=r"ahead of the checkpoint \(onGroupAhead=fail\): t-0 \(8 > 7\). Set"):
        query.session.input_partitions(RESTART, TWO_PARTITIONS)


def test_batch_whose_entry_in_the_commit_log_was_deleted_is_not_read_again(caplog):
    """The group has its end as a commit of this query, which follows the entry."""
    query = Query(startingOffsets="earliest")
    query.trigger()
    end = query.start
    query.trigger()
    again = Query(end, query.cluster, query.group)
    with caplog.at_level(logging.WARNING):
        tasks = again.session.input_partitions({}, end)
    assert [r for task in tasks for r in task.ranges if r.end > r.start] == []
    (text,) = [m for m in caplog.messages if "not read again" in m]
    assert "because the group has committed them: t-0 [0, 10), t-1 [0, 10), t-2 [0, 10). This query commits" in text
    assert text.endswith("To read them again, reset the offsets of the group.")
    query.group.commits = {p: OffsetAndMetadata(0) for p in query.group.commits}
    tasks = Query(end, query.cluster, query.group).session.input_partitions({}, end)
    assert sum(r.end - r.start for task in tasks for r in task.ranges) == 30


def test_a_commit_of_the_log_start_continues_after_deleted_records():
    """The advice of START_OFFSET_RESET, with the same checkpoint: a logged batch, and a restart between two batches."""
    reset = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(8)})
    end = {"t": {"0": 9}, "@group": RESTART["@group"]}
    (task,) = Query(RESTART, FakeCluster({P0: (8, 12)}), reset).session.input_partitions(RESTART, end)
    assert task.ranges == (OffsetRange(P0, 8, 9),)
    assert Query(RESTART, FakeCluster({P0: (8, 12)}), reset).trigger() == {P0: (8, 12)}


def test_positions_of_another_cluster(caplog):
    query = Query(startingOffsets="earliest", cluster=FakeCluster(topic_id="a", cluster_id="ONE"))
    query.trigger()
    start = query.start
    assert start["@group"]["cluster_id"] == "ONE" and query.trigger() is None and query.start is start
    message = (
        r"\] The checkpoint is of cluster ONE, and the brokers are of cluster TWO: t-0, t-1, t-2 are other topics; t-0 "
        r"was read to offset \d+. Read by group g. Set kafka.bootstrap.servers to the cluster of the checkpoint. Else: "
        r"Start the query with a new checkpointLocation: .* Only if the lost"
    )
    for operation in (lambda q: q.trigger(), lambda q: q.session.input_partitions({}, start)):
        other = Query(start, FakeCluster(topic_id="b", cluster_id="TWO"))
        with pytest.raises(DataLossError, match=message):
            operation(other)
        same = Query(start, FakeCluster(topic_id="b", cluster_id="ONE"))
        with pytest.raises(DataLossError, match=r"\] t-0, t-1, t-2 were deleted and recreated; .* Start the query"):
            operation(same)
    # an earlier version wrote no cluster, and brokers may have no id
    earlier = {**start, "@group": {key: v for key, v in start["@group"].items() if key != "cluster_id"}}
    for begin, cluster_id in ((earlier, "TWO"), (start, None)):
        with pytest.raises(DataLossError, match=r"\] t-0, t-1, t-2 were deleted and recreated"):
            Query(begin, FakeCluster(topic_id="b", cluster_id=cluster_id)).trigger()
    lenient = Query(start, FakeCluster(topic_id="b", cluster_id="TWO"), failOnDataLoss="false")
    lenient.trigger()
    assert "of cluster ONE, and the brokers" in caplog.text and lenient.start["@group"]["cluster_id"] == "TWO"


def test_recreated_topic_is_not_replayed():
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "topic_ids": {"t": "old"}}}
    end = {**start, "t": {"0": 9}}
    with pytest.raises(DataLossError, match="t-0 was deleted and recreated; t-0 was read to offset 7"):
        Query(start, FakeCluster(topic_id="new")).session.input_partitions(start, end)
    lenient = Query(start, FakeCluster(topic_id="new"), FakeGroup(assigned={P0: 0}), failOnDataLoss="false")
    assert lenient.session.input_partitions(start, end) == []
    lenient.start = end
    assert lenient.trigger() == {P0: (0, 10)}
    (same,) = Query(start, FakeCluster(topic_id="old")).session.input_partitions(start, end)
    assert same.topic_ids == {"t": "old"}


def test_replay_of_batch_zero_needs_no_start():
    query = Query(startingOffsets="earliest")
    query.trigger()
    again = Query()
    tasks = again.session.input_partitions({}, query.start)
    assert {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges} == {
        p: (0, 10) for p in (P0, P1, P2)
    }


def test_replay_of_a_batch_of_sparks_source_reads_an_added_partition_from_its_start(caplog):
    """Spark's Kafka source writes no start of a partition that was added: its batch has it as end only."""
    query = Query({"t": {"0": 4}}, FakeCluster({P0: (0, 10), P1: (2, 10)}))
    with caplog.at_level(logging.WARNING):
        tasks = query.session.input_partitions({"t": {"0": 4}}, {"t": {"0": 6, "1": 5}})
    assert [task.ranges for task in tasks] == [(OffsetRange(P0, 4, 6), OffsetRange(P1, 2, 5))]
    assert "The checkpoint has no start offset of t-1; reading from 2." in caplog.text


def test_truncated_log_is_data_loss():
    group = FakeGroup(assigned={P0: 0})
    with pytest.raises(DataLossError, match=r"KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED.*t-0 ends at 3, not 7"):
        Query(RESTART, FakeCluster({P0: (0, 3)}), group).trigger()
    lenient = Query(RESTART, FakeCluster({P0: (0, 3)}), FakeGroup(assigned={P0: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {}  # an empty batch checkpoints the new position
    assert lenient.start["t"] == {"0": 3}
    lenient.cluster.logs[P0] = (0, 6)
    lenient.clock.advance_ms(500)
    assert lenient.trigger() == {P0: (3, 6)}
    assert lenient.committed() == {P0: 3}


class LateHighWatermark(FakeCluster):
    """The first `late` lookups of end offsets are below the log end offset: the leader does not know it yet."""

    late = 0

    def list_offsets(self, partitions, read_committed=None):
        found = super().list_offsets(partitions, read_committed)
        if LATEST in partitions.values() and self.late:
            self.late -= 1
            found = {p: each._replace(offset=each.offset - 4) for p, each in found.items()}
        return found


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_end_offset_of_a_new_leader_that_is_late_is_no_data_loss(caplog, fail_on_data_loss, isolation_level):
    cluster = LateHighWatermark({P0: (0, 10)})
    cluster.settings = replace(cluster.settings, isolation_level=isolation_level)
    start = {"t": {"0": 9}, "@group": RESTART["@group"]}
    cluster.late = 2
    query = Query(start, cluster, FakeGroup(assigned={P0: 0}), failOnDataLoss=fail_on_data_loss)
    with caplog.at_level(logging.WARNING):
        assert query.trigger() == {P0: (9, 10)}
    assert "KAFKA_DATA_LOSS" not in caplog.text
    assert caplog.text.count("[partition=t-0] End offsets are before the offsets read, retrying: t-0 (6 < 9).") == 1


def test_recreated_topic_is_data_loss_although_it_is_longer(caplog):
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "topic_ids": {"t": "old"}}}
    group = FakeGroup(assigned={P0: 0})
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED_AND.*\] t-0 was deleted and recreated; .*offset 7"):
        Query(start, FakeCluster(topic_id="new"), group).trigger()
    lenient = Query(start, FakeCluster(topic_id="new"), FakeGroup(assigned={P0: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {P0: (0, 10)}
    assert lenient.start["@group"]["topic_ids"] == {"t": "new"}
    assert lenient.trigger() is None
    assert lenient.committed() == {P0: 10}
    assert "recreated" in caplog.text


NEW_TOPIC = OffsetAndMetadata(4, f'groupsource other {{"i":"{NEW_ID}"}}')


@pytest.mark.parametrize(
    "commit, begin",
    [
        (NEW_TOPIC, 4),
        (NEW_TOPIC._replace(metadata=NEW_TOPIC.metadata[:-1] + ',"g":3}'), 4),
        # as many as were read of the former topic
        (NEW_TOPIC._replace(offset=7), 7),
        # of a member that commits by name, perhaps of the former topic
        (OffsetAndMetadata(4, "", 0), 0),
        (own_commit(4), 0),
    ],
)
def test_recreated_topic_continues_where_other_members_have_read_it(commit, begin):
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "topic_ids": {"t": OLD_ID}, "group_id": "g"}}
    group = FakeGroup(assigned={P0: 0}, commits={P0: commit})
    query = Query(start, FakeCluster(topic_id=NEW_ID), group, failOnDataLoss="false", onGroupReset="fail")
    assert query.trigger() == {P0: (begin, 10)}
    assert query.trigger() is None and query.committed() == {P0: 10}
    # no commit but that of the end
    assert [call for call in group.calls if call[0] == "commit"] == [("commit", {P0: 10})]


def test_topic_recreated_during_the_run_continues_where_other_members_have_read_it():
    """Another member has owned the partition while this query had older metadata."""
    cluster, group = FakeCluster(topic_id=OLD_ID), FakeGroup(assigned={P0: 0})
    query = Query(startingOffsets="earliest", cluster=cluster, group=group, failOnDataLoss="false")
    assert query.trigger() == {P0: (0, 10)}
    cluster.topic_id, cluster.logs[P0], group.topic_ids = NEW_ID, (0, 10), {"t": NEW_ID}
    group.commits[P0] = NEW_TOPIC
    query.clock.advance_ms(500)
    assert query.trigger() == {P0: (4, 10)}
    # the same offset as in the former topic
    assert query.trigger() is None and query.committed() == {P0: 10}


def test_added_partition_with_deleted_records_is_data_loss(caplog):
    """A partition that another member owned before is not an added one."""
    start = {"t": {"0": 7}, "@group": {**RESTART["@group"], "partitions": {"t": 2}}}
    cluster = FakeCluster({P0: (0, 7), P1: (3, 9), P2: (5, 9)})
    existing = Query(start, cluster, FakeGroup(assigned={P0: 0, P1: 0}))
    assert existing.trigger() == {} and existing.start["t"] == {"0": 7, "1": 9}
    assert existing.start["@group"]["partitions"] == {"t": 2}
    message = r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO\] t-2 begins at offset 5 and not at 0: .* by group g\."
    with pytest.raises(DataLossError, match=message):
        Query(start, cluster, FakeGroup(assigned={P0: 0, P2: 0})).trigger()
    lenient = Query(start, cluster, FakeGroup(assigned={P0: 0, P2: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {P2: (5, 9)}
    assert "t-2 begins at offset 5" in caplog.text


def test_partition_deleted_before_the_lookup_of_its_start_is_data_loss(caplog):
    start = {**RESTART, "@group": {**RESTART["@group"], "partitions": {"t": 2}}}
    cluster = FakeCluster({P0: (0, 7)})
    message = r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS\] The start offset of t-1 was not found"
    with pytest.raises(DataLossError, match=message):
        Query(start, cluster, FakeGroup(assigned={P0: 0, P1: 0})).trigger()
    lenient = Query(start, cluster, FakeGroup(assigned={P0: 0, P1: 0}), failOnDataLoss="false")
    assert lenient.trigger() == {}
    assert lenient.trigger() is None
    assert "start offset of t-1" in caplog.text


@pytest.mark.parametrize("topics_at_start", ["known", "unknown"])
def test_assigned_partition_that_does_not_exist_is_read_once_it_exists(caplog, topics_at_start):
    """The leader of the group may be another client, whose assignor names any partition."""
    caplog.set_level("INFO")
    known = {"partitions": {"t": 1}} if topics_at_start == "known" else {}
    start = {**RESTART, "@group": {**RESTART["@group"], **known}}
    query = Query(start, FakeCluster({P0: (0, 7)}), FakeGroup(assigned={P0: 0, P1: 0}))
    for _ in range(3):
        query.trigger()
        query.clock.advance_ms(2_000)
    query.group.rebalance({P0: 0, P1: 0, P2: 0})
    query.trigger()
    query.group.rebalance({P0: 0, P1: 0})
    query.trigger()
    assert "1" not in query.start["t"] and P1 not in query.committed()
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    template = "[group=g] Assigned partitions do not exist, and are read once they do: {}."
    assert warned == [template.format("t-1"), template.format("t-2")]
    query.cluster.logs[P1] = (0, 4)
    query.clock.advance_ms(2_000)
    assert query.trigger() == {P1: (0, 4)}
    assert "Assigned partitions exist now: t-1." in caplog.text
    assert query.trigger() is None and query.committed()[P1] == 4


def test_new_query_skips_an_assigned_partition_that_does_not_exist():
    query = Query(cluster=FakeCluster({P0: (0, 7)}), group=FakeGroup({P0: 0, P3: 0}), startingOffsets="latest")
    assert query.trigger() == {} and query.start["t"] == {"0": 7}
    query.cluster.logs = {P0: (0, 9), P3: (0, 2)}
    query.clock.advance_ms(2_000)
    assert query.trigger() == {P0: (7, 9), P3: (0, 2)}, "a partition that was added later is read from its start"


def test_query_whose_only_assigned_topic_does_not_exist_waits():
    query = Query(start=RESTART, cluster=FakeCluster({P0: (0, 7)}), group=FakeGroup({TopicPartition("u", 0): 0}))
    query.group.assigned[P0] = 0
    query.trigger()
    assert list(query.start["t"]) == ["0"] and "u" not in query.start


MOVED = {"t": {"0": 5, "1": 6, "2": 7}}


def replayed(options, end=MOVED):
    tasks = Query(**options).session.input_partitions({}, end)
    return {r.topic_partition: (r.start, r.end) for task in tasks for r in task.ranges}


def test_uncommitted_first_batch_of_sparks_kafka_source_starts_at_its_initial_offsets(tmp_path):
    """Spark's Kafka source writes them to another file than the offset log."""
    for number, topic in enumerate(("other", "t")):
        (tmp_path / "sources" / str(number)).mkdir(parents=True)
        text = '\0v1\n{"%s":{"0":1,"1":2,"2":7}}' % topic
        (tmp_path / "sources" / str(number) / "0").write_text(text)
    found = {P0: (1, 5), P1: (2, 6)}
    assert replayed({"checkpointLocation": f"file://{tmp_path}"}) == found
    assert replayed({"startingOffsets": "earliest"}) == {P0: (0, 5), P1: (0, 6), P2: (0, 7)}
    with pytest.raises(ConfigurationError, match="Set checkpointLocation to the local checkpoint directory, or let"):
        replayed({})
    with pytest.raises(ConfigurationError, match="initial offsets of t-0, t-1, t-2 failed: no file /nowhere/sources/"):
        replayed({"checkpointLocation": "/nowhere"})
