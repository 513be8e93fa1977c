"""``groupsource exporter``: metrics, HTTP server, errors, dashboard."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from support.clients import group_client, open_cluster, settle
from support.clusters import Cluster
from support.commits import commit_as
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.exporter import MetricsPart, MetricsServer, metrics_text
from spark_groupsource.cli.exporter_metrics import FAMILIES, Sample, lag_samples, prometheus_text
from spark_groupsource.cli.exporter_rebalances import RebalanceMetrics, RebalanceTotals
from spark_groupsource.cli.main import main
from spark_groupsource.errors import NetworkError
from spark_groupsource.monitor.rebalances.rebalance import Cause, Phases
from spark_groupsource.monitor.selection import NameSelection

DASHBOARD = Path(__file__).resolve().parents[2] / "conf" / "grafana" / "groupsource.json"
# metric and labels of kafka_exporter 1.9
KAFKA_EXPORTER = {
    "kafka_brokers": "",
    "kafka_broker_info": "id address",
    "kafka_topic_partitions": "topic",
    **dict.fromkeys(
        [
            f"kafka_topic_partition_{name}"
            for name in ("current_offset", "oldest_offset", "leader", "replicas", "in_sync_replica")
            + ("leader_is_preferred", "under_replicated_partition")
        ],
        "topic partition",
    ),
    "kafka_consumergroup_current_offset": "consumergroup topic partition",
    "kafka_consumergroup_current_offset_sum": "consumergroup topic",
    "kafka_consumergroup_lag": "consumergroup topic partition",
    "kafka_consumergroup_lag_sum": "consumergroup topic",
    "kafka_consumergroup_members": "consumergroup",
}
SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def parse(text: str) -> dict[tuple[str, str], float]:
    """Metric and label text -> value; fails for a line that is not of the format."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            found[match[1], match[2] or ""] = float(match[3])
    return found


@contextmanager
def serving(*parts: MetricsPart) -> Iterator[str]:
    server = MetricsServer("127.0.0.1:0", parts)
    server.start()
    try:
        yield f"http://{server.address}"
    finally:
        server.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def test_names_and_labels_are_those_of_kafka_exporter() -> None:
    ours = {name: " ".join(f.labels) for name, f in FAMILIES.items() if name.startswith(("kafka_b", "kafka_t"))}
    ours |= {name: " ".join(f.labels) for name, f in FAMILIES.items() if name.startswith("kafka_consumergroup")}
    assert ours == KAFKA_EXPORTER
    assert {FAMILIES[name].kind for name in KAFKA_EXPORTER} == {"gauge"}


