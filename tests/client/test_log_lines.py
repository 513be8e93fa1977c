"""Log lines of group membership: entity, bounded length, levels."""

from __future__ import annotations

import logging
import re

import pytest
from support.scripted_group import Bench

from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import TopicPartition

PARTITIONS = 5_000
MAX_CHARACTERS = 250
LOGGER = "spark_groupsource.client"


def rebalance(caplog: pytest.LogCaptureFixture) -> Bench:
    """A member that is assigned 5,000 partitions, loses them to an eager rebalance, and is assigned them again."""
    caplog.set_level(logging.DEBUG, logger=LOGGER)
    bench = Bench()
    bench.script.is_leader = False
    bench.script.topics = {"t": [[0]] * PARTITIONS}
    bench.script.assigned = [TopicPartition("t", number) for number in range(PARTITIONS)]
    assert len(bench.settle().partitions) == PARTITIONS
    bench.script.prepare("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
    bench.heartbeat()
    assert len(bench.settle().partitions) == PARTITIONS
    return bench


def test_lines_of_a_rebalance_of_5000_partitions_are_short(caplog: pytest.LogCaptureFixture) -> None:
    rebalance(caplog)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith(LOGGER)]
    assert max(map(len, lines)) <= MAX_CHARACTERS
    revoked = [line for line in lines if "revoked" in line]
    assert revoked == ["[group=g] Partitions revoked (t-0, t-1, t-2, t-3, t-4 and 4,995 more): 5,000."]


def test_lines_begin_with_the_entity(caplog: pytest.LogCaptureFixture) -> None:
    bench = rebalance(caplog)
    bench.script.prepare("Heartbeat", BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Coordinator lookup"))
    bench.heartbeat()
    bench.client.close()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith(LOGGER)]
    assert [line for line in lines if not re.match(r"\[\w+=[^\]]+\] [A-Z].*\.$", line)] == []


def test_rebalances_are_logged_at_info_and_failures_at_warning(caplog: pytest.LogCaptureFixture) -> None:
    bench = rebalance(caplog)
    bench.script.prepare("Heartbeat", BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Coordinator lookup"))
    bench.heartbeat()
    levels: dict[str, set[str]] = {}
    for record in caplog.records:
        if record.name.startswith(LOGGER):
            levels.setdefault(record.levelname, set()).add(record.getMessage())
    info = "\n".join(sorted(levels["INFO"]))
    for text in ("Joining the group", "Joined the group as follower", "Synced with the group", "Adding newly assigned"):
        assert text in info
    completed = r"\[group=g generation=2\] Rebalance \(.*\) completed in \d+ ms \(join \d+ ms, sync \d+ ms\): "
    assert re.search(completed + r"\+\d+ -\d+ partitions, 1 members\.", info)
    (warning,) = levels["WARNING"]
    assert "Heartbeat failed, retrying: Coordinator lookup" in warning
