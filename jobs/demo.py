"""Demo: two applications share a group and write exactly once.

    python jobs/demo.py [--bootstrap-servers HOST:PORT | --kafka] [--verbose]

Without options it runs on the embedded broker. The exit status is 0 if every check passes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from child_processes import start_process, stop_process
from demo_application import DRAIN_TIMEOUT_S, DemoApplication
from demo_checks import Check, carrier_means, check_lag, check_means, check_rows, group_positions, read_output
from demo_producer import FlightProducer
from flights import SCHEMA_FILE, encode_flights, load_flights
from kafka_jars import UnavailableError, java
from real_kafka import RealKafka
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from schema_registry import SchemaRegistryServer

from spark_groupsource.client.admin import GroupDescription, NewTopic, create_topics, describe_groups, list_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.offsets.cluster_reads import group_lag

PARTITIONS = 6
MEMBERS = 2
PRODUCE_S = 20
STEP_TIMEOUT_S = 300
POLL_MS = 200
BROKER_CONFIG = {"group.initial.rebalance.delay.ms": "500"}
DIRECTORY = Path(__file__).resolve().parent.parent / "build" / "demo"


class DemoError(Exception):
    """A step of the demo failed; the message names the step and the cause."""


class Demo:
    """The steps of the demo on the cluster of `bootstrap_servers`, reported on `console`."""

    def __init__(self, console: Console, bootstrap_servers: str, verbose: bool) -> None:
        self._console = console
        self._bootstrap = bootstrap_servers
        self._verbose = verbose
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._settings = ClientSettings.parse({"bootstrap.servers": bootstrap_servers, "client.id": "demo"})
        self._cluster = ClusterClient(self._settings.bootstrap, self._settings)
        self._topic, self._group = "flights", "flight-delays"
        self._output_topic, self._check_group = "delivered-flights", "delivery-check"
        self._registry = SchemaRegistryServer()
        self._applications: list[DemoApplication] = []
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=not console.is_terminal,
        )
        self._producer: FlightProducer

    @property
    def group(self) -> str:
        """The name of the consumer group, with a suffix if the cluster already had one of this name."""
        return self._group

    def run(self) -> bool:
        """Runs all steps; returns True if every check passes."""
        flights = load_flights()
        self._choose_names()
        create_topics(self._cluster, [NewTopic(name, PARTITIONS) for name in (self._topic, self._output_topic)])
        names = f"[bold]{self._topic}[/], [bold]{self._output_topic}[/]"
        self._report(f"topics {names}: {PARTITIONS} partitions each on {self._bootstrap}")
        with ExitStack() as stack:
            stack.callback(self._cluster.close)
            stack.enter_context(self._registry)
            schema_id = self._registry.register(f"{self._topic}-value", SCHEMA_FILE.read_text())
            self._report(f"schema registry at {self._registry.url}: conf/flights.avsc is schema {schema_id}")
            self._report(f"producing {len(flights):,} flights: Avro records of this schema, keyed by carrier")
            stack.callback(self._kill_applications)
            self._producer = stack.enter_context(
                FlightProducer(
                    self._settings,
                    self._topic,
                    PARTITIONS,
                    encode_flights(flights, schema_id),
                    len(flights),
                    duration_s=PRODUCE_S,
                )
            )
            with self._progress:
                self._bars = [self._progress.add_task(name, total=len(flights)) for name in ("produced", "consumed")]
                self._stream(len(flights))
            committed, ends = group_positions(self._bootstrap, self._group, self._topic)
            rows = read_output(self._applications[-1].output)
            expected, found = carrier_means(flights), carrier_means(rows)
            checks = [*check_rows(rows, ends, len(flights)), check_means(found, expected), check_lag(committed, ends)]
            self._show_carriers(found)
        self._show_checks(checks)
        return all(check.passed for check in checks)

    def _stream(self, total: int) -> None:
        """Application A alone, then A and B, then A alone again, until all flights are delivered; C reads them."""
        self._producer.resume_until(1 / 3)
        first = self._start("A")
        self._until(lambda: self._is_stable(MEMBERS), "application A joins the group")
        self._show_group("A: two members share six partitions")
        members_of_a = {member.member_id for member in self._describe().members}
        self._until(lambda: self._producer.is_paused, "a third of the flights is produced")
        second = self._start("B")
        # the producer pauses at half, so that records remain for B
        self._producer.resume_until(1 / 2)
        self._until(lambda: self._is_stable(2 * MEMBERS), "application B joins the group")
        self._show_group("A and B: four members")
        members_of_b = [m for m in self._describe().members if m.member_id not in members_of_a]
        partitions_of_b = {tp for member in members_of_b for tp in member.assignment}
        committed_before = self._committed(partitions_of_b)
        self._producer.resume_until(2 / 3)
        self._until(lambda: self._producer.is_paused, "two thirds of the flights are produced")
        self._until(lambda: self._committed(partitions_of_b) > committed_before, "application B reads and commits")
        self._producer.resume_until(1)
        self._stop(second)
        self._report("application [bold]B[/] has stopped")
        third = self._start("C")
        self._until(lambda: self._is_stable(MEMBERS), "application A owns all partitions again")
        self._show_group("B has drained and left: A owns all partitions")
        self._until(lambda: self._producer.is_paused and self._committed() >= total, "application A reads all flights")
        self._stop(first)
        self._until(lambda: self._describe().state == "Empty", "the group is empty")
        self._show_group("A has drained and left")
        self._until(self._is_output_read, "application C reads all deliveries")
        self._stop(third)

    def _start(self, name: str) -> DemoApplication:
        """Starts application A or B, which deliver flights, or C, which reads the deliveries."""
        is_check = name == "C"
        does = "read_committed" if is_check else "exactly once"
        self._report(f"starting application [bold]{name}[/]: spark-submit jobs/flight_delays.py, {does}")
        application = DemoApplication(
            name,
            DIRECTORY / f"application-{name.lower()}",
            bootstrap_servers=self._bootstrap,
            registry=self._registry.url,
            topic=self._output_topic if is_check else self._topic,
            group=self._check_group if is_check else self._group,
            to_topic=None if is_check else self._output_topic,
            verbose=self._verbose,
        )
        self._applications.append(application)
        return application

    def _stop(self, application: DemoApplication) -> None:
        self._report(f"SIGTERM to application [bold]{application.name}[/]: it finishes its batch, commits and leaves")
        application.terminate()
        self._until(
            lambda: not application.is_running, f"application {application.name} drains", DRAIN_TIMEOUT_S, application
        )
        if not application.is_drained:
            raise DemoError(
                f"Application {application.name} exited with status {application.exit_status} after SIGTERM. "
                f"Last lines of its log:\n{application.log_tail()}"
            )

    def _until(
        self,
        condition: Callable[[], bool],
        step: str,
        timeout_s: float = STEP_TIMEOUT_S,
        stopping: DemoApplication | None = None,
    ) -> None:
        """Waits for a condition and reports progress and rebalances meanwhile.

        Raises: DemoError after `timeout_s`, or if an application other than `stopping` exits.
        """
        deadline_ms = self._clock.now_ms() + round(timeout_s * 1000)
        while True:
            is_met = condition()
            self._show_progress()
            if is_met:
                return
            for application in self._applications:
                if application is not stopping and not application.is_running and not application.is_drained:
                    raise DemoError(
                        f"Application {application.name} exited with status {application.exit_status} during the step "
                        f"{step!r}. Last lines of its log {application.log_file}:\n{application.log_tail()}"
                    )
            if self._clock.now_ms() > deadline_ms:
                tails = "\n".join(f"-- {a.name}: {a.log_file}\n{a.log_tail(8)}" for a in self._applications)
                raise DemoError(f"Step {step!r} was not completed within {timeout_s:.0f} s.\n{tails}")
            self._clock.sleep_ms(POLL_MS)

    def _show_progress(self) -> None:
        self._producer.raise_error()
        self._progress.update(self._bars[0], completed=self._producer.produced)
        self._progress.update(self._bars[1], completed=self._committed())
        for application in self._applications:
            for line in application.new_rebalances():
                text = escape(line.replace(f"[group={application.group} ", "[", 1))
                self._console.print(f"  [magenta]{application.name}[/] {text}", highlight=False, soft_wrap=True)

    def _committed(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Number of records before the committed offsets of all or some partitions; the logs start at 0."""
        committed = self._cluster.fetch_committed(self._group, None if partitions is None else list(partitions))
        return sum(position.offset for position in committed.values() if position is not None)

    def _is_output_read(self) -> bool:
        """Whether application C has committed the ends of the topic that A and B have written."""
        group = describe_groups(self._cluster, [self._check_group])[self._check_group]
        rows = group_lag(self._cluster, [group])[self._check_group]
        return bool(rows) and all(row.lag == 0 or not row.log_end_offset for row in rows)

    def _describe(self) -> GroupDescription:
        return describe_groups(self._cluster, [self._group])[self._group]

    def _is_stable(self, members: int) -> bool:
        group = self._describe()
        return group.state == "Stable" and len(group.members) == members

    def _show_group(self, title: str) -> None:
        group = self._describe()
        rows = group_lag(self._cluster, [group])[group.group_id]
        counts = f"{self._producer.produced:,} produced, {self._committed():,} consumed"
        table = Table(title=f"{title} ({group.state}; {counts})", title_justify="left", title_style="bold")
        for heading in ("CONSUMER-ID", "HOST", "CLIENT-ID", "PARTITIONS"):
            table.add_column(heading, overflow="fold")
        table.add_column("LAG", justify="right")
        for member in group.members or (None,):
            owned = [row for row in rows if row.member == member]
            numbers = ", ".join(str(row.topic_partition.partition) for row in owned)
            lag = sum(row.lag if row.lag is not None else row.log_end_offset or 0 for row in owned)
            member_id = f"…{member.member_id[-12:]}" if member else "-"
            host, client_id = (member.client_host, member.client_id) if member else ("-", "-")
            table.add_row(member_id, host, client_id, numbers or "-", f"{lag:,}")
        self._console.print(table)

    def _show_carriers(self, found: dict[str, tuple[int, float]]) -> None:
        table = Table(title="Mean arrival delay by carrier", title_justify="left", title_style="bold")
        table.add_column("CARRIER")
        table.add_column("FLIGHTS", justify="right")
        table.add_column("MINUTES", justify="right")
        for carrier, (count, mean) in sorted(found.items(), key=lambda item: -item[1][1]):
            table.add_row(carrier, f"{count:,}", f"{mean:.1f}")
        self._console.print(table)

    def _show_checks(self, checks: Sequence[Check]) -> None:
        for check in checks:
            mark = "[green]ok  [/]" if check.passed else "[bold red]FAIL[/]"
            self._console.print(f"{mark} {check.name}: {check.result}", highlight=False)

    def _choose_names(self) -> None:
        """Adds a suffix if the cluster already has a topic or a group of this name."""
        known = set(self._cluster.metadata(None, refresh=True).topics)
        known.update(listing.group_id for listing in list_groups(self._cluster))
        if not known.isdisjoint((self._topic, self._output_topic, self._group, self._check_group)):
            suffix = uuid.uuid4().hex[:6]
            self._topic, self._output_topic = f"{self._topic}-{suffix}", f"{self._output_topic}-{suffix}"
            self._group, self._check_group = f"{self._group}-{suffix}", f"{self._check_group}-{suffix}"

    def _kill_applications(self) -> None:
        for application in self._applications:
            application.kill()

    def _report(self, text: str) -> None:
        seconds = (self._clock.now_ms() - self._started_ms) // 1000
        self._console.print(f"[cyan]{seconds:>3} s[/] {text}", highlight=False)


