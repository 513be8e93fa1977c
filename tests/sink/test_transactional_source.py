"""The source of a query that writes exactly once."""

from __future__ import annotations

import json
import logging
from random import Random
from typing import Any

import pytest
from support.session_fakes import P0, P1, FakeCluster, FakeGroup, Query

from spark_groupsource.client.network.retry import Retry
from spark_groupsource.errors import ConfigurationError, GenerationMismatchError
from spark_groupsource.model import OffsetAndMetadata, OffsetRange, ProducerIdAndEpoch
from spark_groupsource.source.group import transactional_commits
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.published_progress import (
    WriterProgress,
    digest,
    offset_of_progress,
    progress_group,
)

PRODUCER = ProducerIdAndEpoch(5, 1)
START = {"t": {"0": 7, "1": 6}, "@group": {"acquired": {}, "generation": 3, "reader": "abc"}}
END = {"t": {"0": 9, "1": 8}, "@group": {"acquired": {}, "generation": 3, "reader": "abc"}}


class Transactions:
    """Records the steps of a transaction of the source."""

    steps: list[str] = []

    def __init__(self, cluster: Any, transactional_id: str, producer: ProducerIdAndEpoch | None = None) -> None:
        assert transactional_id == "T"

    def init(self, timeout_ms: int) -> None:
        self.steps.append("init")

    def end(self, *, is_committed: bool) -> None:
        assert is_committed
        self.steps.append("commit")


class Cluster(FakeCluster):
    """A cluster with the progress of a query; `published` is the end of its last batch."""

    published: Any = None

    def retry(self) -> Retry:
        return Retry(base_ms=1, max_ms=1, timeout_ms=5_000, clock=self.clock, rng=Random(0))

    def fetch_committed(self, group_id: str) -> dict[Any, OffsetAndMetadata]:
        assert group_id == progress_group("T")
        ends = {} if self.published is None else {"abc": digest(self.published)}
        return {P0: offset_of_progress(WriterProgress("q", 4, ends))}


@pytest.fixture(autouse=True)
def _transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    Transactions.steps = []
    monkeypatch.setattr(transactional_commits, "Transactions", Transactions)


def query(start: Any = None, group: FakeGroup | None = None, published: Any = None, **options: str) -> Query:
    cluster = Cluster()
    cluster.published = published
    return Query(start, cluster, group, **{"kafka.transactional.id": "T", "startingOffsets": "earliest", **options})


def committed_before(offsets: dict[Any, int]) -> FakeGroup:
    commits = {p: OffsetAndMetadata(at, "groupsource other") for p, at in offsets.items()}
    return FakeGroup(assigned={P0: 0, P1: 0}, commits=commits)


def plain_commits(group: FakeGroup) -> list[Any]:
    return [call for call in group.calls if call[0] == "commit"]


def test_offsets_are_committed_in_the_transaction_of_the_output_alone():
    tried = query(group=FakeGroup(assigned={P0: 0, P1: 0}))
    tried.trigger()
    assert tried.group.commits == {}
    assert sorted(tried.session.join_transaction(PRODUCER, 5)) == [P0, P1]
    assert tried.committed() == {P0: 10, P1: 10}
    assert tried.session.status()["published_batch"] is None
    tried.trigger()
    assert (plain_commits(tried.group), tried.session.status()["published_batch"]) == ([], 5)
    # what is open from a former run ends before anything is read; there is no transaction of the source itself
    assert Transactions.steps == ["init"]


@pytest.mark.parametrize("is_drain", [False, True])
def test_a_published_batch_is_not_committed_again_when_the_listener_reports_it(is_drain, caplog):
    tried = query(group=FakeGroup(assigned={P0: 0, P1: 0}))
    tried.trigger()
    tried.session.join_transaction(PRODUCER, 5)
    if is_drain:
        assert tried.session.request_drain(tried.start)
    else:
        tried.session.batch_finished(tried.start)
    assert (Transactions.steps, tried.session.status()["published_batch"]) == (["init"], 5)
    assert "not in a transaction" not in caplog.text


def test_the_first_position_of_a_partition_is_committed_in_a_transaction_of_its_own():
    tried = query(group=FakeGroup(assigned={P0: 0, P1: 0}), startingOffsets="latest")
    tried.trigger()
    assert tried.committed() == {P0: 10, P1: 10}
    assert (plain_commits(tried.group), Transactions.steps) == ([], ["init", "init", "commit"])


def test_a_batch_of_another_sink_is_committed_after_it_with_a_warning(caplog):
    tried = query(group=FakeGroup(assigned={P0: 0, P1: 0}))
    tried.trigger()
    with caplog.at_level(logging.WARNING):
        tried.trigger()
    assert "The batch was not in a transaction: its offsets are committed after it." in caplog.text
    assert (tried.committed(), plain_commits(tried.group)) == ({P0: 10, P1: 10}, [])


def test_a_source_without_a_group_begins_no_transaction_of_its_own():
    assigned = json.dumps({"t": [0, 1]})
    cluster = Cluster()
    options = {"kafka.bootstrap.servers": "h:1", "assign": assigned, "kafka.transactional.id": "T"}
    parsed = parse_options({**options, "startingOffsets": "latest"}, "stream")
    tried = Query(None, cluster, FakeGroup(assigned={P0: 0, P1: 0}), parsed=parsed)
    tried.trigger()
    tried.trigger()
    assert Transactions.steps == ["init"]


def test_a_fenced_member_adds_nothing():
    tried = query(group=FakeGroup(assigned={P0: 0, P1: 0}))
    tried.trigger()
    tried.group.commit_error = GenerationMismatchError(group_id="g", member_id="m", generation_id=1, cause="removed")
    with pytest.raises(GenerationMismatchError):
        tried.session.join_transaction(PRODUCER, 5)
    assert tried.group.commits == {}


