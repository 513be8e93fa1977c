"""``groupsource ui``: views as JSON, resets, requests that are refused."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from real_kafka import free_address
from support.clients import group_client, open_cluster, settle
from support.clusters import Cluster
from support.commits import commit_as
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.local_http import MAX_CONNECTIONS
from spark_groupsource.cli.main import main
from spark_groupsource.cli.ui_command import UiServer
from spark_groupsource.cli.ui_views import ClusterViews
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.net import Address
from spark_groupsource.model import OffsetRange
from spark_groupsource.monitor.offsets.offsets_log import fetch_batches
from spark_groupsource.notebook.timeline_chart import TimelineChart


class UiClient:
    """Sends requests as the page of a server does, unless headers say otherwise."""

    def __init__(self, server: UiServer) -> None:
        self.address = server.address
        page = self.get("/")[1]
        self.token = page.partition('name="token" content="')[2].partition('"')[0]

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        return self.request("GET", path, None, headers)

    def view(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    def reset(self, group: str, to: str, execute: bool, topic: str | None = None, **headers: str) -> tuple[int, Any]:
        body = json.dumps({"group": group, "to": to, "topic": topic, "execute": execute})
        sent = {"Content_Type": "application/json", "X_Groupsource_Token": self.token, **headers}
        status, text = self.request("POST", "/api/reset", body, sent)
        return status, json.loads(text) if text.startswith("{") else text

    def request(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in named)
        for name, value in named.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(None if body is None else body.encode())
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text


@contextmanager
def serving(bootstrap_servers: str, allow_reset: bool = False, **settings: str) -> Iterator[UiClient]:
    with open_cluster(bootstrap_servers, **settings) as client:
        server = UiServer(Address("127.0.0.1", 0), ClusterViews(client, bootstrap_servers), allow_reset)
        server.start()
        try:
            yield UiClient(server)
        finally:
            server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[UiClient]:
    """The page of an embedded broker that allows resets; group g has committed offset 3 of 5 in topic t."""
    with EmbeddedBroker(topics={"t": 1}) as broker:
        produce(broker.bootstrap_servers, "t", ((0, None, b"x") for _ in range(5)))
        commit_as(broker.bootstrap_servers, "g", [TopicPartition("t", 0, 3)])
        with serving(broker.bootstrap_servers, allow_reset=True) as found:
            yield found


# --- views ---


def row_of(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    (found,) = (row for row in rows if all(row[name] == value for name, value in values.items()))
    return found


@pytest.mark.slow
def test_views_of_a_group_with_members_and_of_its_reset(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, ((n % 2, None, b"x") for n in range(10)))
    commit_as(cluster.bootstrap_servers, group, [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 5)])
    path = f"/api/group?name={group}"
    with serving(cluster.bootstrap_servers, allow_reset=True) as browser:
        with open_cluster(cluster.bootstrap_servers) as client, group_client(client, group, topic) as member:
            settle(member, 2)
            overview = browser.view("/api/cluster")
            found = row_of(overview["groups"], group=group)
            assert (found["state"], found["members"], found["lag"], found["topics"]) == ("Stable", 1, 3, [topic])
            found = row_of(overview["topics"], topic=topic)
            assert (found["partitions"], found["records"], found["under_replicated"]) == (2, 10, 0)
            view = browser.view(path)
            assert (view["state"], view["lag"], view["problem"]) == ("Stable", 3, "")
            assert [(row["current_offset"], row["log_end_offset"], row["lag"]) for row in view["partitions"]] == [
                (2, 5, 3),
                (5, 5, 0),
            ]
            assert {row["owner"] for row in view["partitions"]} == {"app-0"}
            assert [(row["client_id"], row["assignment"]) for row in view["members"]] == [("app-0", f"{topic}:0,1")]
            assert (
                view["why"]["rebalances"][-1]["cause"] == "JOINED" and "app-0" in view["why"]["rebalances"][-1]["text"]
            )
            assert view["picture"].startswith("<svg") and group in view["picture"]
            status, refused = browser.reset(group, "earliest", execute=True)
            assert status == 409 and "Stop its applications first." in refused["problem"]

        # the rebalance of the departure is shown while the page is open
        def causes() -> list[str]:
            return [each["cause"] for each in browser.view(path)["why"]["rebalances"]]

        wait_until(lambda: causes()[-1] == "LEFT", "the departure", interval_s=0.5)
        status, planned = browser.reset(group, "earliest", execute=False)
        assert status == 200 and not planned["executed"]
        assert [(row["current_offset"], row["new_offset"], row["lag"]) for row in planned["rows"]] == [
            (2, 0, 5),
            (5, 0, 5),
        ]
        assert browser.view(path)["lag"] == 3
        status, done = browser.reset(group, "-1", execute=True, topic=f"{topic}:1")
        assert status == 200 and done["executed"]
        assert browser.view(path)["lag"] == 4


def test_what_the_picture_shows_is_read_once(cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[OffsetRange] = []

    def fetch(client: ClusterClient, part: OffsetRange, containing: Sequence[bytes] = ()) -> Iterator[Any]:
        parts.append(part)
        return fetch_batches(client, part, containing)

    for module in ("group_history", "event_sources"):
        monkeypatch.setattr(f"spark_groupsource.monitor.rebalances.{module}.fetch_batches", fetch)
    monkeypatch.setattr("spark_groupsource.cli.ui_views._PICTURE_MS", 0)
    monkeypatch.setattr("spark_groupsource.cli.ui_views._SHARED_MS", 0)
    monkeypatch.setattr(TimelineChart, "svg", lambda self, theme: f"until {self.timeline.end_ms}")
    topic = f"{group}-topic"
    create_topic(cluster.bootstrap_servers, topic, 1)
    commit_as(cluster.bootstrap_servers, group, [TopicPartition(topic, 0, 0)])
    with open_cluster(cluster.bootstrap_servers) as client:
        views = ClusterViews(client, cluster.bootstrap_servers)
        assert views.group(group)["picture"] == ""
        with group_client(client, group, topic) as member:
            settle(member, 1)
            first, second = views.group(group)["picture"], views.group(group)["picture"]
            assert first.startswith("until ") and first < second, "the members are still there"
        wait_until(lambda: views.group(group)["state"] == "Empty", "the departure")
        wait_until(lambda: len(views.group(group)["why"]["rebalances"]) == 2, "its rebalance")
    ends: dict[Any, int] = {}
    for part in parts:
        assert part.start >= ends.get(part.topic_partition, 0), parts
        ends[part.topic_partition] = part.end
    assert len(parts) > len(ends) > 0


def test_queries_of_this_machine_are_those_of_the_exporter(browser: UiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"query": "delays", "group": "g", "state": "running", "generation": 3, "last_batch": 7, "reader_pid": 42}
    statuses = [{**status, "partitions": [["t", 0], ["t", 1]], "metrics": {}}]
    monkeypatch.setattr("spark_groupsource.cli.ui_views.all_reader_statuses", lambda: statuses)

    def found() -> Any:
        return browser.view("/api/cluster")["queries"]

    # a read is shared for a second
    (row,) = wait_until(lambda: [each for each in found() if each["reader_pid"] == 42], "the query", interval_s=0.2)
    assert row == {**status, "transactional_id": None, "assignment": "t:0,1"}


def test_a_group_that_does_not_exist_is_named(browser: UiClient) -> None:
    view = browser.view(f"/api/group?name={quote('gg/../& <b>')}")
    assert "'gg/../& <b>' does not exist" in view["problem"] and "partitions" not in view
    assert "does not exist" in browser.reset("gg", "earliest", execute=True)[1]["problem"]


def test_an_invalid_target_says_what_is_valid(browser: UiClient) -> None:
    status, found = browser.reset("g", "yesterday", execute=True)
    assert status == 409 and "earliest, latest" in found["problem"]


@pytest.mark.slow
def test_a_cluster_that_does_not_respond_is_shown_and_its_return(topic: str) -> None:
    address = free_address()
    with serving(str(address), default_api_timeout_ms="1000", request_timeout_ms="1000") as browser:
        view = browser.view("/api/cluster")
        assert str(address) in view["problem"] and view["address"] == str(address) and "groups" not in view
        with EmbeddedBroker(port=address.port, topics={topic: 1}):
            wait_until(lambda: browser.view("/api/cluster")["problem"] == "", "the first read", interval_s=0.2)
            last = browser.view("/api/cluster")
            assert [row["topic"] for row in last["topics"]] == [topic]

        def lost() -> Any:
            found = browser.view("/api/cluster")
            return found if found["problem"] else None

        view = wait_until(lost, "the error", interval_s=0.2)
        assert view["topics"] == last["topics"] and f"since {view['at']}" in view["problem"]


# --- refused requests ---


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.1.2.3", "", "["])
def test_another_host_is_refused(browser: UiClient, host: str) -> None:
    for path in ("/", "/api/cluster"):
        status, text = browser.get(path, Host=host)
        assert status == 403 and "localhost" in text and browser.token not in text
    assert browser.reset("g", "earliest", execute=True, Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9999", "[::1]:8080"])
def test_this_machine_is_a_host_also_through_a_tunnel(browser: UiClient, host: str) -> None:
    assert browser.get("/", Host=host)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Groupsource_Token": ""}, 403),
        ({"X_Groupsource_Token": "ÿ"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_change_that_the_page_did_not_send_is_refused(
    browser: UiClient, headers: dict[str, str], status: int
) -> None:
    assert browser.reset("g", "earliest", execute=True, **headers)[0] == status
    assert browser.view("/api/group?name=g")["lag"] == 2


def test_a_change_with_the_origin_of_the_page_is_accepted(browser: UiClient) -> None:
    origin = f"http://{browser.address}"
    assert browser.reset("g", "current", execute=True, Origin=origin)[1]["executed"]


def test_a_read_only_server_refuses_changes(embedded: EmbeddedBroker) -> None:
    with serving(embedded.bootstrap_servers) as browser:
        assert browser.token == ""
        status, text = browser.reset("g", "earliest", execute=True)
        assert status == 403 and "--allow-reset" in text


@pytest.mark.parametrize("body", ["", "[]", "{", '{"group": 1}', '{"group": "g", "to": "earliest", "execute": "yes"}'])
def test_a_body_of_another_form_is_refused(browser: UiClient, body: str) -> None:
    headers = {"Content_Type": "application/json", "X_Groupsource_Token": browser.token}
    assert browser.request("POST", "/api/reset", body, headers)[0] == 400
    assert browser.request("POST", "/api/reset", None, {**headers, "Content_Length": "9999999"})[0] == 413
    assert browser.request("POST", "/api/reset", None, {**headers, "Content_Length": "-1"})[0] == 413


@pytest.mark.parametrize("path", ["/../setup.cfg", "/resources/ui.html", "//etc/passwd", "/%2e%2e/", "/api/reset"])
def test_no_file_is_served(browser: UiClient, path: str) -> None:
    assert browser.get(path)[0] == 404


def test_names_cannot_become_scripts(browser: UiClient) -> None:
    connection = http.client.HTTPConnection(browser.address.host, browser.address.port, timeout=30)
    connection.request("GET", "/")
    response = connection.getresponse()
    policy, page = response.headers["Content-Security-Policy"], response.read().decode()
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "frame-ancestors 'none'" in policy
    # no request but to this server, and no other script or handler
    assert page.count("<script") == 1 and "src=" not in page and " onclick=" not in page.partition("<script")[0]
    connection.close()


def test_idle_connections_do_not_keep_others_from_the_page(browser: UiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_groupsource.cli.local_http._CONNECTION_S", 0.5)
    idle = [socket.create_connection(browser.address) for _ in range(MAX_CONNECTIONS + 5)]
    for each in idle:
        each.sendall(b"GET / HT")
    try:
        # above the limit a connection is closed at once; the others end after the time of a connection

        def page() -> bool:
            try:
                return browser.get("/")[0] == 200
            except (ConnectionError, http.client.HTTPException):
                return False

        wait_until(page, "the page", 10)
        for each in idle:
            each.settimeout(10)
            assert each.recv(1 << 16)[:9] in (b"", b"HTTP/1.0 ")
    finally:
        for each in idle:
            each.close()


# --- command ---


def test_resets_need_a_loopback_address() -> None:
    result = CliRunner().invoke(main, ["ui", "--host", "0.0.0.0", "--port", "0", "--allow-reset"])
    assert result.exit_code == 2 and "SSH tunnel" in result.stderr


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = CliRunner().invoke(main, ["ui", "--port", port])
    assert result.exit_code == 1 and "--port" in result.stderr and "in use" in result.stderr


def test_the_page_is_package_data() -> None:
    setup = (Path(__file__).parents[2] / "setup.cfg").read_text()
    assert "spark_groupsource.cli =\n    resources/*.html\n" in setup
