"""The ``groupsource broker`` command: runs the embedded broker in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.cli.common import key_values, read_lines, read_properties
from spark_groupsource.common.net import parse_listen_address
from spark_groupsource.errors import ConfigurationError

_FLUSH = "log.flush.interval.messages"
_STANDARD_ERROR = "-"
_STANDARD_ERROR_DESCRIPTOR = 2


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
@click.option(
    "--log-requests",
    is_flag=False,
    flag_value=_STANDARD_ERROR,
    metavar="[=FILE]",
    help="Writes one line for each request, as Kafka's kafka.request.logger, to standard error or to the end of FILE: "
    "API, version, client, principal, time, group, generation, member, topics; no records and no passwords.",
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
    log_requests: str | None,
) -> None:
    """Runs a broker until SIGTERM or Ctrl-C.

    The broker serves unmodified Kafka clients and tools, on the loopback interface unless --listen names another. When
    it is ready, it prints "listening on HOST:PORT", with the addresses of several nodes separated by commas.
    """
    # imported here: the other commands do not need the broker
    from spark_groupsource.broker.process import serve_forever
    from spark_groupsource.broker.report_writer import DescriptorWriter, open_log

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
    write_error = DescriptorWriter(_STANDARD_ERROR_DESCRIPTOR)
    write_request = write_error if log_requests == _STANDARD_ERROR else None
    if log_requests is not None and write_request is None:
        write_request = DescriptorWriter(open_log(log_requests, "--log-requests"))
    serve_forever(
        data_dir,
        address,
        settings,
        # flushed: scripts wait for this line
        ready=lambda addresses: print(f"listening on {addresses}", flush=True),
        report=write_error,
        brokers=brokers,
        add_scram=add_scram,
        log_requests=write_request,
    )

