"""Cases of docs/protocol.md have the same steps on a real Kafka.

Each request of a case, and each passage of time, leads to the same responses, the same group in DescribeGroups and the
same records in `__consumer_offsets`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from real_kafka import RealKafka
from support import raw_members
from support.kafka_cluster import OFFSETS_TOPIC, KafkaCluster
from support.played_groups import CaseTiming, EmbeddedGroup, KafkaGroup
from support.raw_broker import RawConnection, create_topic
from support.waiting import wait_until

from spark_groupsource.broker.group import GroupConfig
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import DescribeGroupsRequest, FindCoordinatorRequest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))
from protocol_cases import CASES  # noqa: E402

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 4
WINDOW_MS = 2_000  # of the initial delay
CONFIG = {
    "group.initial.rebalance.delay.ms": str(WINDOW_MS),
    "group.min.session.timeout.ms": "1",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "offsets.retention.minutes": "1",
    # Kafka removes an Empty group, also one with a pending member id: cases begin before the first check
    "offsets.retention.check.interval.ms": "30000",
}
# timers that fire in a case are shorter on Kafka
SHORT_MS = 5_000
TIMINGS = {
    "first_member": CaseTiming(scale=WINDOW_MS / GroupConfig().group_initial_rebalance_delay_ms),
    "dies_while_preparing": CaseTiming(timeout_ms=SHORT_MS, dying="b"),
    "dies_while_completing": CaseTiming(timeout_ms=SHORT_MS, dying="a"),
    "dies_while_stable": CaseTiming(timeout_ms=SHORT_MS, dying="a"),
    "freezes": CaseTiming(timeout_ms=SHORT_MS, dying="a"),
    "misses_join_timeout": CaseTiming(timeout_ms=SHORT_MS),
    "misses_sync_timeout": CaseTiming(timeout_ms=SHORT_MS),
}
MOVED = "coordinator_moves"  # needs a second broker
BY_NAME = {case.__name__: case for case in CASES}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """The selected cases, in groups of their names, at the same time."""
    calls = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names = {str(call.params["name"]) for call in calls}
    # threads end before the broker stops
    with RealKafka(CONFIG) as kafka, ThreadPoolExecutor(len(names)) as executor:
        servers = kafka.bootstrap_servers
        _prepare(servers, names)
        # the first requests to a Kafka take longer than its timers
        with RawConnection(servers) as connection:
            joined = raw_members.join(connection, group="first")
            assert raw_members.sync(connection, joined, group="first").error_code == ErrorCode.NONE
        yield {name: executor.submit(_play, name, servers) for name in BY_NAME if name in names}


def _prepare(coordinator: str, names: Collection[str]) -> None:
    """Creates the topic, and waits until the broker is the coordinator of the groups."""
    with RawConnection(coordinator) as connection:
        assert create_topic(connection, "flights", 4).error_code == ErrorCode.NONE
        describe = DescribeGroupsRequest(groups=list(names))

        def coordinates() -> bool:
            # the first one makes Kafka create __consumer_offsets
            connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=list(names)), 4)
            described = connection.call(describe, 6).groups
            return {group.error_code for group in described} == {ErrorCode.GROUP_ID_NOT_FOUND}

        wait_until(coordinates, "the broker is the coordinator of the groups")


def _play(name: str, coordinator: str, move: Callable[[], str] | None = None) -> None:
    embedded = EmbeddedGroup(name)
    BY_NAME[name](embedded)
    timing = TIMINGS.get(name, CaseTiming())
    KafkaGroup(coordinator, name, PARTITIONS, embedded.steps, timing, move).play(BY_NAME[name])


# the smallest retention time of offsets is a minute
NAMES = [pytest.param(name, marks=[pytest.mark.soak] * (name == "dead")) for name in BY_NAME if name != MOVED]


@pytest.mark.parametrize("name", NAMES)
def test_case_has_the_same_steps_on_kafka(played: dict[str, Future[None]], name: str) -> None:
    played[name].result()


@pytest.mark.soak
def test_coordinator_that_moves_has_the_same_steps_on_kafka() -> None:
    with KafkaCluster(3, CONFIG) as cluster:
        first = _first_coordinator(cluster)
        cluster.nodes[first].kill()
        wait_until(lambda: cluster.coordinator(MOVED) not in (first, -1), "another node is the coordinator")
        cluster.nodes[first].restart()
        cluster.wait_in_sync([OFFSETS_TOPIC])

        def move() -> str:
            cluster.elect_preferred([OFFSETS_TOPIC])
            wait_until(lambda: cluster.coordinator(MOVED) == first, "the first coordinator is it again")
            return cluster.nodes[first].bootstrap_servers

        second = cluster.nodes[cluster.coordinator(MOVED)].bootstrap_servers
        _prepare(second, [MOVED])
        _play(MOVED, second, move)


def _first_coordinator(cluster: KafkaCluster) -> int:
    """The preferred one, as soon as all nodes have `__consumer_offsets`."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[MOVED])
    with RawConnection(cluster.nodes[1].bootstrap_servers) as connection:
        wait_until(
            lambda: connection.call(find, 4).coordinators[0].error_code == ErrorCode.NONE, "a coordinator is known"
        )
    cluster.wait_in_sync([OFFSETS_TOPIC])
    return cluster.coordinator(MOVED)


def test_timings_are_those_of_cases() -> None:
    assert {*TIMINGS, MOVED} < {*BY_NAME}
