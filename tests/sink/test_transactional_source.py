"""The source of a query that writes exactly once."""

from __future__ import annotations

import json
import logging
from random import Random
from typing import Any

import pytest
from support.session_fakes import P0, P1, FakeCluster, FakeGroup, Query

from spark_groupsource.client.network.retry import Retry
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    DataLossError,
    ErrorCode,
    GenerationMismatchError,
)
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
    is_left_out = False
    is_confirmed = False

    def retry(self) -> Retry:
        return Retry(base_ms=1, max_ms=1, timeout_ms=5_000, clock=self.clock, rng=Random(0))

    def confirm_coordinator(self, group_id: str) -> None:
        self.is_confirmed = True

    def fetch_committed(self, group_id: str) -> dict[Any, OffsetAndMetadata]:
        assert group_id == progress_group("T") and self.is_confirmed
        ends = {} if self.published is None else {"abc": digest(self.published, is_left_out=self.is_left_out)}
        return {P0: offset_of_progress(WriterProgress("q", 4, ends))}


@pytest.fixture(autouse=True)
def _transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    Transactions.steps = []
    monkeypatch.setattr(transactional_commits, "Transactions", Transactions)


def query(
    start: Any = None,
    group: FakeGroup | None = None,
    published: Any = None,
    is_left_out: bool = False,
    **options: str,
) -> Query:
    cluster = Cluster()
    cluster.published, cluster.is_left_out = published, is_left_out
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


def test_metadata_that_the_broker_does_not_store_are_left_out_of_the_transaction(caplog):
    tried = query(group=FakeGroup(assigned={P0: 0, P1: 0}))
    tried.trigger()
    commit = tried.group.commit_in_transaction

    def limited(offsets: Any, transactions: Any) -> None:
        if any(each.metadata for each in offsets.values()):
            raise BrokerError(ErrorCode.OFFSET_METADATA_TOO_LARGE, "TxnOffsetCommit")
        commit(offsets, transactions)

    tried.group.commit_in_transaction = limited  # type: ignore[method-assign]
    tried.session.join_transaction(PRODUCER, 5)
    assert tried.committed() == {P0: 10, P1: 10}
    assert "offset.metadata.max.bytes of the brokers is too small" in caplog.text


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


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("published", [{}, {P0: 8}, {P1: 8}])
def test_the_next_batch_reads_what_is_left_of_one_that_was_not_published(published, is_killed, caplog):
    tried = query(START, committed_before({P0: 7, P1: 6} | published), published=START)
    with caplog.at_level(logging.INFO):
        assert tried.session.input_partitions(START, END) == []
    assert "A logged batch was not published; the next one reads its records: t-0, t-1." in caplog.text
    if is_killed:
        # before Spark has written commits/N: the transaction without records is not taken for one with them
        left_out = tried.session.end_in_flight()
        assert left_out == {"abc": digest(END, is_left_out=True)}
        tried = query(START, tried.group, published=END, is_left_out=True)
        assert tried.session.input_partitions(START, END) == []
        assert tried.session.end_in_flight() == left_out
    # the progress is stored at a partition of the source, also without records
    assert tried.session.join_transaction(PRODUCER, 5) == [P0, P1]
    tried.start = END
    assert tried.trigger() == {P0: (7, 10), P1: (6, 10)} | {p: (at, 10) for p, at in published.items()}
    assert list(tried.session.end_in_flight().values()) == [digest(tried.start)]


@pytest.mark.parametrize("is_restart", [False, True])
def test_partitions_of_a_batch_without_records_that_were_never_committed_are_read(is_restart):
    """The group has no committed offset of t-0, and that of t-1 was deleted."""
    group = {**END["@group"], "acquired": {"t": {"0": 3}}, "committed": {"t": {"1": 6}}}
    end = {**END, "@group": group}
    assigned = FakeGroup(assigned={P0: 0, P1: 0})
    tried = query(end if is_restart else START, assigned, published=end if is_restart else START, is_left_out=True)
    if not is_restart:
        assert tried.session.input_partitions(START, end) == []
        tried.start = end
    assert tried.trigger() == {P0: (3, 10), P1: (6, 10)}


def test_a_partition_without_committed_offset_has_its_position_in_each_end_offset():
    """Where a batch without records of it was left out, it is not read; the one after may be left out, too."""
    tried = query(START, FakeGroup(assigned={P0: 0, P1: 0}), published=START)
    tried.trigger()
    assert tried.start["@group"]["acquired"] == {"t": {"0": 7, "1": 6}}
    tried.session.join_transaction(PRODUCER, 5)
    tried.cluster.logs = {p: (0, 11) for p in (P0, P1)}
    tried.trigger()
    assert tried.start["@group"]["acquired"] == {}