def start_embedded_broker(stack: ExitStack, verbose: bool) -> str:
    """Starts ``groupsource broker`` in a child process; returns its address when it is ready."""
    command = [str(Path(sys.executable).parent / "groupsource"), "broker", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(DIRECTORY / "broker")]
    for key, value in BROKER_CONFIG.items():
        command += ["--config", f"{key}={value}"]
    log = stack.enter_context((DIRECTORY / "broker.log").open("w"))
    process = start_process(command, subprocess.PIPE, None if verbose else log)
    stack.callback(stop_process, process, 20)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening on "):
            return line.split()[-1]
    raise DemoError(f"The embedded broker did not start. Its log:\n{(DIRECTORY / 'broker.log').read_text()}")


def start_cluster(stack: ExitStack, options: argparse.Namespace, console: Console) -> str:
    """The address of the cluster selected by the options; starts a broker unless an address is given."""
    if options.bootstrap_servers:
        return str(options.bootstrap_servers)
    if options.kafka:
        console.print("[cyan]  0 s[/] starting Apache Kafka (downloaded on first use: one or two minutes)")
        return stack.enter_context(RealKafka(BROKER_CONFIG)).bootstrap_servers
    console.print("[cyan]  0 s[/] starting the embedded broker: groupsource broker")
    return start_embedded_broker(stack, options.verbose)


