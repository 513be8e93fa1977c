"""``groupsource broker``: the embedded broker as a process of its own."""

from __future__ import annotations

from pathlib import Path

import click

from spark_groupsource.cli.options import HELP, key_values
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.net import parse_addresses


@click.command(context_settings=HELP)
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect; port 0 takes any free one.",
)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where topics and groups are kept; created if it is not there.",
)
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="Setting under Kafka's name; may be repeated.")
@click.option(
    "--brokers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Nodes in this process, at consecutive ports; leaders and coordinators are spread over them.",
)
def broker(listen: str, data_dir: Path, config: tuple[str, ...], brokers: int) -> None:
    """Runs a broker until SIGTERM or Ctrl-C.

    It serves Kafka's own clients and tools, on this machine only unless --listen says otherwise, and prints
    "listening on HOST:PORT" once it is ready, with a comma between several.
    """
    # the other commands need no broker
    from spark_groupsource.broker.server import serve_forever

    (address, *others) = parse_addresses(listen, "--listen")
    if others:
        raise ConfigurationError(f"--listen: give one HOST:PORT, the first node's, not {listen!r}")
    serve_forever(
        data_dir,
        address,
        key_values(config, "--config"),
        # waited for by programs, so it must not sit in a buffer
        ready=lambda where: print(f"listening on {where}", flush=True),
        report=lambda line: click.echo(line, err=True),
        brokers=brokers,
    )
