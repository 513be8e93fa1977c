"""A short run of `rebalance_causes.py`; ``make soak`` has the long ones."""

import pytest
from chaos.caused_members import World
from chaos.rebalance_causes import run, started_broker

from spark_groupsource.monitor.rebalances.rebalance import Cause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ACTIONS = ("join", "join", "remove", "add_partitions", "subscribe", "leave")


def is_unknown_to_members(judgment):
    """The reports of the members that remain do not show why another one is gone; but they show the rebalance."""
    found = judgment.found
    return judgment.source == "own members" and found is not None and found.cause is Cause.UNKNOWN


def test_injected_causes_are_found(tmp_path):
    with started_broker(is_kafka=False) as broker:
        world = World(("own",), ("range",), commit_s=0.2, heartbeat_ms=200)
        injections, judged, _ = run(broker, tmp_path, 100, 1, [world], ACTIONS, settle_s=0.3)
    assert [injection.action for injection in injections] == list(ACTIONS)
    wrong = [j for j in judged if not (j.is_cause_right and j.is_actor_right) and not is_unknown_to_members(j)]
    assert not wrong and {j.source for j in judged} >= {"history", "merged"}
