"""Metadata of a leader's assignment, which the whole group waits for."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.session_fakes import P0, P1, P2, FakeCluster

from spark_groupsource.assign import RangeAssignor
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.assignment import compute_assignment
from spark_groupsource.client.membership.membership_values import Generation, Joined
from spark_groupsource.errors import RequestTimeoutError
from spark_groupsource.model import Subscription
from spark_groupsource.wire.consumer_protocol import decode_assignment, encode_subscription


class UnresponsiveCluster(FakeCluster):
    """The first `failures` requests for metadata are not answered."""

    failures = 3

    def metadata(self, *given: Any, **options: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise RequestTimeoutError("No Kafka broker responded in time.")
        return super().metadata(*given, **options)


def joined() -> Joined:
    generation = Generation(1, "m", "range")
    return Joined(generation, True, False, (("m", None, encode_subscription(Subscription(("t",)))),))


def test_leader_waits_for_metadata() -> None:
    """Its query may not call the group for the length of a batch, so an error would end nothing but the rebalance."""
    cluster = cast(ClusterClient, UnresponsiveCluster())
    computed = compute_assignment(cluster, RangeAssignor(), joined(), False, lambda: True)
    assert decode_assignment(computed.assignments["m"]).partitions == (P0, P1, P2)


def test_leader_that_was_removed_does_not_wait() -> None:
    cluster = UnresponsiveCluster()
    answers = iter([True, False])
    with pytest.raises(RequestTimeoutError):
        compute_assignment(cast(ClusterClient, cluster), RangeAssignor(), joined(), False, lambda: next(answers))
    assert cluster.failures == 1
