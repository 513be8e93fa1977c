"""Members and lag of a query in kafka-consumer-groups."""

from __future__ import annotations

import pytest
from support.direct_readers import StreamQuery
from support.java_tools import GROUPS
from support.topics import create_topic, produce

pytestmark = pytest.mark.usefixtures("in_process")


def described(java, cluster, group):
    """Returns the rows of kafka-consumer-groups as dictionaries."""
    head, *rows = java.rows(GROUPS, "--bootstrap-server", cluster.bootstrap_servers, "--describe", "--group", group)
    return [dict(zip(head, row)) for row in rows]


def test_idle_stream_has_members_and_no_lag(cluster, topic, group, java):
    create_topic(cluster.bootstrap_servers, topic, 3)
    produce(cluster.bootstrap_servers, topic, [(n % 2, None, b"x") for n in range(20)])
    options = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest", "kafka.client.id": "billing"}
    with StreamQuery(cluster, {**options, "members": "2"}) as query:
        assert len(query.trigger()) == 20
        assert query.trigger() == []  # the first idle trigger
        rows = described(java, cluster, group)
        assert [(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"]) for row in rows] == [
            ("0", "10", "0"),
            ("1", "10", "0"),
            ("2", "0", "0"),
        ]
        assert {row["CLIENT-ID"] for row in rows} == {"billing-0", "billing-1"}
        assert all(row["HOST"] == "/127.0.0.1" and row["CONSUMER-ID"].startswith("billing-") for row in rows)
