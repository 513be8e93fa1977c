"""Client of the control socket: requests, replies, readers that end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

import pytest

from spark_groupsource.common.net import LocalListener
from spark_groupsource.errors import NetworkError, RequestTimeoutError
from spark_groupsource.source.control_client import ControlClient, PeerReply
from spark_groupsource.wire.group_events import EventKind, GroupEvent, event_form


@contextmanager
def reader(path: Path, reply: str | None) -> Iterator[list[Any]]:
    """A control socket that sends one line, or ends without; yields the requests."""
    listener, requests = LocalListener(str(path)), list[Any]()

    def serve() -> None:
        channel = listener.accept(10_000)
        if channel is not None:
            requests.append(json.loads(channel.receive(10_000) or "null"))
            if reply is not None:
                channel.send(reply)
            channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield requests
    finally:
        thread.join(10)
        listener.close()


def connect(path: Path) -> ControlClient:
    client = ControlClient.connect(path)
    assert client is not None
    return client


EVENT = GroupEvent(1, "g", EventKind.ASSIGNED, 3)
# request -> its form, a reply and its value, the value for a reader that ends
REQUESTS: dict[str, tuple[Callable[[ControlClient], Any], dict[str, Any], str, Any, Any]] = {
    "status": (
        ControlClient.status,
        {"status": True, "events": False},
        '{"state": "running"}',
        {"state": "running"},
        None,
    ),
    "events": (
        lambda client: client.status(with_events=True),
        {"status": True, "events": True},
        json.dumps({"state": "running", "events": [event_form(EVENT)]}),
        {"state": "running", "events": [EVENT]},
        None,
    ),
    "peer": (
        lambda client: client.peer_reply("g", 500),
        {"group": "g", "min_age_ms": 500},
        '{"reply": "rejoined"}',
        PeerReply.REJOINED,
        PeerReply.BUSY,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_and_replies(tmp_path: Path, name: str) -> None:
    request, form, reply, value, _ = REQUESTS[name]
    with reader(tmp_path / "s", reply) as requests, connect(tmp_path / "s") as client:
        assert request(client) == value
    assert requests == [form]


@pytest.mark.parametrize("name", REQUESTS)
def test_reader_that_ends_during_a_request(tmp_path: Path, name: str) -> None:
    request, _, _, _, ended = REQUESTS[name]
    with reader(tmp_path / "s", None), connect(tmp_path / "s") as client:
        assert request(client) == ended


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        *((name, reply) for name in REQUESTS for reply in ("no json", "7")),
        ("events", '{"events": 1}'),
        ("events", "{}"),
        ("peer", '{"reply": "unknown"}'),
    ],
)
def test_reply_of_another_version_is_an_error_with_its_text(tmp_path: Path, name: str, reply: str) -> None:
    with reader(tmp_path / "s", reply), connect(tmp_path / "s") as client:
        with pytest.raises(NetworkError, match="is malformed"):
            REQUESTS[name][0](client)


def test_socket_of_a_killed_reader(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    assert ControlClient.connect(path) is None


def test_drain_is_awaited_until_the_reply_or_the_end(tmp_path: Path) -> None:
    for reply, has_drained in (('{"drained": true}', True), (None, False)):
        with reader(tmp_path / "s", reply) as requests, connect(tmp_path / "s") as client:
            with pytest.raises(RequestTimeoutError):
                client.await_drained(1)
            client.request_drain({"t": {"0": 1}})
            assert client.await_drained(10_000) is has_drained
        assert requests == [{"drain": True, "proof": {"t": {"0": 1}}}]
