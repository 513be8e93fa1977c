"""Clients of a Python worker that runs tasks of many users."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address
from spark_groupsource.source.options.sink_options import parse_sink_options
from spark_groupsource.source.sink import output_task
from spark_groupsource.source.tasks import task_reader
from spark_groupsource.source.tasks.kept_clients import MAX_CLIENTS
from spark_groupsource.source.tasks.task_partition import GroupInputPartition

SETTINGS = ClientSettings((Address("127.0.0.1", 1),))


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The client ids of the clients that were closed."""
    found: list[str] = []
    monkeypatch.setattr(ClusterClient, "close", lambda self: found.append(self.settings.client_id))
    return found


def read_as(user: str) -> None:
    partition = GroupInputPartition(ranges=[], settings=replace(SETTINGS, client_id=user), fail_on_data_loss=True)
    task_reader._cluster(partition)  # private: a task needs a broker


def write_as(user: str) -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.client.id": user}, "batch")
    output_task._producer(options)  # private: a task needs a broker


@pytest.mark.parametrize(
    ("module", "name", "run_task"), [(task_reader, "_clusters", read_as), (output_task, "_producers", write_as)]
)
def test_clients_of_users_that_are_gone_are_closed(
    module: Any, name: str, run_task: Any, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(module, name, kept)
    for n in range(MAX_CLIENTS):
        run_task(f"user-{n}")
    run_task("user-0")
    assert not closed and len(kept) == MAX_CLIENTS
    run_task("user-new")
    run_task("user-0")
    assert closed == ["user-1"] and len(kept) == MAX_CLIENTS
