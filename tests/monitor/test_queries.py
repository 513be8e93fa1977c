"""Table queries, from readers in the process of the test."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.direct_readers import StreamQuery
from support.topics import create_topic, produce

from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.source.process.control_socket import ControlServer, control_directory
from spark_groupsource.source.process.driver_process import driver_pid
from spark_groupsource.source.process.group_claims import GroupClaim, claim_group
from spark_groupsource.source.process.queries import query_rows


def test_no_query_is_running() -> None:
    assert query_rows(os.getpid(), None) == []


def test_name_and_batch_come_from_the_read_tasks() -> None:
    status = {"group": "g", "reader_pid": 7, "state": "running", "generation": 3}
    status |= {"transactional_id": "T", "published_batch": 11}
    status |= {"partitions": [["t", 0], ["t", 1]], "end": {"t": {"0": 5}}}
    server = ControlServer(os.getpid(), "0123", lambda proof: False, status=lambda: status)
    claim = claim_group(control_directory(os.getpid()), GroupClaim("g", "c", ("t",), None, False, 7, 0))
    try:
        with open(claim.query_file, "w") as file:
            file.write('{"name": "orders", "id": "1f", "batch": 12}')
        (row,) = query_rows(os.getpid(), None)
        assert query_rows(os.getpid(), parse_selection("group", "other")) == []
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
        "reader_pid": 7,
    }


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
        assert row["last_offsets"] == f'{{"{topic}": {{"0": 2, "1": 2}}}}' and row["reader_pid"] == os.getpid()
    assert query_rows(driver_pid(), selection) == []
