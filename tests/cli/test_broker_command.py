"""The ``groupsource broker`` command as a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from child_processes import start_process, stop_process
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient as RdAdmin
from confluent_kafka.admin import ConfigResource, ResourceType
from support.members import LibrdkafkaMember
from support.raw_broker import RawConnection
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.cli.main import main
from spark_groupsource.common.net import Address, listen
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import JoinGroupRequest

GROUPSOURCE = str(Path(sys.executable).parent / "groupsource")


@contextmanager
def running_broker(data_dir: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs a broker; yields its address and its process, which is stopped at exit."""
    command = [GROUPSOURCE, "broker", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *arguments]
    process = start_process(command, subprocess.PIPE, subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        yield line.split()[-1], process
    finally:
        stop_process(process, 20)


def is_joined(address: str) -> bool:
    """Whether a member id is assigned in a group, which the broker reports."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
        protocols=[protocol],
    )  # fmt: skip
    with RawConnection(address) as connection:
        return connection.call(request, 5).error_code == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.slow
@pytest.mark.parametrize("output", ["full", "no reader", "closed"])
def test_requests_are_served_with_any_state_of_standard_error(tmp_path: Path, output: str) -> None:
    read_end, write_end = os.pipe()
    if output == "full":
        os.set_blocking(write_end, False)
        with suppress(BlockingIOError):
            while True:
                os.write(write_end, bytes(4096))
        os.set_blocking(write_end, True)
    elif output == "no reader":
        os.close(read_end)
    arguments = ["broker", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    shell = ["sh", "-c", 'exec "$0" "$@" 2>&-'] if output == "closed" else []
    process = subprocess.Popen([*shell, GROUPSOURCE, *arguments], stdout=subprocess.PIPE, stderr=write_end, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert all(is_joined(address) for _ in range(20))
        process.terminate()
        assert process.wait(20) == 0
    finally:
        stop_process(process, 20)


def run_client(*arguments: str) -> Result:
    """Runs a client command in this process."""
    return CliRunner().invoke(main, arguments)


def startup_error(*arguments: str) -> str:
    """The error of a broker that cannot start: one line on standard error, exit status 1."""
    run = subprocess.run([GROUPSOURCE, "broker", *arguments], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (1, ""), run
    assert run.stderr.startswith("Error: ") and len(run.stderr.splitlines()) == 1, run.stderr
    return run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_signal_stops_the_broker_and_a_restart_keeps_its_data(
    tmp_path: Path, topic: str, group: str, number: signal.Signals
) -> None:
    settings = ("--config", "group.initial.rebalance.delay.ms=0")
    with running_broker(tmp_path / "data", *settings) as (address, process):
        create_topic(address, topic, 2)
        produce(address, topic, ((n % 2, None, b"x") for n in range(10)))
        with LibrdkafkaMember(address, group, topic) as member:
            wait_until(lambda: sum(member.seen.values()) == 10, "ten records are read")
        process.send_signal(number)
        assert process.wait(20) == 0
    with running_broker(tmp_path / "data", *settings) as (address, _):
        rows = run_client("groups", "describe", "--bootstrap-server", address, "--group", group).stdout.splitlines()[2:]
        assert [row.split()[1:6] for row in rows] == [[topic, "0", "5", "5", "0"], [topic, "1", "5", "5", "0"]]


@pytest.mark.slow
def test_several_nodes_listen_and_lead_partitions(tmp_path: Path, topic: str) -> None:
    with running_broker(tmp_path / "data", "--brokers", "3") as (addresses, _):
        assert len(set(addresses.split(","))) == 3
        create_topic(addresses.split(",")[2], topic, 3)
        run = run_client("topics", "describe", "--bootstrap-server", addresses, "--topic", topic)
        assert run.exit_code == 0, run
        listen_on = ("--listen", "127.0.0.1:65535", "--brokers", "3")
        assert "65535" in startup_error(*listen_on, "--data-dir", str(tmp_path / "b"))


@pytest.mark.slow
def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with listen(Address("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        error = startup_error("--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
    assert str(port) in error and "in use" in error


@pytest.mark.slow
def test_data_directory_in_use_is_reported_and_its_broker_keeps_running(tmp_path: Path, topic: str) -> None:
    with running_broker(tmp_path / "data") as (address, _):
        error = startup_error("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
        assert str(tmp_path / "data") in error
        create_topic(address, topic)


@pytest.mark.slow
def test_directory_with_other_files_is_rejected_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    assert str(tmp_path) in startup_error("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "invalid"], "--listen"),
        (["--listen", "127.0.0.1:0,127.0.0.1:0"], "--listen"),
        (["--listen", "192.0.2.1:0"], "192.0.2.1"),
        (["--listen", "0.0.0.0:0"], "advertised.listeners"),
        (["--config", "color=blue"], "color"),
        (["--config", "num.partitions"], "KEY=VALUE"),
        (["--config", "num.partitions=many"], "num.partitions"),
        (["--config-file", "/no/such.properties"], "Check --config-file"),
        (["--add-scram-file", "/no/such"], "Check --add-scram-file"),
    ],
)
def test_invalid_option_is_reported(tmp_path: Path, arguments: list[str], message: str) -> None:
    defaults = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    run = CliRunner().invoke(main, ["broker", *defaults, *arguments, "--data-dir", str(tmp_path / "data")])
    assert (run.exit_code, run.stdout) == (1, ""), run
    assert run.stderr.startswith("Error: ") and len(run.stderr.splitlines()) == 1, run.stderr
    assert message in run.stderr


@pytest.mark.slow
def test_two_brokers_on_one_machine_are_independent(tmp_path: Path, topic: str) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(running_broker(tmp_path / name))[0] for name in ("a", "b"))
        create_topic(first, topic)
        assert run_client("topics", "list", "--bootstrap-server", second).stdout == ""


@pytest.mark.slow
def test_flush_always_is_the_default_of_every_topic(tmp_path: Path, topic: str) -> None:
    for flush, expected in (("always", "1"), ("os", str(2**63 - 1))):
        with running_broker(tmp_path / flush, "--flush", flush) as (address, _):
            create_topic(address, topic, 1)
            produce(address, topic, [(0, None, b"x")])
            admin = RdAdmin({"bootstrap.servers": address})
            run = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
            (found,) = run.values()
            assert found.result(20)["flush.messages"].value == expected


@pytest.mark.slow
def test_flush_conflicts_with_the_setting_that_it_sets(tmp_path: Path) -> None:
    error = startup_error(
        "--data-dir", str(tmp_path), "--flush", "always", "--config", "log.flush.interval.messages=5"
    )  # fmt: skip
    assert "Give one" in error


@pytest.mark.slow
def test_sasl_authentication_of_a_scram_user(tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=ann\nsasl.password=secret\n"
    )
    users, server = tmp_path / "users", tmp_path / "server.properties"
    users.write_text("# the first user\nSCRAM-SHA-512=[name=ann,password=secret]\n")
    server.write_text("sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\nnum.partitions=many\n")
    files = ("--config-file", str(server), "--add-scram-file", str(users))
    overrides = ("--config", "sasl.enabled.mechanisms=SCRAM-SHA-512", "--config", "num.partitions=3")
    with running_broker(tmp_path / "data", *files, *overrides) as (address, _):
        command = ("topics", "list", "--bootstrap-server", address, "--command-config", str(settings))
        assert run_client(*command).exit_code == 0
        settings.write_text(settings.read_text().replace("secret", "wrong"))
        run = run_client(*command)
        assert run.exit_code == 1
        assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in run.stderr
    error = startup_error("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "b"), "--add-scram", "ann:secret")
    assert "--add-scram" in error and "MECHANISM=" in error
