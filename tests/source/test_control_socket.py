"""Control socket of a reader, and `stop_gracefully` with an in-memory query."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.source_process import SourceProcess
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.common.net import LocalListener, dial_local
from spark_groupsource.errors import BrokerError, ErrorCode, NetworkError, RequestTimeoutError
from spark_groupsource.source.control_client import ControlClient, TransactionReply, TransactionRequest
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.process import control_socket, drain, reader_process
from spark_groupsource.source.process.control_socket import ControlServer, control_directory, control_sockets
from spark_groupsource.source.process.drain import stop_gracefully
from spark_groupsource.source.process.queries import drain_readers

READER = "0123456789abcdef0123456789abcdef"


class Reader:
    """A reader that drains when it receives `proof`, or when `drained` is set."""

    def __init__(self, proof=None):
        self.expected, self.proofs, self.drained = proof, [], False

    def request_drain(self, proof):
        self.proofs.append(proof)
        self.drained = self.drained or (proof is not None and proof == self.expected)
        return self.drained


@pytest.fixture
def driver(monkeypatch):
    pid = os.getpid()
    monkeypatch.setattr(drain, "driver_jvm_pid", lambda: pid)
    yield pid
    control_directory(pid).rmdir()


def query(end, active_trigger=True):
    progress = {"sources": [{"endOffset": end}]}
    stopped = []
    return SimpleNamespace(
        isActive=True,
        lastProgress=progress,
        recentProgress=[progress],
        status={"isTriggerActive": active_trigger},
        name="q",
        id="1",
        stop=lambda: stopped.append(True),
        stopped=stopped,
    )


END = '{"t": {"0": 1}, "@group": {"acquired": {}, "generation": 1, "reader": "%s"}}' % READER


def test_socket_is_found_by_reader_and_removed_when_closed(driver):
    server = ControlServer(driver, READER, Reader().request_drain)
    assert len(control_sockets(driver, READER)) == 1
    assert control_sockets(driver, "f" * 32) == []
    server.close()
    assert control_sockets(driver, READER) == []


def test_drain_waits_for_the_trigger_and_stops_the_query(driver):
    reader = Reader()
    server = ControlServer(driver, READER, reader.request_drain)
    running = query(END)
    # the next trigger starts while the driver waits
    running.status = type("Status", (), {"__getitem__": lambda self, key: setattr(reader, "drained", True) or True})()
    stop_gracefully(running, 20)
    assert running.stopped and reader.proofs[0] is None
    server.close()


def test_idle_query_drains_by_its_last_progress(driver):
    reader = Reader(proof={"t": {"0": 1}, "@group": {"acquired": {}, "generation": 1, "reader": READER}})
    server = ControlServer(driver, READER, reader.request_drain)
    running = query(END, active_trigger=False)
    stop_gracefully(running, 20)
    assert running.stopped and reader.drained
    server.close()


def test_query_that_does_not_drain_is_stopped_at_the_timeout(driver):
    server = ControlServer(driver, READER, Reader().request_drain)
    running = query(END)
    with pytest.raises(TimeoutError, match="Query q did not drain within 0.3 s and was stopped"):
        stop_gracefully(running, 0.3)
    assert running.stopped
    server.close()


def test_query_of_another_source_is_only_stopped(driver):
    running = query('{"logOffset": 5}')
    stop_gracefully(running, 20)
    assert running.stopped


@pytest.mark.parametrize("end", [None, "{}"])
def test_query_without_a_planned_batch_is_stopped_at_once(driver, end):
    running = query(end)
    # during the first rebalance no batch is planned
    running.status["isDataAvailable"] = False
    stop_gracefully(running, 0)
    assert running.stopped
    # the first batch with records is in flight, and ends
    running = query(end)
    statuses = iter([True, True, False])
    running.status = type("Status", (), {"__getitem__": lambda self, key: next(statuses)})()
    stop_gracefully(running, 20)
    assert running.stopped


def test_killed_reader_does_not_delay_the_stop(driver):
    server = ControlServer(driver, READER, Reader().request_drain)
    path = control_sockets(driver, READER)[0]
    server.close()
    path = control_directory(driver) / path.name
    path.touch()  # a killed reader does not remove its socket
    with pytest.raises(NetworkError):
        dial_local(str(path), 100)
    running = query(END)
    stop_gracefully(running, 20)
    assert running.stopped
    ControlServer(driver, READER, Reader().request_drain).close()  # the next reader removes stale sockets
    assert not path.exists()


def test_directories_of_exited_applications_are_removed(driver):
    gone = control_directory(10_000_000 + os.getpid())  # no process has that id
    server = ControlServer(driver, READER, Reader().request_drain)
    assert not gone.exists()
    server.close()


def test_server_continues_after_a_malformed_request(driver):
    reader = Reader()
    server = ControlServer(driver, READER, reader.request_drain)
    channel = dial_local(server.path, 1000)
    channel.send("not json")
    assert wait_until(lambda: channel.receive(2000) is None, "the connection is closed")
    channel.close()
    reader.drained = True
    stop_gracefully(query(END), 20)
    server.close()


def test_other_requests_are_served_during_a_drain(driver, monkeypatch):
    """A drain waits for the batch in flight, which waits for the offsets of its transaction (exactly once)."""
    monkeypatch.setattr(control_socket, "_REQUEST_MS", 100)
    reader, reply = Reader(), TransactionReply(is_joined=True)
    server = ControlServer(driver, READER, reader.request_drain, transaction=lambda request: reply)
    drain_client, silent = ControlClient.connect(server.path), ControlClient.connect(server.path)
    drain_client.request_drain(None)
    wait_until(lambda: reader.proofs, "the drain has begun")
    with ControlClient.connect(server.path) as sink:
        assert sink.transaction(TransactionRequest("x", 1, 0, "q", "c", 5), 10_000) == reply
    with pytest.raises(RequestTimeoutError):
        drain_client.await_drained(1)
    reader.drained = True
    assert drain_client.await_drained(10_000)
    for each in (drain_client, silent):
        each.close()
    server.close()


def test_many_clients_may_wait_for_a_reader(tmp_path):
    """An application with many queries: each reader that waits for a rebalance asks all others."""
    listener = LocalListener(str(tmp_path / "s"))
    waiting = [dial_local(listener.path, 1_000) for _ in range(100)]
    for each in waiting:
        each.close()
    listener.close()


def test_the_connection_of_a_drain_ends_with_the_reader(driver):
    reader = Reader()
    server = ControlServer(driver, READER, reader.request_drain)
    with ControlClient.connect(server.path) as client:
        client.request_drain(None)
        wait_until(lambda: reader.proofs, "the drain has begun")
        server.close()
        assert not client.await_drained(10_000)


def test_errors_of_requests_do_not_end_the_server(driver):
    outcomes = iter([BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit"), False, True])

    def request_drain(proof):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    server = ControlServer(driver, READER, request_drain, lambda group, min_age_ms: {}[group])
    channel = dial_local(server.path, 1000)
    channel.send('{"group": "unexpected", "min_age_ms": 0}')
    assert channel.receive(5000) is None  # the connection is closed
    channel.close()
    # the drain is tried again
    stop_gracefully(query(END), 20)
    assert next(outcomes, None) is None
    server.close()


def test_lost_directory_is_created_again(driver):
    server = ControlServer(driver, READER, Reader().request_drain)
    shutil.rmtree(control_directory(driver))
    again = ControlServer(driver, READER, Reader().request_drain)
    assert len(control_sockets(driver, READER)) == 1
    server.close()
    again.close()


@pytest.mark.slow
def test_reader_with_a_long_temporary_directory_has_a_control_socket(embedded, topic, group, tmp_path, monkeypatch):
    """An address of a Unix domain socket has at most 107 bytes."""
    create_topic(embedded.bootstrap_servers, topic)
    produce(embedded.bootstrap_servers, topic, [(0, None, b"v")])
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    source = SourceProcess(tmp_path, embedded.bootstrap_servers, topic, group)
    try:
        assert source.latest_offset()[topic] == {"0": 1}
        assert "WARNING" not in source.log
        (path,) = directory.glob("groupsource-*-control-*/*-*")
        channel = dial_local(str(path), 5_000)
        channel.send('{"status": true, "events": false}')
        assert json.loads(channel.receive(5_000))["group"] == group
        channel.close()
        source.stop()
    finally:
        source.kill()


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="Linux only")
def test_sockets_are_where_the_driver_has_its_temporary_files(tmp_path):
    """The user's Python may have another directory, as a notebook that sets TMPDIR before it starts Spark."""
    java = tmp_path / "java"
    java.symlink_to(shutil.which("cat"))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([java], stdin=subprocess.PIPE, env=environment) as process:
        assert control_directory(process.pid).parent == tmp_path
        server = ControlServer(process.pid, READER, Reader().request_drain)
        (path,) = control_sockets(process.pid, READER)
        assert path.parent.parent == tmp_path and dial_local(str(path), 1_000).close() is None
        server.close()
        assert control_sockets(process.pid, READER) == []
    # the driver has ended
    ended = control_directory(process.pid)
    assert ended.parent == Path(tempfile.gettempdir())
    ended.rmdir()


def test_reader_without_control_socket_reads_with_one_warning(
    embedded, topic, group, in_process, monkeypatch, caplog
):
    create_topic(embedded.bootstrap_servers, topic)
    produce(embedded.bootstrap_servers, topic, [(0, None, b"v")])

    def refuse():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    options = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    reader = reader_process.ReaderProcess(
        parse_options({**options, "startingOffsets": "earliest"}, "stream"), os.getpid()
    )
    try:
        assert reader.latest_offset({}, Limits())[topic] == {"0": 1}
        (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert "Control socket cannot be created: No usable temporary directory found. stop_gracefully" in warning
    finally:
        reader.stop()


def test_readers_of_a_query_are_drained_by_their_names(driver):
    """As a client of Spark Connect requests it through table queries."""
    end = json.loads(END)
    reader = Reader(proof=end)
    server = ControlServer(driver, READER, reader.request_drain)
    assert drain_readers(driver, ["another query", "f" * 32], [end]) == set()
    assert not reader.proofs
    assert drain_readers(driver, ["query", READER], [end]) == {os.getpid()}
    assert reader.drained
    server.close()
