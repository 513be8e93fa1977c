"""``watch``: live view of a group in terminals and notebooks."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
from chaos.proxy import Proxy
from support.waiting import wait_until

import spark_groupsource as gs
from spark_groupsource.common.net import Address, listen
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.rebalances import group_watch
from spark_groupsource.notebook import live, terminal
from spark_groupsource.notebook.live import Watch, html
from spark_groupsource.notebook.live_view import GroupReader, View, fitted, sparkline, text
from spark_groupsource.notebook.terminal import watch_terminal

VIEW = View("g", "Stable", 2, "12:00:00", (3, 9, 0), [("flights", "0", "1", "4", "3", "<app>")], 5, ["JOINED: app-0"])


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


class Terminal(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_text_and_html() -> None:
    lines = text(VIEW).splitlines()
    assert lines[0] == "g  12:00:00  Stable, 2 members, lag 0" and lines[1] == "▃█▁"
    assert lines[2].split() == ["topic", "partition", "current", "offset", "log", "end", "offset", "lag", "member"]
    assert "and 5 more partitions" in lines and lines[-1] == "JOINED: app-0"
    page = html(VIEW)
    assert "&lt;app&gt;" in page and "<polyline" in page and "http" not in page
    assert sparkline([]) == "" and sparkline([0, 0]) == "▁▁" and sparkline([-5, -7]) == "▁▁"


def test_a_view_fits_the_terminal() -> None:
    large = VIEW._replace(rows=VIEW.rows * 20, rebalances=["generation 2: " + "x" * 100, "why"] * 8)
    for width, height in ((80, 24), (40, 15), (200, 50), (10, 5)):
        drawn = text(fitted(large, width, height)).splitlines()
        wrapped = sum(max(-(-len(line) // width), 1) for line in drawn if not line.startswith(("topic", "flights")))
        rows = sum(line.startswith(("topic", "flights")) for line in drawn)
        assert wrapped + rows < max(height, 10)
    assert fitted(large, 80, 24).omitted == 5 + 20 - len(fitted(large, 80, 24).rows) and fitted(large, 80, 60) == large


def test_a_group_of_a_broker() -> None:
    with gs.EmbeddedBroker(topics={"flights": 30}) as broker, gs.connect(broker) as cluster:
        broker.produce("flights", range(60))
        # private: the interface of notebooks commits nothing
        # private: a commit by the connection that the view uses
        cluster._client.commit("g", {TopicPartition("flights", n): OffsetAndMetadata(n % 2) for n in range(30)})
        reader = GroupReader(cluster._client.settings, "g")
        view = reader.read()
        assert (view.state, view.members, view.lags, len(view.rows), view.omitted) == ("Empty", 0, (45,), 20, 10)
        assert view.rows[0] == ("flights", "0", "0", "2", "2", "-")
        reader.close()


def test_a_broker_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_watch, "CALL_TIMEOUT_MS", 100)
    with gs.EmbeddedBroker(topics={"flights": 2}) as broker, gs.connect(broker) as cluster:
        cluster._client.commit("g", {TopicPartition("flights", 0): OffsetAndMetadata(0)})
        reader = GroupReader(cluster._client.settings, "g")
        before = reader.read()
        host, port = broker.bootstrap_servers.split(":")
    since = f"Unreachable since {before.at}: "
    with socket.socket() as reserved:
        # a port that does not listen refuses connections, and no other process of the tests takes it
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, int(port)))
        first, second = reader.read(), reader.read()
    assert first.problem.startswith(since) and second.problem.startswith(f"{since}No Kafka broker is reachable")
    assert (first.state, first.rows, first.lags) == (before.state, before.rows, before.lags)
    assert first.read_at == second.read_at == before.at and since in text(first) and since in html(first)
    reader.close()


def test_a_cluster_that_responds_slowly_is_shown(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    monkeypatch.setattr(group_watch, "CALL_TIMEOUT_MS", 100)
    with listen(Address("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    broker = gs.EmbeddedBroker(port=port, topics={"flights": 1}, config={"advertised.listeners": proxy.address})
    with broker:
        proxy.forward_to(f"127.0.0.1:{port}")
        with gs.connect(proxy.address) as cluster:
            cluster._client.commit("g", {TopicPartition("flights", 0): OffsetAndMetadata(0)})
            reader = GroupReader(cluster._client.settings, "g")
            before = reader.read()
            broker.produce("flights", range(7))
            # a round trip takes longer than the limit; private: on a busy machine the first read raises it
            proxy.delay(0.06)
            reader._client.call_timeout_ms = 100
            waiting = list(takewhile(lambda view: view.problem, (reader.read() for _ in range(12))))
            after = reader.read()
            reader.close()
    assert 1 <= len(waiting) < 8
    assert all(view.problem.startswith(f"Waiting for a response since {before.at}: ") for view in waiting)
    assert (after.problem, after.lags[-1]) == ("", 7)


def test_a_pipe_reports_an_outage_once() -> None:
    failed = VIEW._replace(problem="Unreachable since 12:00:00: refused after 10 ms")
    views = iter([VIEW, failed, failed._replace(problem="Unreachable since 12:00:00: reset"), VIEW])
    piped = Terminal(is_terminal=False)
    watch_terminal(lambda: next(views), 0.001, piped, rounds=4)
    lines = [line.partition("  g: ")[2] for line in piped.getvalue().splitlines()]
    assert lines == [VIEW.condition, failed.condition, VIEW.condition]


def test_a_terminal_that_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    output = Terminal(is_terminal=True)
    watch_terminal(lambda: VIEW, 0.001, output, rounds=2)
    assert output.getvalue().count("\x1b[H\x1b[2J") == 2
    piped = Terminal(is_terminal=False)
    watch_terminal(lambda: VIEW, 0.001, piped, rounds=3)
    assert piped.getvalue() == "12:00:00  g: Stable, 2 members, lag 0\n"
    failed = Terminal(is_terminal=False)
    watch_terminal(lambda: VIEW._replace(problem="a, b"), 0.001, failed, rounds=2)
    assert failed.getvalue() == "12:00:00  g: Stable, 2 members, lag 0. a, b\n"


def test_ctrl_c_ends_the_view() -> None:
    def interrupted() -> View:
        raise KeyboardInterrupt

    watch_terminal(interrupted, 1, Terminal(is_terminal=False))
    watch_terminal(interrupted, 1, Terminal(is_terminal=True))


def test_a_terminal_with_rich() -> None:
    output = Terminal(is_terminal=True)
    watch_terminal(lambda: VIEW, 0.001, output, rounds=2)
    assert "flights" in output.getvalue() and "JOINED: app-0" in output.getvalue()


def test_a_view_in_a_notebook_updates_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "find_spec", lambda name: None)
    count = [0]
    closed = []

    def read() -> View:
        count[0] += 1
        return VIEW._replace(members=count[0])

    shown = Watch(read, 0.001, lambda: closed.append(True))
    wait_until(lambda: shown.view.members > 3, "the view is updated")
    shown.stop()
    last = shown.view.members
    assert closed == [True] and repr(shown).startswith("g  12:00:00  Stable")
    assert f"{last} members" in shown._repr_html_() == shown._display_()._repr_html_()


def test_a_widget() -> None:
    widget: Any = live._widget("<b>x</b>")  # private: `watch` makes it in a notebook only
    assert widget.body == "<b>x</b>" and "http" not in widget._esm


def test_errors() -> None:
    with pytest.raises(ConfigurationError, match="Argument interval_s must be a positive number of seconds"):
        gs.watch(None, interval_s=0)
    with pytest.raises(ConfigurationError, match="Argument source must be a streaming query or a group"):
        gs.watch("x")
