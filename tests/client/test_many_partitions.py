"""Work of a rebalance of many partitions and topics: not their square."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from support.memberships import join_response, sync_response

from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.membership.membership_values import Joined, MemberConfig
from spark_groupsource.client.membership.shared_membership import LocalMember
from spark_groupsource.client.membership.state_machine import Membership
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

COUNT = 300
# a set compares a value once where it finds an equal one, and for hashes that collide
MOST = 4 * COUNT


class Name(str):
    """A topic that counts the comparisons of names."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


class Partition(TopicPartition):
    """A partition that counts the comparisons of partitions."""

    compared = 0
    __hash__ = TopicPartition.__hash__

    def __eq__(self, other: object) -> bool:
        Partition.compared += 1
        return tuple.__eq__(self, other)


@pytest.fixture(autouse=True)
def counters() -> None:
    Name.compared = Partition.compared = 0


def cooperative_member() -> Membership:
    membership = Membership(MemberConfig("g", ("cooperative-sticky",), cooperative=True), 0)
    membership.generation = membership.owned_since = membership.generation._replace(generation_id=1, member_id="m")
    return membership


def test_offsets_to_repeat_are_those_of_owned_partitions() -> None:
    membership = cooperative_member()
    membership.owned = tuple(Partition("t", n) for n in range(COUNT))
    member = LocalMember(0, "app-0", membership, {})
    member.commits = {Partition("t", n): OffsetAndMetadata(n) for n in range(1, COUNT + 1)}
    member.keep_owned_commits()
    assert sorted(member.commits) == [("t", n) for n in range(1, COUNT)]
    assert Partition.compared <= MOST


def test_partitions_of_topics_that_are_not_subscribed_any_more_are_released() -> None:
    membership = cooperative_member()
    membership.owned = tuple(TopicPartition(Name(f"t{n}"), 0) for n in range(COUNT))
    released = membership.released_partitions([Name(f"t{n}") for n in range(1, COUNT + 1)])
    assert released.revoked == (("t0", 0),)
    assert Name.compared <= MOST


def test_assigned_partitions_are_those_of_subscribed_topics() -> None:
    topics = tuple(Name(f"t{n}") for n in range(COUNT))
    settings = GroupSettings(group_id="g", topics=topics)
    cluster: Any = Mock(clock=ManualClock())
    client = GroupClient(cluster, settings)
    membership = client.shared.members[0].membership
    membership.prepare(topics)
    membership.join_request([("range", b"")])
    joined = membership.on_join_response(join_response(), membership.generation, 0)
    assert isinstance(joined, Joined)
    membership.sync_request({})
    assigned = tuple(TopicPartition(f"t{n}", 0) for n in range(COUNT))
    membership.on_sync_response(sync_response(partitions=assigned), joined.generation, 0)
    Name.compared = 0
    client._complete_rebalances()  # private: `poll` needs a broker
    assert membership.owned == tuple(sorted(assigned))
    # the subscription is checked before the partitions are revoked, and again when they are assigned
    assert Name.compared <= 2 * MOST
