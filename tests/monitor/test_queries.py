"""Table queries, from readers in the process of the test."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.direct_readers import StreamQuery
from support.topics import create_topic, produce

from spark_groupsource.cli.exporter_metrics import prometheus_text
from spark_groupsource.cli.exporter_queries import query_samples
from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.source.process.control_socket import ControlServer, control_directory
from spark_groupsource.source.process.driver_process import driver_pid
from spark_groupsource.source.process.group_claims import GroupClaim, claim_group
from spark_groupsource.source.process.queries import query_rows, query_statuses
from spark_groupsource.wire.group_events import EventKind, GroupEvent, event_form


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Metrics are those of every reader of this user, also of other tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_no_query_is_running() -> None:
    assert query_rows(os.getpid(), None) == []


def test_name_and_batch_come_from_the_read_tasks() -> None:
    pid = os.getpid()
    status = {"group": "g", "reader_pid": pid, "state": "running", "generation": 3}
    status |= {"transactional_id": "T", "published_batch": 11}
    status |= {"client_id": "billing", "metrics": {"join-rate": 0.25, "heartbeat-total": 7}}
    status |= {"partitions": [["t", 0], ["t", 1]], "end": {"t": {"0": 5}}}
    event = GroupEvent(1, "g", EventKind.ASSIGNED, 3)
    server = ControlServer(
        os.getpid(), "0123", lambda proof: False, status=lambda: status, events=lambda: [event_form(event)]
    )
    claim = claim_group(control_directory(os.getpid()), GroupClaim("g", "c", ("t",), None, False, pid, 0))
    try:
        with open(claim.query_file, "w") as file:
            file.write('{"name": "orders", "id": "1f", "batch": 12}')
        (row,) = query_rows(os.getpid(), None)
        assert query_rows(os.getpid(), parse_selection("group", "other")) == []
        (found,) = query_statuses(os.getpid(), "1f", with_events=True)
        assert (found["metrics"], found["events"]) == ({"join-rate": 0.25, "heartbeat-total": 7}, [event])
        assert query_statuses(os.getpid(), "2f", with_events=True) == []
        (found,) = query_statuses(os.getpid(), "1f", with_events=False)
        assert "events" not in found
        exported = prometheus_text(query_samples(parse_selection("group", "g")))
        assert query_samples(parse_selection("group", "other")) == []
    finally:
        claim.release()
        server.close()
    assert row == {
        "query": "orders",
        "query_id": "1f",
        "group": "g",
        "state": "running",
        "generation": 3,
        "partitions": 2,
        "assignment": "t:0,1",
        "last_batch": 12,
        "transactional_id": "T",
        "published_batch": 11,
        "last_offsets": '{"t": {"0": 5}}',
        "reader_pid": pid,
        "metrics": '{"join-rate": 0.25, "heartbeat-total": 7}',
    }
    metric, labels = "kafka_consumer_consumer_coordinator_metrics", "consumergroup=\"g\",client_id=\"billing\""
    labels += f',query="orders",reader_pid="{pid}"'
    assert f"{metric}_join_rate{{{labels}}} 0.25\n" in exported
    assert f"# TYPE {metric}_heartbeat_total counter\n{metric}_heartbeat_total{{{labels}}} 7\n" in exported


@pytest.mark.usefixtures("in_process")
def test_a_reader_reports_its_state(cluster: Any, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(n % 2, None, b"x") for n in range(4)])
    options = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest", "members": "1"}
    selection = parse_selection("group", group)
    with StreamQuery(cluster, options) as query:
        assert len(query.trigger()) == 4
        (row,) = query_rows(driver_pid(), selection)
        assert (row["state"], row["generation"], row["assignment"]) == ("running", 1, f"{topic}:0,1")
        metrics = json.loads(row["metrics"])
        assert metrics["assigned-partitions"] == 2 and metrics["rebalance-total"] == metrics["join-total"] == 1
        assert row["last_offsets"] == f'{{"{topic}": {{"0": 2, "1": 2}}}}' and row["reader_pid"] == os.getpid()
    assert query_rows(driver_pid(), selection) == []
