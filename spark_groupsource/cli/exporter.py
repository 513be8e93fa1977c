"""The ``groupsource exporter`` command: serves metrics to Prometheus."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from spark_groupsource.cli.commands import command, invalid_values
from spark_groupsource.cli.common import cluster_options, one_line, open_cluster
from spark_groupsource.cli.exporter_metrics import Sample, lag_samples, prometheus_text
from spark_groupsource.cli.exporter_queries import query_samples
from spark_groupsource.cli.exporter_rebalances import RebalanceMetrics
from spark_groupsource.cli.local_http import Handler, HttpServer
from spark_groupsource.common.clock import SystemClock, monotonic_ns
from spark_groupsource.common.net import parse_listen_address
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.log_text import log_line, timed_line
from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.wire.messages import MetadataRequest

# a lost cluster is noticed within an interval: a third until the next probe, and a third until it fails
_PROBES_PER_INTERVAL = 3
_LEAST_TIMEOUT_MS, _LEAST_PROBE_TIMEOUT_MS = 5_000, 1_000
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPart:
    """Reads one part of the metrics at an interval, in a thread of its own, and keeps the last result.

    A scrape returns the last result: it sends no request to the cluster, so scrapes cannot pile up. After an error, the
    metrics of the part are absent until the next success.

    Args:
        probe: one request between two reads; its error is an error of the part.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], list[Sample]],
        interval_s: float,
        probe: Callable[[], object] = lambda: None,
    ) -> None:
        self._name = name
        self._read = read
        self._probe = probe
        self._interval_s = interval_s
        self._result: tuple[str, float] | None = None
        self._errors = 0
        self._error = ""
        self.has_read = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"exporter-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def text(self) -> str:
        """Returns the last result in the text format, which is encoded once; empty after an error."""
        result = self._result
        return "" if result is None else result[0]

    def read_samples(self) -> list[Sample]:
        """Returns the metrics of the read itself."""
        result, label = self._result, (self._name,)
        found = [Sample("groupsource_exporter_up", label, result is not None)]
        found.append(Sample("groupsource_exporter_errors_total", label, self._errors))
        return found if result is None else [*found, Sample("groupsource_exporter_read_seconds", label, result[1])]

    def _run(self) -> None:
        pause_s = self._interval_s / _PROBES_PER_INTERVAL
        while True:
            self.update()
            for number in range(_PROBES_PER_INTERVAL):
                if number and self._result is not None:
                    self._attempt(self._probe)
                if self._closing.wait(pause_s):
                    return

    def update(self) -> None:
        """Reads the part once."""
        self._attempt(self._read_all)

    def _read_all(self) -> None:
        started_ns = monotonic_ns()
        self._result = (prometheus_text(self._read()), (monotonic_ns() - started_ns) / 1e9)
        if self._error:
            _log(f"[exporter part={self._name}] Reads succeed again, errors in all: {self._errors}.", logging.INFO)
        self._error = ""

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            # the exporter must survive every error
            known = error if isinstance(error, GroupSourceError) else None
            text = one_line(known) if known else f"Unexpected {type(error).__name__}: {error}"
            if text != self._error and not self._closing.is_set():
                _log(f"[exporter part={self._name}] Read failed, retrying: {text}", logging.WARNING)
            self._result, self._error, self._errors = None, text, self._errors + 1
        self.has_read.set()


def metrics_text(parts: Sequence[MetricsPart]) -> str:
    """Returns the response to a scrape: the metrics of all parts; no metric is in two of them."""
    own = prometheus_text(sample for part in parts for sample in part.read_samples())
    return "".join([*(part.text() for part in parts), own])


def _log(text: str, level: int) -> None:
    click.echo(timed_line(log_line(text), logging.getLevelName(level), SystemClock().timestamp_ms()), err=True)


class _MetricsHandler(Handler):
    """Serves ``/metrics`` and ``/healthz``."""

    def __init__(self, parts: Sequence[MetricsPart], *arguments: Any) -> None:
        self._parts = parts
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self.respond(200, "ok\n", _TEXT)
        elif path != "/metrics":
            self.respond(404, "Not found. Metrics are at /metrics.\n", _TEXT)
        elif not self._parts[0].has_read.is_set():
            self.respond(503, "The first read of the cluster is in progress.\n", _TEXT)
        else:
            self.respond(200, metrics_text(self._parts), _TEXT)

    def do_HEAD(self) -> None:
        self.do_GET()


class MetricsServer(HttpServer):
    """HTTP server of the metrics. Raises: ConfigurationError if the address cannot be used."""

    def __init__(self, listen: str, parts: Sequence[MetricsPart]) -> None:
        super().__init__(parse_listen_address(listen, "--listen"), "--listen", partial(_MetricsHandler, parts))


@command()
@cluster_options
@click.option(
    "--listen",
    default="127.0.0.1:9308",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the HTTP server; port 0 selects a free port.",
)
@click.option("--group", metavar="NAMES", help="Groups: names and patterns, separated by commas. Default: all.")
@click.option("--topic", metavar="NAMES", help="Topics: names and patterns, separated by commas. Default: all.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads of the cluster: the scrape interval of Prometheus.",
)
def exporter(
    bootstrap: str,
    command_config: Path | None,
    listen: str,
    group: str | None,
    topic: str | None,
    interval_s: float,
) -> None:
    """Serves metrics for Prometheus at /metrics until SIGTERM or Ctrl-C, and /healthz.

    Topics, groups and lag have the names and labels of kafka_exporter. Rebalances are counted by cause, and the
    durations of their phases are histograms. Queries of this user on this machine have the metrics of Kafka's consumer
    (kafka_consumer_consumer_coordinator_metrics_*). When the server is ready, it prints "listening on HOST:PORT".
    """
    with invalid_values():
        groups = None if group is None else parse_selection("--group", group)
        topics = None if topic is None else parse_selection("--topic", topic)
    ending = threading.Event()
    third_ms = int(interval_s * 1000 / _PROBES_PER_INTERVAL)
    timeout_ms, probe_timeout_ms = max(third_ms, _LEAST_TIMEOUT_MS), max(third_ms, _LEAST_PROBE_TIMEOUT_MS)
    with open_cluster(bootstrap, command_config, timeout_ms) as cluster:

        def probe() -> None:
            cluster.call_any(MetadataRequest(topics=[], allow_auto_topic_creation=False), probe_timeout_ms)

        rebalances = RebalanceMetrics(cluster, groups)
        parts = (
            MetricsPart("lag", lambda: lag_samples(cluster, topics, groups), interval_s, probe),
            MetricsPart("rebalances", rebalances.samples, interval_s, probe),
            MetricsPart("queries", lambda: query_samples(groups), interval_s),
        )
        server = MetricsServer(listen, parts)
        if not server.is_loopback:
            text = f"[exporter] The metrics at {server.address} are readable by other machines without authentication."
            _log(text, logging.WARNING)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ending.set())
        for part in parts:
            part.start()
        server.start()
        # flushed: scripts wait for this line
        print(f"listening on {server.address}", flush=True)
        ending.wait()
        for part in parts:
            part.close()
        server.close()
