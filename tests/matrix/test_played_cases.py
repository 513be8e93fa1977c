"""Cases of docs/protocol.md have the same steps on a real Kafka.

Each request of a case, and each passage of time, leads to the same responses, the same group in DescribeGroups and the
same records in `__consumer_offsets`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from real_kafka import RealKafka
from support import raw_members
from support.compared_brokers import ComparedBroker
from support.played_groups import CaseTiming, EmbeddedGroup, KafkaGroup, PlayedCase
from support.raw_broker import RawConnection, create_topic
from support.waiting import wait_until

from spark_groupsource.broker.group import GroupConfig
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import DescribeGroupsRequest, FindCoordinatorRequest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))
from protocol_pages import CASES, protocol_page  # noqa: E402

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 4
WINDOW_MS = 2_000  # of the initial delay
CONFIG = {
    "group.initial.rebalance.delay.ms": str(WINDOW_MS),
    "group.min.session.timeout.ms": "1",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
}
# timers that fire in a case are shorter on Kafka
SHORT_MS = 5_000
TIMINGS = {
    "first_member": CaseTiming(scale=WINDOW_MS / GroupConfig().group_initial_rebalance_delay_ms),
    "dies_while_preparing": CaseTiming(timeout_ms=SHORT_MS, dying="b"),
    "dies_while_completing": CaseTiming(timeout_ms=SHORT_MS, dying="a"),
    "dies_while_stable": CaseTiming(timeout_ms=SHORT_MS, dying="a"),
    "misses_join_timeout": CaseTiming(timeout_ms=SHORT_MS),
    "misses_sync_timeout": CaseTiming(timeout_ms=SHORT_MS),
}
# why a case cannot be played on one broker that runs; docs/protocol.md says the same
NOT_PLAYED = {"coordinator_moves": "there is no other broker to which the coordinator can move"}
PLAYED = [case for case in CASES if case.__name__ not in NOT_PLAYED]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """The selected cases, in groups of their names, at the same time."""
    calls = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    cases = [case for case in PLAYED if case.__name__ in {call.params["name"] for call in calls}]
    # threads end before the broker stops
    with RealKafka(CONFIG) as kafka, ThreadPoolExecutor(len(cases)) as executor:
        _prepare(kafka.bootstrap_servers)
        yield {case.__name__: executor.submit(_play, case, kafka.bootstrap_servers) for case in cases}


def _prepare(bootstrap_servers: str) -> None:
    """Creates the topic, and waits until each group has a coordinator."""
    with RawConnection(bootstrap_servers) as connection:
        assert create_topic(connection, "flights", 4).error_code == ErrorCode.NONE
    names = [case.__name__ for case in PLAYED]
    with ComparedBroker(bootstrap_servers, "") as broker:

        def have_coordinators() -> bool:
            # the first one makes Kafka create __consumer_offsets
            broker.exchange(FindCoordinatorRequest(key_type=0, coordinator_keys=names), 4)
            described = broker.exchange(DescribeGroupsRequest(groups=names), 6).groups
            return {group.error_code for group in described} == {ErrorCode.GROUP_ID_NOT_FOUND}

        wait_until(have_coordinators, "each group has a coordinator")
    # the first requests to a Kafka take longer than its timers
    with RawConnection(bootstrap_servers) as connection:
        joined = raw_members.join(connection, group="first")
        assert raw_members.sync(connection, joined, group="first").error_code == ErrorCode.NONE


def _play(case: PlayedCase, bootstrap_servers: str) -> None:
    embedded = EmbeddedGroup(case.__name__)
    case(embedded)
    timing = TIMINGS.get(case.__name__, CaseTiming())
    KafkaGroup(bootstrap_servers, case.__name__, PARTITIONS, embedded.steps, timing).play(case)


# the smallest retention time of offsets is a minute
NAMES = [pytest.param(each.__name__, marks=[pytest.mark.soak] * (each.__name__ == "dead")) for each in PLAYED]


@pytest.mark.parametrize("name", NAMES)
def test_case_has_the_same_steps_on_kafka(played: dict[str, Future[None]], name: str) -> None:
    played[name].result()


def test_page_names_the_cases_that_are_not_played() -> None:
    assert {*TIMINGS, *NOT_PLAYED} < {case.__name__ for case in CASES} and not {*TIMINGS} & {*NOT_PLAYED}
    introduction = " ".join(protocol_page().partition("\n## ")[0].split())
    named = [case.__name__ for case in CASES if f"[{str(inspect.getdoc(case)).splitlines()[0]}](#" in introduction]
    assert named == list(NOT_PLAYED)
