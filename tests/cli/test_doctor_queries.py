"""``groupsource doctor --queries``: probes of the reader processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_groupsource.cli.main import main
from spark_groupsource.source import control_client
from spark_groupsource.source.process.control_socket import ControlServer, control_directory

READER = "c" * 32
JOINED = {"state": "running", "generation": 4, "partitions": [["flights", 0], ["flights", 1]]}


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other tests run queries of the same user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def state() -> Iterator[dict[str, Any]]:
    """The state of a running reader, to be filled in."""
    given: dict[str, Any] = {"reader_pid": 17, "group": "delays"}
    server = ControlServer(os.getpid(), READER, status=lambda: given)
    yield given
    server.close()


def check(required: str, *arguments: str) -> tuple[int, list[dict[str, str]]]:
    result = CliRunner().invoke(main, ["doctor", "--queries", required, "--json", *arguments])
    return result.exit_code, json.loads(result.stdout) if result.exit_code < 2 else result.stderr  # type: ignore[return-value]


@pytest.mark.parametrize(
    "found, alive, joined",
    [(JOINED, "good", "good"), ({"state": "starting"}, "unknown", "bad"),
     ({"state": "rebalancing", "generation": -1, "partitions": []}, "unknown", "bad"),
     ({**JOINED, "state": "rebalancing"}, "good", "good")],
)  # fmt: skip
def test_states_of_a_reader(state: dict[str, Any], found: dict[str, Any], alive: str, joined: str) -> None:
    state.update(found)
    for required, status in (("alive", alive), ("joined", joined)):
        exit_status, (line,) = check(required)
        assert (line["check"], line["status"], exit_status) == ("queries", status, int(status == "bad")), line
    if found is JOINED:
        assert line["text"] == "Reader process 17 of group 'delays' is running: generation 4, 2 partitions."


def test_without_a_query() -> None:
    exit_status, (line,) = check("alive")
    assert exit_status == 1 and "No streaming query" in line["text"] and "TMPDIR" in line["fix"]


def bound_socket() -> socket.socket:
    """A control socket without a listener, as a killed reader leaves it."""
    bound = socket.socket(socket.AF_UNIX)
    # the path of a socket is limited to 108 bytes
    directory = os.open(control_directory(os.getpid()), os.O_PATH)
    bound.bind(f"/proc/self/fd/{directory}/{READER[:16]}-1")
    os.close(directory)
    return bound


def test_socket_of_a_killed_reader_is_no_query() -> None:
    bound_socket().close()
    exit_status, (line,) = check("alive")
    assert exit_status == 1 and "No streaming query" in line["text"]


def test_reader_that_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "_REPLY_MS", 100)
    with bound_socket() as stopped:
        stopped.listen()
        found = {required: check(required) for required in ("alive", "joined")}
    assert [exit_status for exit_status, _ in found.values()] == [0, 1]
    # a drain or a transaction is no reason to restart the application
    assert [line["status"] for _, (line,) in found.values()] == ["unknown", "bad"]
    assert "may be draining" in found["alive"][1][0]["fix"]


def test_directory_of_another_user() -> None:
    control_directory(os.getpid()).chmod(0o777)
    exit_status, (line,) = check("alive")
    assert exit_status == 1 and "accessible to other users" in line["text"]


def test_options_of_the_cluster_are_rejected_and_its_environment_variable_is_not(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]
) -> None:
    state.update(JOINED)
    monkeypatch.setenv("GROUPSOURCE_BOOTSTRAP_SERVER", "kafka:9092")
    assert check("alive")[0] == 0
    for option in ("--bootstrap-server", "--topic", "--group", "--timeout"):
        exit_status, text = check("alive", option, "1000")
        assert exit_status == 2 and f"--queries and {option} cannot be given together" in str(text)