def next_steps(bootstrap_servers: str | None, is_kafka: bool, group: str) -> list[tuple[str, str]]:
    """The notebook and two commands to try, each with its purpose.

    Args:
        bootstrap_servers: the user's cluster, which runs on; None if the demo started one, which has ended.
        is_kafka: whether the demo started an Apache Kafka. The data of an embedded broker are kept.
    """
    groupsource = os.path.relpath(Path(sys.executable).parent / "groupsource")
    notebook = ("docs/tour.ipynb", "the notebook: topics, lag, rebalances as a chart, resets (docs/notebook.md)")
    if is_kafka:
        return [
            notebook,
            ("make run", "the demo on the embedded broker, whose data are kept"),
            ("make run BOOTSTRAP=host:port", "the demo on your own Kafka"),
        ]
    why = f"{groupsource} groups why --group {group}"
    if bootstrap_servers is not None:
        address = f"--bootstrap-server {bootstrap_servers}"
        describe = f"{groupsource} groups describe --group {group} {address}"
        return [notebook, (f"{why} {address}", "why the group rebalanced"), (describe, "its offsets and lag")]
    start = f"{groupsource} broker --data-dir {os.path.relpath(DIRECTORY / 'broker')}"
    return [notebook, (start, "this broker again; then, in another terminal:"), (why, "why the group rebalanced")]


