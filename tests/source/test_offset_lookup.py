"""Offset lookups: which errors are retried."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.cluster.metadata import OffsetAndTimestamp
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError, NetworkError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.offset_lookup import OffsetLookup

P0 = TopicPartition("t", 0)
OPTIONS = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "fetchOffset.numRetries": "2"}


class FailingCluster:
    """ListOffsets raises each of `failures` in turn before it succeeds."""

    call_timeout_ms: int | None = None

    def __init__(self, *failures: GroupSourceError) -> None:
        self.failures = list(failures)

    def list_offsets(self, partitions: Any, read_committed: bool | None = None) -> Any:
        assert partitions == {P0: LATEST}
        if self.failures:
            raise self.failures.pop(0)
        return {P0: OffsetAndTimestamp(7, -1, -1)}


def look_up(*failures: GroupSourceError) -> dict[TopicPartition, int]:
    cluster = cast(ClusterClient, FailingCluster(*failures))
    return OffsetLookup(cluster, parse_options(OPTIONS), ManualClock()).latest([P0])


LOST, MOVED = NetworkError("lost"), BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x")


@pytest.mark.parametrize("failures", [(LOST,), (LOST, MOVED), (LOST, LOST)])
def test_lost_connections_count_as_attempts(failures: tuple[GroupSourceError, ...]) -> None:
    assert look_up(*failures) == {P0: 7}


def test_attempts_are_bounded() -> None:
    with pytest.raises(NetworkError, match="lost"):
        look_up(LOST, MOVED, LOST)
