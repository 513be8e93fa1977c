"""Log lines about brokers that cannot be reached."""

import logging

import pytest

from spark_groupsource.client.network.availability import BrokerAvailability
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import NetworkError, RequestTimeoutError

BROKER, ALIAS = Address("broker", 9092), Address("localhost", 9092)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "spark_groupsource.client.network.availability")
    return lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


def attempt(availability, address=BROKER, error=None, is_connected=False):
    try:
        with availability.watch(address, is_connected=is_connected):
            if error is not None:
                raise error
    except NetworkError:
        pass


def test_outage_is_one_warning_and_its_end_one_line(lines):
    clock = ManualClock()
    availability = BrokerAvailability("group=g", clock, lambda: {BROKER})
    for _ in range(20):
        attempt(availability, error=NetworkError("Refused."))
        attempt(availability, ALIAS, NetworkError("Refused."))  # a bootstrap address of the same broker
        availability.check()
        clock.advance_ms(500)
    assert lines() == ["WARNING [group=g broker=broker:9092] Broker is unreachable, retrying: Refused."]
    attempt(availability)
    attempt(availability)
    availability.check()
    assert lines()[1:] == ["INFO [group=g broker=broker:9092] Broker is reachable again after 10000 ms."]
    attempt(availability, error=NetworkError("Refused again."))
    clock.advance_ms(2_000)
    availability.check()
    assert len(lines()) == 3


def test_restart_within_two_seconds_is_not_reported(lines):
    clock = ManualClock()
    availability = BrokerAvailability("group=g", clock, set)
    attempt(availability, error=NetworkError("Refused."))
    clock.advance_ms(1_900)
    availability.check()
    attempt(availability)
    clock.advance_ms(1_900)
    availability.check()
    assert lines() == []


def test_broker_without_response_is_reported_while_the_request_waits(lines):
    clock = ManualClock()
    availability = BrokerAvailability("group=g", clock, set)
    with availability.watch(BROKER, is_connected=True):
        clock.advance_ms(2_500)
        availability.check()
        (line,) = lines()
        assert line.endswith("Broker is unreachable, retrying: No response for 2500 ms.")
    assert lines()[1:] == ["INFO [group=g broker=broker:9092] Broker is reachable again after 2500 ms."]


def test_lost_connection_is_no_outage_and_a_timeout_is_one(lines):
    clock = ManualClock()
    availability = BrokerAvailability("group=g", clock, set)
    attempt(availability, error=NetworkError("Closed."), is_connected=True)
    clock.advance_ms(5_000)
    availability.check()
    assert lines() == []
    attempt(availability, error=RequestTimeoutError("Late."), is_connected=True)
    clock.advance_ms(5_000)
    availability.check()
    assert len(lines()) == 1
