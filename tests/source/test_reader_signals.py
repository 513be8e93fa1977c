"""SIGTERM to a reader process or to the application's process group."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.raw_broker import RawConnection
from support.raw_members import join
from support.source_process import SourceProcess
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import dial_local
from spark_groupsource.errors import RequestTimeoutError
from spark_groupsource.source.process.control_socket import control_sockets

pytestmark = [pytest.mark.slow, pytest.mark.one_cluster]

RECEIVED = "SIGTERM received; the driver decides when the query ends."


@pytest.fixture
def client(cluster):
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as opened:
        yield opened


@pytest.fixture
def source(cluster, topic, group, tmp_path):
    create_topic(cluster.bootstrap_servers, topic)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"v")])
    opened = SourceProcess(tmp_path, cluster.bootstrap_servers, topic, group)
    yield opened
    opened.kill()


def is_waiting(source, start):
    """Calls the source; returns True, with the call pending, if it waits."""
    source.call(start)
    try:
        source.result(1_000)
    except RequestTimeoutError:
        return True
    return False


@contextmanager
def incomplete_rebalance(source, client, servers, group, end):
    """The source is called and waits for a rebalance, because a member does not rejoin."""
    with ThreadPoolExecutor(2) as pool, RawConnection(servers) as first, RawConnection(servers) as second:
        joined = pool.submit(join, first, "", group)
        wait_until(lambda: source.latest_offset(end) and joined.done(), "the first member has joined")
        joining = pool.submit(join, second, "", group)
        wait_until(lambda: describe_groups(client, [group])[group].state == "PreparingRebalance", "a rebalance")
        wait_until(lambda: is_waiting(source, end), "the source waits for the group")
        yield
    assert joining.done()


@contextmanager
def drain(reader, proof=None):
    """Requests a drain as stop_gracefully does; yields the future of the reply."""
    channel = dial_local(str(control_sockets(os.getpid(), reader)[0]), 5_000)
    with ThreadPoolExecutor(1) as pool:
        try:
            channel.send(json.dumps({"drain": True, "proof": proof}))
            reply = pool.submit(channel.receive, 10_000)
            yield reply
            assert json.loads(reply.result()) == {"drained": True}
        finally:
            channel.close()


def test_process_group_signal_leaves_the_drain_to_the_driver(source, client, group):
    end = source.latest_offset()
    # busy: the batch is in flight
    source.call({}, end)
    source.signal_group()
    wait_until(lambda: RECEIVED in source.log, "the reader has received the signal")
    assert source.result() is not None and source.process.poll() is None
    with drain(end["@group"]["reader"]) as reply:
        # the batch has ended: Spark proves it with the next call after the request, which commits and leaves
        wait_until(lambda: source.latest_offset(end) == end and reply.done(), "the drain")
    assert [p.offset for p in client.fetch_committed(group).values()] == [1]
    assert not describe_groups(client, [group])[group].members
    source.stop()


def test_process_group_signal_while_idle(source, client, group):
    end = source.latest_offset()
    source.call({}, end)
    assert source.result() is not None and source.latest_offset(end) == end
    source.signal_group()
    wait_until(lambda: RECEIVED in source.log, "the reader has received the signal")
    with drain(end["@group"]["reader"], end):
        pass
    assert not describe_groups(client, [group])[group].members
    source.stop()


def test_process_group_signal_during_a_rebalance(source, client, cluster, group):
    end = source.latest_offset()
    source.call({}, end)
    assert source.result() is not None
    with incomplete_rebalance(source, client, cluster.bootstrap_servers, group, end):
        source.signal_group()
        wait_until(lambda: RECEIVED in source.log, "the reader has received the signal")
        with drain(end["@group"]["reader"]):
            pass
        assert source.result() == end
    source.stop()


def test_signal_of_spark_while_idle(source, client, group):
    end = source.latest_offset()
    source.call({}, end)
    source.result()
    # the connection is closed while the process handles the signal
    source.stop()
    assert not describe_groups(client, [group])[group].members
    lines = source.log.splitlines()
    assert len(lines) == 1 and "INFO" in lines[0] and "option members=1" in lines[0]


def test_signal_of_spark_interrupts_a_call(source, client, cluster, group):
    end = source.latest_offset()
    source.call({}, end)
    source.result()
    with incomplete_rebalance(source, client, cluster.bootstrap_servers, group, end):
        source.stop()
    assert RECEIVED not in source.log
