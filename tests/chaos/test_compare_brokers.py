"""Random requests to two brokers, and the report of a difference."""

from __future__ import annotations

import pytest
from real_kafka import RealKafka
from support import compared_sequences
from support.clusters import BROKER_CONFIG
from support.compared_sequences import compare, first_difference
from support.random_requests.actions import Action
from support.random_requests.sequence import RandomRequests

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.wire.api_keys import ApiKey


@pytest.mark.kafka
def test_random_requests_have_equal_responses(embedded: EmbeddedBroker, kafka: RealKafka) -> None:
    assert compare(embedded.bootstrap_servers, kafka.bootstrap_servers, 7, 600) == []


@pytest.mark.slow
def test_the_report_has_the_requests_that_lead_to_the_first_difference(embedded: EmbeddedBroker) -> None:
    with EmbeddedBroker(config={**BROKER_CONFIG, "group.max.session.timeout.ms": "100000"}) as other:
        report = compare(embedded.bootstrap_servers, other.bootstrap_servers, 7, 1_000)
    first, *steps = report
    at = steps.index("differs in:")
    assert first.startswith("seed 7, sequence of seed ")
    assert at <= 3 and steps[at - 1].startswith("  JOIN_GROUP ")
    assert any(".error_code: embedded " in line and line.endswith(", Kafka 26") for line in steps[at + 1 :])


def test_a_request_that_waits_on_one_broker_only_is_a_difference(
    embedded: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # private: a broker that lets the request wait would be given 10 s
    monkeypatch.setattr(compared_sequences, "_AGREE_S", 1)
    # later versions first get a member id
    join = next(action for action in _actions(1) if action.api is ApiKey.JOIN_GROUP and action.version < 4)
    with EmbeddedBroker(config={**BROKER_CONFIG, "group.initial.rebalance.delay.ms": "60000"}) as other:
        found = first_difference(embedded.bootstrap_servers, other.bootstrap_servers, "waits", [join])
    assert found == (1, [f"{join.text}: Kafka does not respond"])


def _actions(seed: int) -> list[Action]:
    generated = RandomRequests(seed, SystemClock().timestamp_ms() - 3_600_000)
    return [generated.next() for _ in range(200)]
