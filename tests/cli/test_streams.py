"""Closed, full and broken standard streams of a command; SIGTERM."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli import streams

COMMAND = [sys.executable, "-m", "spark_groupsource.cli"]


def run(
    broker: EmbeddedBroker, words: str, redirections: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command line in a shell, with its redirections."""
    shell = ["sh", "-c", f'exec "$@" {redirections}', "sh", *COMMAND, *words.split()]
    known = {**os.environ, "GROUPSOURCE_BOOTSTRAP_SERVER": broker.bootstrap_servers, **environment}
    # a user has it seldom: what a command writes waits in a buffer
    known.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(shell, capture_output=True, env=known, input=b"", timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "redirections", "status", "out", "err"),
    [
        ("topics list", ">&-", 0, b"", b""),
        ("topics list --exclude-internal", "2>&-", 0, b"TOPIC", b""),
        ("topics list", "<&- >&- 2>&-", 0, b"", b""),
        ("groups describe --group none", "2>&-", 1, b"", b""),
        ("topics list", ">/dev/full", 1, b"", b"Error: Reading or writing a standard stream failed: No space left"),
        ("consume --topic TOPIC", ">/dev/full", 1, b"", b"Error: Reading or writing a standard stream failed: No sp"),
        ("consume --topic TOPIC", "<&-", 0, b"v\n", b""),
        ("produce --topic TOPIC", "<&-", 1, b"", b"Error: Reading or writing a standard stream failed: Bad file"),
    ],
)
def test_closed_and_full_streams(
    embedded: EmbeddedBroker, topic: str, words: str, redirections: str, status: int, out: bytes, err: bytes
) -> None:
    create_topic(embedded.bootstrap_servers, topic)
    embedded.produce(topic, [b"v"])
    result = run(embedded, words.replace("TOPIC", topic), redirections)
    assert result.returncode == status, result
    assert out.replace(b"TOPIC", topic.encode()) in result.stdout and result.stderr.startswith(err)
    assert len(result.stderr.splitlines()) == (1 if err else 0)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--topic \udcff", "--group g\udcff --topic t"])
def test_arguments_that_are_not_utf8(embedded: EmbeddedBroker, word: str) -> None:
    result = run(embedded, f"consume {word}")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(b"Error: The value of --")
    assert b"is not UTF-8: '" in result.stderr and b"\\xff'." in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C", "LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
    ],
)
def test_names_that_the_encoding_lacks(embedded: EmbeddedBroker, topic: str, environment: dict[str, str]) -> None:
    create_topic(embedded.bootstrap_servers, topic)
    reset = f"groups reset-offsets --group é-{topic} --topic {topic} --to-earliest --execute"
    result = run(embedded, reset, **environment)
    assert result.returncode == 0, result
    assert f"é-{topic}".encode() in result.stdout or f"\\xe9-{topic}".encode() in result.stdout


def test_an_output_without_a_reader_ends_the_wait() -> None:
    read_end, write_end = os.pipe()
    with open(write_end, "w") as output, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        streams.wait_while_read(0)
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            streams.wait_while_read(60)


def test_a_stream_without_descriptor_has_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    streams.wait_while_read(0)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_during_generated_code_ends_with_status_0(number: str) -> None:
    """Encoders of messages are generated at their first use, by exec."""
    script = (
        "import os, signal\n"
        "from spark_groupsource.cli.streams import terminates_as_ctrl_c\n"
        # a shell starts background jobs with SIGINT ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    with terminates_as_ctrl_c():\n"
        f"        exec('os.kill(os.getpid(), signal.{number}); signal.pause()')\n"
        "except KeyboardInterrupt:\n"
        "    print('ended')\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ended\n", "")


@contextmanager
def following(broker: EmbeddedBroker, words: str) -> Iterator[subprocess.Popen[bytes]]:
    line = [*COMMAND, *words.split(), "--bootstrap-server", broker.bootstrap_servers]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "groups watch --group GROUP",
        "groups watch --group GROUP --json",
        "groups why --watch --group GROUP",
        "consume --topic TOPIC --follow",
    ],
)
@pytest.mark.parametrize("end", ["SIGTERM", "closed pipe"])
def test_a_command_that_follows_prints_at_once_and_ends(
    embedded: EmbeddedBroker, topic: str, group: str, words: str, end: str
) -> None:
    create_topic(embedded.bootstrap_servers, topic)
    produce(embedded.bootstrap_servers, topic, [(0, None, b"v")])
    with following(embedded, words.replace("GROUP", group).replace("TOPIC", topic)) as process:
        assert process.stdout is not None and process.stderr is not None
        # nothing else happens: the line is not delayed by a buffer, nor the end by the next change
        assert process.stdout.readline()
        if end == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdout.close()
        assert process.wait(60) == (0 if end == "SIGTERM" else 1)
        assert process.stderr.read() == b""
