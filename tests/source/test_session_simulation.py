"""Random failures of queries that share one group: exactly-once delivery.

A query delivers a record when the batch that has read it is in its commit log.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from random import Random

import pytest
from support.session_fakes import NO_LIMITS, P0, P1, P2, P3, FakeCluster, FakeGroup, Query

from spark_groupsource.errors import BrokerError, ErrorCode, GenerationMismatchError
from spark_groupsource.source.positions.batch_planner import Limits

PARTITIONS = (P0, P1, P2, P3)
FENCED = GenerationMismatchError(group_id="g", member_id="m", generation_id=1, cause="removed")
UNAVAILABLE = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "commit")


class Application:
    """One query with its checkpoint; `delivered` counts the records of its finished batches."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.start, self.logged = {}, None
        self.delivered = Counter()
        self.query = None

    def open(self):
        shared = self.simulation
        group = FakeGroup(assigned={}, commits=shared.commits, history=shared.history)
        self.query = Query(self.start, shared.cluster, group, startingOffsets=shared.starting)
        if self.logged is not None:
            self._run(self.start, self.logged)

    def trigger(self, *, is_logged=True, is_finished=True):
        """Runs one trigger; a query that is killed before the end of its batch is opened again later."""
        query = self.query
        query.clock.advance_ms(2_000)
        end = json.loads(json.dumps(query.session.latest_offset(self.start, self.simulation.limits())))
        if json.dumps(end) == json.dumps(self.start) or not is_logged:
            return
        self.logged = end
        if is_finished:
            self._run(self.start, end)

    def _run(self, start, end):
        for task in self.query.session.input_partitions(start, end):
            for p, begin, stop in task.ranges:
                self.delivered.update((p, offset) for offset in range(begin, stop))
        self.start, self.logged = end, None


class Simulation:
    """Applications of one group; the coordinator is the assignment that each of them gets at its next poll."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.starting = self.random.choice(["earliest", "latest", "-3"])
        self.cluster = FakeCluster({p: (0, self.random.randrange(10)) for p in PARTITIONS})
        distance = {"earliest": 100, "latest": 0, "-3": 3}[self.starting]
        self.begins = {p: max(end - distance, 0) for p, (_, end) in self.cluster.logs.items()}
        self.commits, self.history = {}, []
        self.applications = [Application(self) for _ in range(3)]
        for application in self.applications:
            # the first one has resolved startingOffsets before records are produced
            application.open()
            application.trigger()
        self.rebalance()

    def limits(self):
        return self.random.choice([NO_LIMITS, Limits(max_offsets=7)])

    @property
    def alive(self):
        return [application for application in self.applications if application.query is not None]

    def step(self):
        application = self.random.choice(self.alive or [None])
        kinds = [self.produce, self.produce, self.rebalance, self.start_one]
        if application is not None:
            kinds += [application.trigger] * 4 + [lambda: self.kill(application), lambda: self.fail(application)]
        self.random.choice(kinds)()

    def produce(self):
        for p, (begin, end) in self.cluster.logs.items():
            self.cluster.logs[p] = (begin, end + self.random.randrange(6))

    def start_one(self):
        for application in self.applications:
            if application.query is None:
                application.open()
                break
        self.rebalance()

    def kill(self, application):
        """Kills a query before its batch is logged, finished or committed; its partitions get another owner."""
        point = self.random.randrange(3)
        application.trigger(is_logged=point > 0, is_finished=point > 1)
        application.query = None
        self.rebalance()

    def fail(self, application):
        """A commit fails: for a moment, or because the member was removed, which loses its partitions."""
        group = application.query.group
        group.commit_error = self.random.choice([UNAVAILABLE, FENCED])
        if group.commit_error is FENCED:
            group.rebalance({})
        application.trigger()
        group.commit_error = None
        self.rebalance()

    def rebalance(self):
        """Revokes before it assigns; a member with an unfinished batch does not take part."""
        members = self.alive
        if not members:
            return
        owners = {p: self.random.choice(members) for p in PARTITIONS}
        for is_last in (False, True):
            for member in members:
                group = member.query.group
                assigned = {p: 0 for p in PARTITIONS if owners[p] is member and (is_last or p in group.owners())}
                group.rebalance(assigned)
                member.trigger()

    def finish(self):
        for application in self.applications:
            if application.query is None:
                application.open()
        self.rebalance()
        for _ in range(20):
            for application in self.applications:
                application.trigger()


def check(seed):
    simulation = Simulation(seed)
    for _ in range(40):
        simulation.step()
    simulation.finish()
    for application in simulation.applications:
        twice = sorted(record for record, count in application.delivered.items() if count > 1)
        assert not twice, f"seed {seed}: delivered twice by one query: {twice[:5]}"
    produced = {(p, n) for p, (_, end) in simulation.cluster.logs.items() for n in range(simulation.begins[p], end)}
    lost = sorted(produced - {record for application in simulation.applications for record in application.delivered})
    assert not lost, f"seed {seed}: lost: {lost[:5]}"
    assert {p: commit.offset for p, commit in simulation.commits.items()} == {
        p: end for p, (_, end) in simulation.cluster.logs.items()
    }


@pytest.mark.parametrize("seed", range(20))
def test_no_record_is_lost_and_no_query_delivers_one_twice(seed, caplog):
    caplog.set_level(logging.ERROR)
    check(seed)
