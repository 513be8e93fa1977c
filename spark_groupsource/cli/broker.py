"""``groupsource broker``: the embedded broker as a process of its own."""

from __future__ import annotations

from pathlib import Path

import click

from spark_groupsource.cli.common import HELP, key_values
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.net import parse_addresses

_FLUSH = "log.flush.interval.messages"


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
@click.option(
    "--flush",
    type=click.Choice(["os", "always"]),
    help="os (the default): what is acknowledged survives a killed process; always: it is on the disk and survives a "
    "power loss, at the cost of a disk write each time.",
)
@click.option(
    "--add-scram",
    multiple=True,
    metavar="MECHANISM=[name=USER,password=PASSWORD]",
    help="User who may log in where sasl.enabled.mechanisms has SCRAM; kept in the data directory.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Take over a --data-dir that is a copy of a stopped Apache Kafka broker's log directory. It is changed and "
    "no longer Kafka's: topics with their ids, records, groups and what they committed go on here.",
)
def broker(
    listen: str,
    data_dir: Path,
    config: tuple[str, ...],
    brokers: int,
    flush: str | None,
    add_scram: tuple[str, ...],
    adopt: bool,
) -> None:
    """Runs a broker until SIGTERM or Ctrl-C.

    It serves Kafka's own clients and tools, on this machine only unless --listen says otherwise, and prints
    "listening on HOST:PORT" once it is ready, with a comma between several.
    """
    # the other commands need no broker
    from spark_groupsource.broker.server import serve_forever

    (address, *others) = parse_addresses(listen, "--listen")
    if others:
        raise ConfigurationError(f"--listen: give one HOST:PORT, the first node's, not {listen!r}")
    settings = key_values(config, "--config")
    if flush is not None:
        if _FLUSH in settings:
            raise ConfigurationError(f"--flush sets {_FLUSH}: give one of the two")
        if flush == "always":
            settings = {**settings, _FLUSH: "1"}
    serve_forever(
        data_dir,
        address,
        settings,
        # waited for by programs, so it must not sit in a buffer
        ready=lambda where: print(f"listening on {where}", flush=True),
        report=lambda line: click.echo(line, err=True),
        brokers=brokers,
        adopt=adopt,
        add_scram=add_scram,
    )
