"""Sources of one query in one group: who rejoins, who gives way, and who is left alone."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from support.topics import create_topic, produce
from support.waiting import wait_until
from test_session import NO_LIMITS, P0, P1, FakeGroup, Query

from spark_groupsource.clock import ManualClock
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.net import LocalListener
from spark_groupsource.source.co_readers import CoReaders, PeerReply
from spark_groupsource.source.control_socket import ControlServer, control_directory, control_sockets


@contextmanager
def listening(path, answer, asked):
    """A reader of another process, which gives one answer."""
    listener = LocalListener(str(path))

    def serve():
        channel = listener.accept(10_000)
        if channel is not None:
            asked.append(json.loads(channel.receive(10_000)))
            channel.send(answer)
            channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(10)
    listener.close()


@pytest.mark.parametrize(
    "answer, waiting",
    [
        ('{"standing": "planned"}', True),
        ('{"standing": "rejoined"}', False),
        ('{"standing": "busy"}', False),
        ('{"standing": "elsewhere"}', False),
        ('{"standing": "new word"}', False),
        ("no json", False),
    ],
)
def test_one_that_cannot_go_on_before_us_is_given_way(tmp_path, answer, waiting):
    clock, asked = ManualClock(), []
    path = tmp_path / "reader-1"
    siblings = CoReaders("g", lambda: [path, tmp_path / "gone-2", tmp_path / f"own-{os.getpid()}"], clock)
    with listening(path, answer, asked):
        assert not siblings.are_waiting(False, False) and not asked  # a group settles by itself, mostly
        clock.advance_ms(1_000)
        assert siblings.are_waiting(False, False) == waiting
    assert asked == [{"group": "g", "least_ms": 500}]


def test_newborn_ones_join_first_and_are_asked_again_soon(tmp_path):
    clock, asked = ManualClock(), []
    paths = [tmp_path / "newborn-1", tmp_path / "reader-2"]
    siblings = CoReaders("g", lambda: paths, clock)
    with listening(paths[0], '{"standing": "rejoined"}', asked):
        siblings.gather()
    assert len(asked) == 1
    with listening(paths[0], '{"standing": "rejoined"}', asked), listening(paths[1], '{"standing": "busy"}', asked):
        assert not siblings.are_waiting(False, False) and len(asked) == 1
        clock.advance_ms(100)
        assert not siblings.are_waiting(False, False)
    assert len(asked) == 3


def test_nobody_is_asked_where_the_group_settles(tmp_path):
    clock = ManualClock()
    siblings = CoReaders("g", lambda: pytest.fail("asked"), clock)
    for _ in range(5):
        assert not siblings.are_waiting(False, True)
        clock.advance_ms(900)
        assert not siblings.are_waiting(True, True)


def test_reader_tells_over_its_socket_how_it_stands():
    driver = os.getpid()
    server = ControlServer(driver, "a" * 32, lambda proof: False, lambda group, least_ms: PeerReply.PLANNED)
    try:
        # a copy under another process's name, because nobody asks itself
        path = control_directory(driver) / f"other-{os.getppid()}"
        os.link(control_sockets(driver)[0], path)
        clock = ManualClock()
        siblings = CoReaders("g", lambda: [path], clock)
        siblings.are_waiting(False, False)
        clock.advance_ms(1_000)
        assert siblings.are_waiting(False, False)
        path.unlink()
    finally:
        server.close()


def test_reader_with_a_planned_batch_is_waiting_until_spark_takes_it_up():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    assert query.session.peer_reply("g", 500) is PeerReply.BUSY
    query.clock.advance_ms(500)
    assert query.session.peer_reply("g", 500) is PeerReply.PLANNED
    assert query.session.peer_reply("another", 500) is PeerReply.ELSEWHERE
    query.session.input_partitions({}, end)
    assert query.session.peer_reply("g", 500) is PeerReply.BUSY


def test_idle_reader_rejoins_at_once_and_goes_on_from_the_group():
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.session.peer_reply("g", 0) is PeerReply.BUSY  # nothing proves yet that the batch is checkpointed
    assert query.trigger() is None
    query.group.rebalance({P0: 0})
    assert query.session.peer_reply("g", 0) is PeerReply.REJOINED
    assert query.group.owners() == {P0: 0}
    query.group.calls.clear()
    assert query.trigger() == {}
    # what was lost in between is not committed again
    assert query.group.calls == ["poll"]
    assert query.start["t"] == {"0": 10}


def test_newborn_that_has_joined_already_commits_nothing_before_it_knows_which_offset_wins():
    before = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    before.trigger()
    assert before.start["t"] == {"0": 10}
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(4)})
    query = Query(start=before.start, group=group, startingOffsets="earliest")
    assert query.session.peer_reply("g", 0) is PeerReply.REJOINED
    assert query.trigger() == {P0: (4, 10)}  # an operator has moved the group back
    assert query.committed() == {P0: 4}


def test_reader_with_uncommitted_offsets_does_not_rejoin():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")
    assert query.trigger() is None
    query.group.rebalance({P1: 0})
    query.group.calls.clear()
    assert query.session.peer_reply("g", 0) is PeerReply.BUSY
    assert query.group.calls == []


def test_what_rejoining_meets_fails_the_readers_own_query(monkeypatch):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()

    def fail(timeout_ms):
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "join")

    with monkeypatch.context() as patch:
        patch.setattr(query.group, "refresh", fail)
        assert query.session.peer_reply("g", 0) is PeerReply.REJOINED
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        query.trigger()


class Waiting:
    """CoReaders one of which cannot go on."""

    def gather(self):
        pass

    def are_waiting(self, settled, is_available_now):
        return not settled


def test_reader_that_gives_way_returns_its_start_and_reads_at_the_next_call(monkeypatch):
    query = Query(startingOffsets="earliest")
    monkeypatch.setattr(query.session, "_siblings", Waiting())
    join = query.group.refresh
    monkeypatch.setattr(query.group, "refresh", lambda timeout_ms: False)
    assert query.session.latest_offset({}, NO_LIMITS) == {}
    monkeypatch.setattr(query.group, "refresh", join)
    assert len(query.trigger()) == 3


# what Spark's runner is for a source: a process that calls what it is told
SOURCE = """
import json, sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_groupsource.source.stream_reader import GroupStreamReader

reader = GroupStreamReader(json.loads(sys.argv[1]), None, int(sys.argv[2]), 1)
reader.getDefaultReadLimit()
for line in sys.stdin:
    print(json.dumps(reader.latestOffset(json.loads(line), ReadAllAvailable())), flush=True)
reader.stop()
"""


class Source:
    """One source of a query."""

    def __init__(self, bootstrap_servers, topic, group):
        options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
        options |= {"startingOffsets": "earliest", "kafka.heartbeat.interval.ms": "200"}
        command = [sys.executable, "-c", SOURCE, json.dumps(options), str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def latest_offset(self):
        self.process.stdin.write("{}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


def test_the_one_trigger_there_is_reads_every_source(cluster, topic, group):
    topics = [topic, f"{topic}-other"]
    for name in topics:
        create_topic(cluster.bootstrap_servers, name)
        produce(cluster.bootstrap_servers, name, [(0, None, b"v")])
    sources = [Source(cluster.bootstrap_servers, name, group) for name in topics]
    wait_until(lambda: len(control_sockets(os.getpid(), "newborn")) == 2, "Spark has started both")
    # trigger once: nobody is asked twice
    for source, name in zip(sources, topics):
        assert source.latest_offset()[name] == {"0": 1}
    for source in sources:
        source.stop()
