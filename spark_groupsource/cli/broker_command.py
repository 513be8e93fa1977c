"""The ``groupsource broker`` command: runs the embedded broker in the foreground."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.cli.common import key_values, read_lines, read_properties
from spark_groupsource.common.net import parse_listen_address
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.log_text import timed_line

if TYPE_CHECKING:
    from spark_groupsource.broker.report_writer import ReportLine

_FLUSH = "log.flush.interval.messages"
_ATOMIC_WRITE_BYTES = 4_096  # to a pipe (PIPE_BUF of Linux): no other process writes within these lines


@command()
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Address that clients connect to; port 0 selects a free port.",
)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory; created if it does not exist.",
)
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="Broker setting; may be repeated.")
@click.option(
    "--config-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Properties file with broker settings, as Kafka's server.properties: for passwords, which other users of the "
    "machine can see on a command line. --config takes precedence.",
)
@click.option(
    "--brokers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Number of nodes in this process, on consecutive ports; partition leaders and coordinators are distributed "
    "over them.",
)
@click.option(
    "--flush",
    type=click.Choice(["os", "always"]),
    help="os (the default): acknowledged records survive kill -9. always: they are flushed to disk before the "
    "acknowledgment and survive a power loss.",
)
@click.option(
    "--add-scram",
    multiple=True,
    metavar="MECHANISM=[name=USER,password=PASSWORD]",
    help="Creates or replaces SCRAM credentials in the data directory, for listeners with SASL/SCRAM.",
)
@click.option(
    "--add-scram-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with values of --add-scram, one per line.",
)
def broker(
    listen: str,
    data_dir: Path,
    config: tuple[str, ...],
    config_file: Path | None,
    brokers: int,
    flush: str | None,
    add_scram: tuple[str, ...],
    add_scram_file: Path | None,
) -> None:
    """Runs a broker until SIGTERM or Ctrl-C.

    The broker serves unmodified Kafka clients and tools, on the loopback interface unless --listen names another. When
    it is ready, it prints "listening on HOST:PORT", with the addresses of several nodes separated by commas.
    """
    # imported here: the other commands do not need the broker
    from spark_groupsource.broker.process import serve_forever

    address = parse_listen_address(listen, "--listen")
    settings = read_properties(config_file, "--config-file") if config_file else {}
    settings |= key_values(config, "--config")
    if add_scram_file:
        add_scram += tuple(read_lines(add_scram_file, "--add-scram-file"))
    if flush is not None:
        if _FLUSH in settings:
            raise ConfigurationError(f"Option --flush sets {_FLUSH}, which is set in the configuration too. Give one.")
        if flush == "always":
            settings = {**settings, _FLUSH: "1"}
    serve_forever(
        data_dir,
        address,
        settings,
        # flushed: scripts wait for this line
        ready=lambda addresses: print(f"listening on {addresses}", flush=True),
        report=write_lines,
        brokers=brokers,
        add_scram=add_scram,
    )


def write_lines(lines: Sequence[ReportLine]) -> None:
    """Writes log lines with their local times to standard error, several with one system call."""
    block = b""
    for text, level, at_ms in lines:
        line = f"{timed_line(text, logging.getLevelName(level), at_ms)}\n".encode()
        if block and len(block) + len(line) > _ATOMIC_WRITE_BYTES:
            _write_block(block)
            block = b""
        block += line
    _write_block(block)


def _write_block(block: bytes) -> None:
    # without Python's buffer: its lock would be held while a full pipe blocks, and the exit of the process waits for it
    with suppress(OSError):  # the following lines may be accepted again
        while block:
            block = block[os.write(sys.stderr.fileno(), block) :]