def show_next_steps(console: Console, steps: Sequence[tuple[str, str]]) -> None:
    """Prints each command with its purpose."""
    console.print("\n[bold]What to try next[/]")
    width = max(len(command) for command, _ in steps)
    for command, purpose in steps:
        console.print(f"  {command:<{width}}  [dim]{purpose}[/]", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Two Spark applications share a group and write exactly once.")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="run on this Kafka cluster")
    target.add_argument("--kafka", action="store_true", help="download and start Apache Kafka")
    parser.add_argument("--verbose", action="store_true", help="show the logs of all processes")
    options = parser.parse_args(arguments)
    console = Console()
    clock = SystemClock()
    # SIGTERM stops the child processes in order, as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    try:
        java()
        with ExitStack() as stack:
            bootstrap_servers = start_cluster(stack, options, console)
            started_ms = clock.now_ms()  # without the download of Kafka
            demo = Demo(console, bootstrap_servers, options.verbose)
            passed = demo.run()
    except (DemoError, UnavailableError, GroupSourceError) as error:
        console.print(f"[bold red]failed:[/] {escape(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    seconds = (clock.now_ms() - started_ms) / 1000
    verdict = "[bold green]all checks passed[/]" if passed else "[bold red]a check failed[/]"
    console.print(f"{verdict} after {seconds:.0f} s")
    show_next_steps(console, next_steps(options.bootstrap_servers, options.kafka, demo.group))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