@pytest.mark.slow
def test_metrics_of_topics_and_groups(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, ((n % 2, None, b"x") for n in range(10)))
    commit_as(cluster.bootstrap_servers, group, [TopicPartition(topic, 0, 2)])
    names = NameSelection((topic,)), NameSelection((group, "missing-group"))
    with open_cluster(cluster.bootstrap_servers) as client:
        part = MetricsPart("lag", lambda: lag_samples(client, *names), 60)
        part.update()
        with serving(part) as url:
            text = get(f"{url}/metrics")
            assert get(f"{url}/healthz") == "ok\n"
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(f"{url}/other")
    found = parse(text)
    assert found["kafka_brokers", ""] == 1
    tp, gtp = f'topic="{topic}",partition="%d"', f'consumergroup="{group}",topic="{topic}",partition="%d"'
    expected = {
        ("kafka_topic_partitions", f'topic="{topic}"'): 2,
        ("kafka_topic_partition_current_offset", tp % 1): 5,
        ("kafka_topic_partition_oldest_offset", tp % 0): 0,
        ("kafka_topic_partition_leader", tp % 0): 1,
        ("kafka_topic_partition_leader_is_preferred", tp % 0): 1,
        ("kafka_topic_partition_replicas", tp % 0): 1,
        ("kafka_topic_partition_in_sync_replica", tp % 0): 1,
        ("kafka_topic_partition_under_replicated_partition", tp % 0): 0,
        ("kafka_consumergroup_members", f'consumergroup="{group}"'): 0,
        ("kafka_consumergroup_current_offset", gtp % 0): 2,
        ("kafka_consumergroup_current_offset", gtp % 1): -1,
        ("kafka_consumergroup_lag", gtp % 0): 3,
        ("kafka_consumergroup_lag", gtp % 1): -1,
        ("kafka_consumergroup_lag_sum", f'consumergroup="{group}",topic="{topic}"'): 3,
        ("kafka_consumergroup_current_offset_sum", f'consumergroup="{group}",topic="{topic}"'): 2,
        ("groupsource_exporter_up", 'part="lag"'): 1,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "missing-group" not in text and 'topic="__consumer_offsets"' not in text


def test_rebalances_are_counted_by_cause(embedded: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with open_cluster(embedded.bootstrap_servers) as client:
        metrics = RebalanceMetrics(client, NameSelection((group,)))
        with group_client(client, group, topic) as member:
            settle(member, 1)
            assert metrics.samples() == [], "counted when it is seen again"
            found = parse(prometheus_text(metrics.samples()))
        assert found["groupsource_rebalances_total", f'group="{group}",cause="JOINED"'] == 1
        count = f'group="{group}",phase="sync"'
        assert found["groupsource_rebalance_phase_seconds_count", count] == 1
        assert found["groupsource_rebalance_phase_seconds_bucket", f'{count},le="+Inf"'] == 1


def rebalance(generation: int, completed_ms: int, cause: Cause = Cause.JOINED, **phases: int) -> Any:
    return SimpleNamespace(generation=generation, completed_ms=completed_ms, cause=cause, phases=Phases(**phases))


def test_a_rebalance_is_counted_once_with_its_later_cause() -> None:
    totals = RebalanceTotals("g")
    totals.update([rebalance(1, 10_000, Cause.UNKNOWN)])
    assert totals.is_pending
    totals.update([rebalance(1, 10_040, Cause.LEFT, join_ms=50), rebalance(2, 20_000)])
    totals.update([rebalance(1, 10_040, Cause.LEFT, join_ms=50), rebalance(2, 20_000)])
    totals.update([rebalance(1, 10_040, Cause.LEFT, join_ms=50), rebalance(2, 20_000)])
    assert not totals.is_pending
    counts = {s.labels: s.value for s in totals.samples() if s.name == "groupsource_rebalances_total"}
    assert counts == {("g", "LEFT"): 1, ("g", "JOINED"): 1}
    buckets = {s.le: s.value for s in totals.samples() if s.suffix == "_bucket"}
    assert (buckets["0.025"], buckets["0.05"], buckets["+Inf"]) == (0, 1, 1)


def test_a_deleted_group_that_exists_again_is_counted_once() -> None:
    totals = RebalanceTotals("g")
    for _ in range(5):
        totals.update([rebalance(1, 10_000), rebalance(1, 90_000)])
    assert [s.value for s in totals.samples()] == [2]


def test_an_error_is_a_metric_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    responses: list[Any] = [NetworkError("No broker."), NetworkError("No broker."), [Sample("kafka_brokers", (), 3)]]

    def read() -> list[Sample]:
        response = responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return list(response)

    part = MetricsPart("lag", read, 60)
    part.update()
    part.update()
    assert parse(metrics_text([part])) == {
        ("groupsource_exporter_up", 'part="lag"'): 0,
        ("groupsource_exporter_errors_total", 'part="lag"'): 2,
    }
    part.update()
    found = parse(metrics_text([part]))
    assert (found["kafka_brokers", ""], found["groupsource_exporter_up", 'part="lag"']) == (3, 1)
    assert found["groupsource_exporter_errors_total", 'part="lag"'] == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]", line) for line in lines)
    assert [line.split(" ", 2)[2] for line in lines] == [
        "WARNING [exporter part=lag] Read failed, retrying: No broker.",
        "INFO [exporter part=lag] Reads succeed again, errors in all: 2.",
    ]


def test_a_lost_cluster_is_noticed_between_two_reads() -> None:
    can_end, reads = threading.Event(), []

    def read() -> list[Sample]:
        reads.append(1)
        if len(reads) > 1:
            can_end.wait(60)
        return [Sample("kafka_brokers", (), 3)]

    def probe() -> None:
        raise NetworkError("No broker.")

    part = MetricsPart("lag", read, 0.3, probe)
    part.start()
    try:
        wait_until(lambda: 'errors_total{part="lag"} 1' in metrics_text([part]), "the probe fails")
        shown = metrics_text([part])
        assert 'up{part="lag"} 0' in shown and "kafka_brokers" not in shown
    finally:
        part.close()
        can_end.set()


@pytest.mark.slow
def test_before_the_first_read_a_scrape_is_rejected() -> None:
    with serving(MetricsPart("lag", list, 60)) as url:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(f"{url}/metrics")
        assert get(f"{url}/healthz") == "ok\n"


def test_labels_are_escaped() -> None:
    text = prometheus_text([Sample("kafka_consumergroup_members", ('a"b\\c\nd',), 1)])
    assert text.splitlines()[-1] == 'kafka_consumergroup_members{consumergroup="a\\"b\\\\c\\nd"} 1'


def test_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["exporter", "--listen", f"127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Option --listen cannot be used") and len(result.stderr.splitlines()) == 1


def test_the_dashboard_names_exported_metrics_only() -> None:
    text = DASHBOARD.read_text()
    expressions = re.findall(r'"(?:expr|query)": "([^"]*(?:\\"[^"]*)*)"', text)
    names = {name for expression in expressions for name in re.findall(r"\b(?:kafka|groupsource)_\w+", expression)}
    histograms = {name for name, family in FAMILIES.items() if family.kind == "histogram"}
    exported = {*FAMILIES, *(f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count"))}
    assert len(names) >= 12 and names <= exported
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