@pytest.mark.parametrize(
    ("reaction", "begin"), [("follow", {P0: 5, P1: 6}), ("ignore", {P0: 7, P1: 6}), ("fail", None)]
)
@pytest.mark.parametrize("reset", [5, 0])
def test_a_reset_to_before_a_logged_batch_is_followed_after_the_batch(reaction, begin, reset, caplog):
    committed = {"@group": {**END["@group"], "committed": {"t": {"0": 7, "1": 6}}}}
    tried = query({**START, **committed}, FakeGroup(assigned={P0: 0, P1: 0}), published=START, onGroupReset=reaction)
    tried.group.commits = {P0: OffsetAndMetadata(reset), **committed_before({P1: 6}).commits}
    end = {**END, **committed}
    assert tried.session.input_partitions(tried.start, end) == []
    tried.session.join_transaction(PRODUCER, 5)
    # the transaction does not overwrite what the operator has committed
    assert tried.committed() == {P0: reset, P1: 6}
    tried.start = end
    if begin is None:
        with pytest.raises(ConfigurationError, match=f"reset by an operator to {reset}"):
            tried.trigger()
        return
    with caplog.at_level(logging.WARNING):
        found = tried.trigger()
    assert {p: start for p, (start, _) in (found or {}).items()} == {**begin, P0: reset if begin[P0] == 5 else 7}
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


def test_a_batch_without_a_group_is_read_in_full_after_a_restart():
    parsed = parse_options(
        {"kafka.bootstrap.servers": "h:1", "assign": json.dumps({"t": [0, 1]}), "kafka.transactional.id": "T"}, "stream"
    )
    cluster = Cluster()
    cluster.published = START
    tried = Query(START, cluster, FakeGroup(assigned={P0: 0, P1: 0}), parsed=parsed)
    tasks = tried.session.input_partitions(START, END)
    assert sorted(r for task in tasks for r in task.ranges) == [OffsetRange(P0, 7, 9), OffsetRange(P1, 6, 8)]
    assert tried.session.join_transaction(PRODUCER, 5) == [P0, P1]
    assert tried.session.end_in_flight() == {"abc": digest(END)}


def ids(topic_id: str) -> dict[str, Any]:
    return {"@group": {**END["@group"], "topic_ids": {"t": topic_id}, "committed": {"t": {"0": 7, "1": 6}}}}


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("is_published", [True, False])
def test_a_topic_that_was_recreated_before_a_logged_batch_is_replayed_is_reported(is_published, fails, caplog):
    start, end = {**START, **ids("former")}, {**END, **ids("former")}
    tried = query(start, committed_before({P0: 2}), end if is_published else start, failOnDataLoss=fails)
    tried.cluster.topic_id = "present"
    if fails == "true":
        with pytest.raises(DataLossError, match="deleted and recreated"):
            tried.session.input_partitions(start, end)
            tried.start = end
            tried.trigger()
        return
    assert tried.session.input_partitions(start, end) == []
    tried.start = end
    # the commit by another member may be one of the former topic
    assert tried.trigger() == {P0: (0, 10), P1: (0, 10)}
    assert "deleted and recreated" in caplog.text


@pytest.mark.parametrize("change", ["group", "transactional id", "progress expired", "group expired"])
def test_a_logged_batch_of_another_configuration_is_neither_lost_nor_published_twice(change):
    """The batch is published if the group's offsets say so, whatever became of the progress."""
    start, end = ({**each, **ids("present")} for each in (START, END))
    for each in (start, end):
        each["@group"]["group_id"] = "former" if change == "group" else "g"
    is_published = change in ("transactional id", "progress expired")
    offsets = {P0: 9, P1: 8} if is_published else {}
    tried = query(start, committed_before(offsets), None if is_published else start)
    tried.cluster.topic_id = "present"
    assert tried.session.input_partitions(start, end) == []
    tried.session.join_transaction(PRODUCER, 5)
    tried.start = end
    assert tried.trigger() == ({P0: (9, 10), P1: (8, 10)} if is_published else {P0: (7, 10), P1: (6, 10)})


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_partition_of_a_batch_without_records_that_comes_back_later_is_read_from_its_start(is_killed):
    """Its owner since then has committed nothing."""
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(7)})
    tried = query({**START, **ids("")}, group, published=START)
    end = {**END, **ids("")}
    assert tried.session.input_partitions(tried.start, end) == []
    tried.session.join_transaction(PRODUCER, 5)
    tried.start = end
    assert tried.trigger() == {P0: (7, 10)}
    tried.session.join_transaction(PRODUCER, 6)
    if is_killed:
        group = FakeGroup(assigned={P0: 0, P1: 0}, commits=tried.group.commits)
        tried = query(tried.start, group, published=tried.start)
    else:
        tried.group.rebalance({P0: 0, P1: 0})
    tried.cluster.logs = {P0: (0, 11), P1: (0, 11)}
    assert tried.trigger() == {P0: (10, 11), P1: (6, 11)}
