"""Random interleavings and failures of queries that share one group: exactly-once delivery.

A query delivers a record when the batch that has read it is in its commit log. Checked in each run:

* every record is delivered; twice only if a query was killed or fenced between the delivery and the commit;
* the committed offset of a partition goes back only where the coordinator itself loses a commit or receives one late;
* a commit that was lost is repeated before its partition is revoked and before the query has drained;
* at the end, the committed offsets are the delivered ones.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from simulation.query_simulation import Simulation
from support.session_fakes import P0, P1, P2, P3

PARTITIONS = (P0, P1, P2, P3)


def run(seed):
    simulation = Simulation(seed, PARTITIONS)
    try:
        simulation.run()
    except AssertionError as error:
        trace = "\n".join(simulation.coordinator.trace[-60:])
        raise AssertionError(f"seed {seed}: {error}\n{trace}") from error
    return simulation.events


def test_no_record_is_lost_or_delivered_twice_without_need(caplog):
    caplog.set_level(logging.CRITICAL)
    events = Counter()
    for seed in range(40):
        events.update(run(seed))
    exercised = ("replay", "report", "idle rejoin", "drain", "killed", "fenced", "lost commit", "late commit")
    assert not [event for event in exercised if events[event] < 40], events
    assert not events["replay timed out"], "a restarted query has waited in vain for other members"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000, 2_000, 100))
def test_no_record_is_lost_or_delivered_twice_in_long_runs(first, caplog):
    caplog.set_level(logging.CRITICAL)
    for seed in range(first, first + 100):
        run(seed)
