"""Several sources of one query in one group: rejoining and yielding."""

import json
import os
import threading
from contextlib import contextmanager

import pytest
from support.session_fakes import NO_LIMITS, P0, P1, FakeGroup, Query
from support.source_process import SourceProcess
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.net import LocalListener
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.control_client import PeerReply
from spark_groupsource.source.group.co_readers import NOT_STARTED, CoReaders
from spark_groupsource.source.process.control_socket import ControlServer, control_directory, control_sockets


@contextmanager
def co_reader(path, reply, requests):
    """A control socket that sends one reply."""
    listener = LocalListener(str(path))

    def serve():
        channel = listener.accept(10_000)
        if channel is not None:
            requests.append(json.loads(channel.receive(10_000)))
            channel.send(reply)
            channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(10)
    listener.close()


@pytest.mark.parametrize(
    "reply, should_yield",
    [
        ('{"reply": "batch_planned"}', True),
        ('{"reply": "rejoined"}', False),
        ('{"reply": "busy"}', False),
        ('{"reply": "other_group"}', False),
        ('{"reply": "unknown"}', False),
        ("no json", False),
    ],
)
def test_reader_yields_to_a_co_reader_with_a_planned_batch(tmp_path, reply, should_yield):
    clock, requests = ManualClock(), []
    path = tmp_path / "reader-1"
    co_readers = CoReaders("g", lambda: [path, tmp_path / "gone-2", tmp_path / f"own-{os.getpid()}"], clock)
    with co_reader(path, reply, requests):
        assert not co_readers.should_yield(False, False) and not requests  # most rebalances complete within a second
        clock.advance_ms(1_000)
        assert co_readers.should_yield(False, False) == should_yield
    assert requests == [{"group": "g", "min_age_ms": 500}]


def test_readers_that_are_not_started_join_first_and_get_further_requests_soon(tmp_path):
    clock, requests = ManualClock(), []
    paths = [tmp_path / f"{NOT_STARTED}-1", tmp_path / "reader-2"]
    co_readers = CoReaders("g", lambda: paths, clock)
    with co_reader(paths[0], '{"reply": "rejoined"}', requests):
        co_readers.join_not_started()
    assert len(requests) == 1
    with co_reader(paths[0], '{"reply": "rejoined"}', requests), co_reader(paths[1], '{"reply": "busy"}', requests):
        assert not co_readers.should_yield(False, False) and len(requests) == 1
        clock.advance_ms(100)
        assert not co_readers.should_yield(False, False)
    assert len(requests) == 3


def test_no_reader_gets_a_request_while_rebalances_complete():
    clock = ManualClock()
    co_readers = CoReaders("g", lambda: pytest.fail("the other readers got a request"), clock)
    for _ in range(5):
        assert not co_readers.should_yield(False, True)
        clock.advance_ms(900)
        assert not co_readers.should_yield(True, True)


def test_reply_is_sent_over_the_control_socket():
    driver = os.getpid()
    server = ControlServer(driver, "a" * 32, lambda proof: False, lambda group, min_age_ms: PeerReply.BATCH_PLANNED)
    try:
        # a link with another process id, because a reader sends no request to itself
        path = control_directory(driver) / f"other-{os.getppid()}"
        os.link(control_sockets(driver)[0], path)
        clock = ManualClock()
        co_readers = CoReaders("g", lambda: [path], clock)
        co_readers.should_yield(False, False)
        clock.advance_ms(1_000)
        assert co_readers.should_yield(False, False)
        path.unlink()
    finally:
        server.close()


def test_reader_replies_batch_planned_until_spark_starts_the_batch():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    assert query.session.peer_reply("g", 500) is PeerReply.BUSY
    query.clock.advance_ms(500)
    assert query.session.peer_reply("g", 500) is PeerReply.BATCH_PLANNED
    assert query.session.peer_reply("another", 500) is PeerReply.OTHER_GROUP
    query.session.input_partitions({}, end)
    assert query.session.peer_reply("g", 500) is PeerReply.BUSY


def test_idle_reader_rejoins_at_once_and_continues_with_the_new_assignment():
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.session.peer_reply("g", 0) is PeerReply.BUSY  # the batch is not known to be checkpointed
    assert query.trigger() is None
    query.group.rebalance({P0: 0})
    assert query.session.peer_reply("g", 0) is PeerReply.REJOINED
    assert query.group.owners() == {P0: 0}
    query.group.calls.clear()
    assert query.trigger() == {}
    # the revoked partition is not committed again
    assert query.group.calls == ["poll"]
    assert query.start["t"] == {"0": 10}


def test_reader_that_joined_before_its_first_call_commits_nothing_before_positions_are_resolved():
    before = Query(startingOffsets="earliest", group=FakeGroup(assigned={P0: 0}))
    before.trigger()
    assert before.start["t"] == {"0": 10}
    group = FakeGroup(assigned={P0: 0}, commits={P0: OffsetAndMetadata(4)})
    query = Query(start=before.start, group=group, startingOffsets="earliest")
    assert query.session.peer_reply("g", 0) is PeerReply.REJOINED
    assert query.trigger() == {P0: (4, 10)}  # an operator has reset the group
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


def test_error_of_a_rejoin_fails_the_query_of_the_reader_that_rejoined(monkeypatch):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()

    def fail(timeout_ms):
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "join")

    with monkeypatch.context() as patch:
        patch.setattr(query.group, "poll", fail)
        assert query.session.peer_reply("g", 0) is PeerReply.REJOINED
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        query.trigger()


class YieldingCoReaders(CoReaders):
    """Has a co-reader that cannot continue while a rebalance is in progress."""

    def __init__(self):
        super().__init__("g", list, ManualClock())

    def should_yield(self, is_settled, is_available_now):
        return not is_settled


def test_reader_that_yields_returns_its_start_and_reads_at_the_next_call():
    query = Query(startingOffsets="earliest", group=FakeGroup(unsettled=1), co_readers=YieldingCoReaders())
    assert query.session.latest_offset({}, NO_LIMITS) == {}
    assert len(query.trigger()) == 3


@pytest.mark.slow
def test_trigger_once_reads_every_source(cluster, topic, group, tmp_path):
    topics = [topic, f"{topic}-other"]
    for name in topics:
        create_topic(cluster.bootstrap_servers, name)
        produce(cluster.bootstrap_servers, name, [(0, None, b"v")])
        (tmp_path / name).mkdir()
    sources = [SourceProcess(tmp_path / name, cluster.bootstrap_servers, name, group) for name in topics]
    wait_until(lambda: len(control_sockets(os.getpid(), NOT_STARTED)) == 2, "both processes listen")
    # with the trigger once each source is called one time
    for source, name in zip(sources, topics):
        assert source.latest_offset()[name] == {"0": 1}
    for source in sources:
        source.stop()
