"""Plans of offset resets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.clusters import Cluster
from support.topics import HOUR_MS, create_hourly_topic

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, ConfigurationError, GroupSourceError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.offsets.offset_reset import (
    ALL_COMMITTED,
    ResetScope,
    ResetTarget,
    RestartPosition,
    TargetKind,
    parse_scope,
    parse_target,
    plan,
)

NOW_MS = 1_700_000_000_000


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    with ClusterClient(settings.bootstrap, settings) as client:
        yield client


@pytest.fixture
def filled(cluster: Cluster, topic: str) -> str:
    """A topic of two partitions with ten records each, one per hour from 1970."""
    create_hourly_topic(cluster.bootstrap_servers, topic)
    return topic


def test_every_target_is_planned_and_nothing_is_changed_before_execute(
    client: ClusterClient, filled: str, group: str
) -> None:
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    client.commit(group, {first: OffsetAndMetadata(5)})

    def offsets(kind: TargetKind, value: int = 0, scope: ResetScope = ALL_COMMITTED) -> list[tuple[int, int]]:
        return [(r.partition, r.new_offset) for r in plan(client, group, scope, ResetTarget(kind, value)).rows]

    whole = ResetScope(topics=(filled,))
    assert offsets(TargetKind.EARLIEST) == [(0, 0)]
    assert offsets(TargetKind.LATEST, scope=whole) == [(0, 10), (1, 10)]
    assert offsets(TargetKind.CURRENT, scope=whole) == [(0, 5), (1, 10)]
    assert offsets(TargetKind.OFFSET, 7, ResetScope(partitions=(second,))) == [(1, 7)]
    assert offsets(TargetKind.OFFSET, 70) == [(0, 10)]
    assert offsets(TargetKind.SHIFT, -2) == [(0, 3)]
    assert offsets(TargetKind.SHIFT, -20) == [(0, 0)]
    assert offsets(TargetKind.TIMESTAMP, 3 * HOUR_MS, whole) == [(0, 2), (1, 2)]
    planned = plan(client, group, ALL_COMMITTED, ResetTarget(TargetKind.TIMESTAMP, 11 * HOUR_MS))
    (row,) = planned.rows
    assert row[:6] == (filled, 0, 5, 10, 0, 10) and row.lag == 0
    assert row.note == f"Partition 0 from topic {filled} is empty. Falling back to latest known offset."
    assert client.fetch_committed(group)[first] == OffsetAndMetadata(5)
    planned.execute()
    assert client.fetch_committed(group)[first] == OffsetAndMetadata(10)


def test_unknown_partitions_and_shifts_without_commit_are_rejected(
    client: ClusterClient, filled: str, group: str
) -> None:
    latest = ResetTarget(TargetKind.LATEST)
    with pytest.raises(GroupSourceError, match=f'The partitions "{filled}-7" do not exist'):
        plan(client, group, parse_scope([f"{filled}:0,7"]), latest)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        plan(client, group, parse_scope(["missing"]), latest)
    with pytest.raises(ConfigurationError, match=f"Cannot shift offset for partition {filled}-0 since there is no"):
        plan(client, group, parse_scope([filled]), ResetTarget(TargetKind.SHIFT, 1))


class _Checkpoint:
    """Continues every partition at offset 9."""

    def restart_positions(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> Any:
        return {tp: RestartPosition(9, "checkpoint") for tp in committed}


def test_a_checkpoint_that_has_precedence_is_reported(client: ClusterClient, filled: str, group: str) -> None:
    planned = plan(client, group, ResetScope((filled,)), ResetTarget(TargetKind.OFFSET, 3), _Checkpoint())
    assert [row.restart for row in planned.rows] == [RestartPosition(9, "checkpoint")] * 2
    (warning,) = planned.warnings
    assert f"{filled}-0 at 9 (checkpoint), {filled}-1 at 9 (checkpoint)" in warning
    assert warning in repr(planned)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", ResetTarget(TargetKind.EARLIEST)),
        (100, ResetTarget(TargetKind.OFFSET, 100)),
        ("+10", ResetTarget(TargetKind.SHIFT, 10)),
        ("-10", ResetTarget(TargetKind.SHIFT, -10)),
        ("-1h", ResetTarget(TargetKind.TIMESTAMP, NOW_MS - HOUR_MS)),
        (timedelta(hours=1), ResetTarget(TargetKind.TIMESTAMP, NOW_MS - HOUR_MS)),
        ("1970-01-01T01:00:00", ResetTarget(TargetKind.TIMESTAMP, HOUR_MS)),
        ("1970-01-01T01:00:00.500Z", ResetTarget(TargetKind.TIMESTAMP, HOUR_MS + 500)),
        (datetime(1970, 1, 1, 1, tzinfo=timezone.utc), ResetTarget(TargetKind.TIMESTAMP, HOUR_MS)),
    ],
)
def test_targets_of_python_calls(to: Any, expected: ResetTarget) -> None:
    assert parse_target(to, NOW_MS) == expected


def test_invalid_targets_and_scopes_are_reported() -> None:
    with pytest.raises(ConfigurationError, match="Argument to must be earliest, .*got 'soon'"):
        parse_target("soon", NOW_MS)
    with pytest.raises(ConfigurationError, match="Invalid partition 'x' specified in topic arg 't:x'"):
        parse_scope(["t:x"])
    with pytest.raises(ConfigurationError, match="Invalid topic arg 't:1:2', expected topic name and partitions"):
        parse_scope(["t:1:2"])
    assert parse_scope(["a", "b:1,2"]) == ResetScope(("a",), (TopicPartition("b", 1), TopicPartition("b", 2)))
