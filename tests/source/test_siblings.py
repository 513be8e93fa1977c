"""Sources of one query in one group: who rejoins, who gives way, and who is left alone."""

import json
import os
import threading
from contextlib import contextmanager

import pytest
from test_session import NO_LIMITS, P0, P1, Query

from spark_groupsource.clock import ManualClock
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.net import LocalListener
from spark_groupsource.source.control import ControlServer, control_directory, sockets_of
from spark_groupsource.source.siblings import Siblings, Standing


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
    siblings = Siblings("g", lambda: [path, tmp_path / "gone-2", tmp_path / f"own-{os.getpid()}"], clock)
    with listening(path, answer, asked):
        assert not siblings.are_waiting(False, False) and not asked  # a group settles by itself, mostly
        clock.advance_ms(1_000)
        assert siblings.are_waiting(False, False) == waiting
    assert asked == [{"group": "g", "least_ms": 500}]


def test_nobody_is_asked_where_the_group_settles(tmp_path):
    clock = ManualClock()
    siblings = Siblings("g", lambda: pytest.fail("asked"), clock)
    for _ in range(5):
        assert not siblings.are_waiting(False, True)
        clock.advance_ms(900)
        assert not siblings.are_waiting(True, True)


def test_reader_tells_over_its_socket_how_it_stands():
    driver = os.getpid()
    server = ControlServer(driver, "a" * 32, lambda proof: False, lambda group, least_ms: Standing.PLANNED)
    try:
        # a copy under another process's name, because nobody asks itself
        path = control_directory(driver) / f"other-{os.getppid()}"
        os.link(sockets_of(driver)[0], path)
        clock = ManualClock()
        siblings = Siblings("g", lambda: [path], clock)
        siblings.are_waiting(False, False)
        clock.advance_ms(1_000)
        assert siblings.are_waiting(False, False)
        path.unlink()
    finally:
        server.close()


def test_reader_with_a_planned_batch_is_waiting_until_spark_takes_it_up():
    query = Query(startingOffsets="earliest")
    end = query.session.latest_offset({}, NO_LIMITS)
    assert query.session.tell_standing("g", 500) is Standing.BUSY
    query.clock.advance_ms(500)
    assert query.session.tell_standing("g", 500) is Standing.PLANNED
    assert query.session.tell_standing("another", 500) is Standing.ELSEWHERE
    query.session.input_partitions({}, end)
    assert query.session.tell_standing("g", 500) is Standing.BUSY


def test_idle_reader_rejoins_at_once_and_goes_on_from_the_group():
    query = Query(startingOffsets="earliest")
    query.trigger()
    assert query.session.tell_standing("g", 0) is Standing.BUSY  # nothing proves yet that the batch is checkpointed
    assert query.trigger() is None
    query.group.rebalance({P0: 0})
    assert query.session.tell_standing("g", 0) is Standing.REJOINED
    assert query.group.owners() == {P0: 0}
    query.group.calls.clear()
    assert query.trigger() == {}
    # what was lost in between is not committed again
    assert query.group.calls == ["poll"]
    assert query.start["t"] == {"0": 10}


def test_reader_with_uncommitted_offsets_does_not_rejoin():
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.group.commit_error = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")
    assert query.trigger() is None
    query.group.rebalance({P1: 0})
    query.group.calls.clear()
    assert query.session.tell_standing("g", 0) is Standing.BUSY
    assert query.group.calls == []


def test_what_rejoining_meets_fails_the_readers_own_query(monkeypatch):
    query = Query(startingOffsets="earliest")
    query.trigger()
    query.trigger()

    def fail(timeout_ms):
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "join")

    with monkeypatch.context() as patch:
        patch.setattr(query.group, "refresh", fail)
        assert query.session.tell_standing("g", 0) is Standing.REJOINED
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        query.trigger()


class Waiting:
    """Siblings one of which cannot go on."""

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
