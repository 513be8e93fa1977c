"""Partition of a group, and requests that name groups of several partitions."""

from __future__ import annotations

from typing import Any

import pytest
from support.commit_requests import commit_topics

from spark_groupsource.broker.group import (
    GroupShard,
    RequestContext,
    coordinator_partition,
    merge_responses,
    split_request,
)
from spark_groupsource.common.clock import Instant
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import java_string_hash
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

PARTITIONS = 50


@pytest.mark.parametrize(
    "group_id, expected_hash, partition",
    [
        ("test", 3556498, 48),
        ("my-group", -1906497762, 12),
        ("groupId", 293428218, 18),
        ("g1", 3242, 42),
        ("", 0, 0),
        ("消费组", 28099635, 35),
        ("polygenelubricants", -2147483648, 0),
        ("😀", 1772899, 49),  # two UTF-16 units, d83d and de00
    ],
)
def test_java_s_hash(group_id: str, expected_hash: int, partition: int) -> None:
    assert java_string_hash(group_id) == expected_hash
    assert coordinator_partition(group_id, PARTITIONS) == partition


class Coordinator:
    """All shards of a broker."""

    def __init__(self) -> None:
        self.shards = [GroupShard(partition) for partition in range(PARTITIONS)]
        for shard in self.shards:
            shard.on_loaded(Instant(0, 0))

    def send(self, request: Any, version: int) -> Any:
        context = RequestContext("token", version, "client", "/127.0.0.1", "id")
        responses = []
        parts = dict.fromkeys(range(PARTITIONS), request)
        if not isinstance(request, ListGroupsRequest):
            parts = split_request(request, version, PARTITIONS)
        for partition, part in parts.items():
            outcome = self.shards[partition].handle(part, context, Instant(0, 0))
            for key, value, _ in outcome.records:
                self.shards[partition].replay(key, value)
            assert not self.shards[partition].append_succeeded(outcome, Instant(0, 0)).replies
            responses += [reply.response for reply in outcome.replies]
        return merge_responses(request, version, responses)


@pytest.fixture
def coordinator() -> Coordinator:
    coordinator = Coordinator()
    for group_id in ("a", "b", "c"):
        request = OffsetCommitRequest(group_id=group_id, topics=commit_topics(OffsetCommitRequest, {"t": {0: 1}}))
        assert coordinator.send(request, 8).topics[0].partitions[0].error_code == 0
    return coordinator


def test_groups_are_returned_in_the_order_of_the_request(coordinator: Coordinator) -> None:
    described = coordinator.send(DescribeGroupsRequest(groups=["c", "none", "a", "c"]), 5).groups
    assert [(g.group_id, g.group_state) for g in described] == [
        ("c", "Empty"), ("none", "Dead"), ("a", "Empty"), ("c", "Empty")
    ]  # fmt: skip
    entry = OffsetFetchRequest.OffsetFetchRequestGroup
    request = OffsetFetchRequest(groups=[entry(group_id=g, topics=None) for g in ("b", "none", "a")])
    fetched = coordinator.send(request, 8).groups
    assert [(g.group_id, len(g.topics)) for g in fetched] == [("b", 1), ("none", 0), ("a", 1)]


def test_every_shard_lists_its_groups(coordinator: Coordinator) -> None:
    listed = coordinator.send(ListGroupsRequest(), 4)
    assert sorted(group.group_id for group in listed.groups) == ["a", "b", "c"]
    coordinator.shards[coordinator_partition("b", PARTITIONS)].on_unloaded(Instant(0, 0))
    listed = coordinator.send(ListGroupsRequest(), 4)
    assert (listed.error_code, len(listed.groups)) == (ErrorCode.NOT_COORDINATOR, 2)


def test_groups_of_several_shards_are_deleted(coordinator: Coordinator) -> None:
    results = coordinator.send(DeleteGroupsRequest(groups_names=["b", "none", "a", "b"]), 2).results
    assert [(r.group_id, r.error_code) for r in results] == [("b", 0), ("none", ErrorCode.GROUP_ID_NOT_FOUND), ("a", 0)]
    assert [group.group_id for group in coordinator.send(ListGroupsRequest(), 4).groups] == ["c"]


def test_request_without_groups(coordinator: Coordinator) -> None:
    assert list(coordinator.send(DescribeGroupsRequest(groups=[]), 5).groups) == []


@pytest.mark.parametrize("version", [1, 7])
def test_request_of_one_group_is_not_split(coordinator: Coordinator, version: int) -> None:
    request = HeartbeatRequest(group_id="a", generation_id=0, member_id="m")
    assert split_request(request, 4, PARTITIONS) == {coordinator_partition("a", PARTITIONS): request}
    assert coordinator.send(request, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    response = coordinator.send(OffsetFetchRequest(group_id="a", topics=[topic]), version)
    assert response.topics[0].partitions[0].committed_offset == 1