def test_a_published_batch_is_read_in_full_without_membership(caplog):
    tried = query(START, committed_before({P0: 9, P1: 8}), published=END)
    with caplog.at_level(logging.INFO):
        tasks = tried.session.input_partitions(START, END)
    ranges = sorted(r for task in tasks for r in task.ranges)
    assert ranges == [OffsetRange(P0, 7, 9), OffsetRange(P1, 6, 8)]
    assert {task.membership for task in tasks} == {None} and tried.group.calls == []
    assert "Reading a published batch again for its state: t-0, t-1." in caplog.text
    # the sink does not write it again, and nothing is committed after it
    tried.start = END
    tried.trigger()
    assert tried.session.status()["published_batch"] == 4
    assert plain_commits(tried.group) == [] and "not in a transaction" not in caplog.text


def test_a_batch_that_another_driver_publishes_while_this_one_joins_is_read_in_full():
    class Published(FakeGroup):
        def poll(self, timeout_ms: int) -> bool:
            tried.cluster.published = END
            self.commits = committed_before({P0: 9, P1: 8}).commits
            return super().poll(timeout_ms)

    tried = query(START, Published(assigned={P0: 0, P1: 0}), published=START)
    tasks = tried.session.input_partitions(START, END)
    assert sorted(r for task in tasks for r in task.ranges) == [OffsetRange(P0, 7, 9), OffsetRange(P1, 6, 8)]
    assert tried.session.join_transaction(PRODUCER, 5) == []


@pytest.mark.parametrize("commits_at", [2, None])
def test_a_replay_leaves_what_others_own_to_them_and_waits_for_their_commits(commits_at, caplog):
    """Without a committed offset, the checkpoint would decide later, also if no query has published the range."""

    class Shared(FakeGroup):
        polls = 0

        def poll(self, timeout_ms: int) -> bool:
            self.polls += 1
            if self.polls == commits_at:
                self.commits = {**self.commits, P1: OffsetAndMetadata(8, "")}
            return super().poll(timeout_ms)

    group = Shared(assigned={P0: 0}, commits={P0: OffsetAndMetadata(8, "")})
    tried = query(START, group, published=START)
    tasks = tried.session.input_partitions(START, END)
    assert [r for task in tasks for r in task.ranges if r.end > r.start] == [OffsetRange(P0, 8, 9)]
    assert group.polls == commits_at or commits_at is None
    assert ("leaving them to these: t-1" in caplog.text) == (commits_at is None)
    tried.session.join_transaction(PRODUCER, 5)
    assert tried.committed() == {P0: 9} | ({} if commits_at is None else {P1: 8})


@pytest.mark.parametrize(
    ("reaction", "begin"), [("follow", {P0: 5, P1: 8}), ("ignore", {P0: 9, P1: 8}), ("fail", None)]
)
@pytest.mark.parametrize("reset", [5, 0])
def test_a_reset_to_before_a_logged_batch_is_followed_after_the_batch(reaction, begin, reset, caplog):
    committed = {"@group": {**END["@group"], "committed": {"t": {"0": 7, "1": 6}}}}
    tried = query({**START, **committed}, FakeGroup(assigned={P0: 0, P1: 0}), published=START, onGroupReset=reaction)
    tried.group.commits = {P0: OffsetAndMetadata(reset), **committed_before({P1: 6}).commits}
    end = {**END, **committed}
    tasks = tried.session.input_partitions(tried.start, end)
    assert sorted(r for task in tasks for r in task.ranges) == [OffsetRange(P0, 7, 9), OffsetRange(P1, 6, 8)]
    tried.session.join_transaction(PRODUCER, 5)
    # the transaction does not overwrite what the operator has committed
    assert tried.committed() == {P0: reset, P1: 8}
    tried.start = end
    if begin is None:
        with pytest.raises(ConfigurationError, match=f"reset by an operator to {reset}"):
            tried.trigger()
        return
    with caplog.at_level(logging.WARNING):
        found = tried.trigger()
    assert {p: start for p, (start, _) in (found or {}).items()} == {**begin, P0: reset if begin[P0] == 5 else 9}
    assert "reset by an operator to before the checkpoint" in caplog.text


@pytest.mark.parametrize("committed, begin", [(5, 5), (7, 7), (8, 8), (9, 9), (None, 9)])
def test_a_restart_continues_at_the_committed_offset(committed, begin):
    # t-0 was left to another member while the batch to 9 was replayed, and that member has published to `committed`
    group = committed_before({} if committed is None else {P0: committed})
    end = {**END, "@group": {**END["@group"], "committed": {"t": {"0": 5}}}}
    tried = query(end, group, published=end)
    assert (tried.trigger() or {})[P0] == (begin, 10)


def test_without_a_transactional_id_the_checkpoint_wins():
    group = committed_before({P0: 8})
    end = {**END, "@group": {**END["@group"], "committed": {"t": {"0": 5}}}}
    tried = Query(end, Cluster(), group)
    assert (tried.trigger() or {})[P0] == (9, 10)


def test_assigned_partitions_are_in_the_transaction_after_a_replay():
    tried = query(START, committed_before({P0: 7, P1: 6}), published=START)
    assert json.dumps(tried.session.end_in_flight()) == "{}"
    tried.session.input_partitions(START, END)
    tried.session.join_transaction(PRODUCER, 5)
    assert tried.committed() == {P0: 9, P1: 8}
    assert tried.session.end_in_flight() == {"abc": digest(END)}
