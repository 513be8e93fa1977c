"""Three nodes in one broker: group coordinators that move and load."""

from __future__ import annotations

import pytest
from support.raw_broker import (
    RawConnection,
    create_topic,
)
from support.three_nodes import (
    CONFIG,
    NODES,
    commit,
    committed,
    heartbeat,
    join,
    member_of,
    other_than,
    sync,
)
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.group import SessionTimer, coordinator_partition
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.frames import decode_response
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)


def test_only_the_coordinator_serves_a_group(broker, nodes, topic, group):
    create_topic(nodes[1], topic)
    coordinator = broker.coordinator(group)
    member_id, generation = member_of(nodes[coordinator], group)
    assert nodes[coordinator].call(heartbeat(group, generation, member_id), 4).error_code == 0
    listed = {n for n in NODES for each in nodes[n].call(ListGroupsRequest(), 2).groups if each.group_id == group}
    assert listed == {coordinator}
    connection = nodes[other_than(coordinator)]
    describe = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    codes = [
        connection.call(join(group), 5).error_code,
        connection.call(sync(group, generation, member_id), 5).error_code,
        connection.call(heartbeat(group, generation, member_id), 4).error_code,
        connection.call(commit(group, generation, member_id, topic, 1), 8).topics[0].partitions[0].error_code,
        connection.call(committed(group), 8).groups[0].error_code,
        connection.call(describe, 5).groups[0].error_code,
        connection.call(DeleteGroupsRequest(groups_names=[group]), 2).results[0].error_code,
    ]
    assert codes == [ErrorCode.NOT_COORDINATOR] * 7


def test_a_group_keeps_generation_and_offsets_when_its_coordinator_moves(broker, nodes, topic, group):
    create_topic(nodes[1], topic)
    first = broker.coordinator(group)
    member_id, generation = member_of(nodes[first], group)
    assert nodes[first].call(commit(group, generation, member_id, topic, 42), 8).topics[0].partitions[0].error_code == 0
    second = other_than(first)
    broker.move_coordinator(group, second)
    assert broker.coordinator(group) == second
    assert nodes[first].call(heartbeat(group, generation, member_id), 4).error_code == ErrorCode.NOT_COORDINATOR
    assert nodes[second].call(heartbeat(group, generation, member_id), 4).error_code == 0
    assert nodes[second].call(committed(group), 8).groups[0].topics[0].partitions[0].committed_offset == 42
    describe = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    (returned,) = nodes[second].call(describe, 5).groups
    assert (returned.group_state, [m.member_assignment for m in returned.members]) == ("Stable", [b"mine"])
    # and back to the first node
    broker.move_coordinator(group, first)
    assert nodes[first].call(heartbeat(group, generation, member_id), 4).error_code == 0


def test_a_pending_join_gets_not_coordinator_when_its_coordinator_moves(broker, nodes, group):
    first = broker.coordinator(group)
    member_of(nodes[first], group)
    with RawConnection(broker.bootstrap_servers.split(",")[first - 1]) as another:
        member_id = another.call(join(group), 5).member_id
        posted = another.post(join(group, member_id), 5)  # delayed until the first member rejoins
        describe = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
        wait_until(
            lambda: nodes[first].call(describe, 5).groups[0].group_state == "PreparingRebalance", "the join is delayed"
        )
        broker.move_coordinator(group, other_than(first))
        response = decode_response(another.read_frame(), join(group), 5, posted)
        assert (response.error_code, response.member_id) == (ErrorCode.NOT_COORDINATOR, member_id)


def test_session_timers_of_the_former_coordinator_have_no_effect(broker, nodes, group):
    """The member that sends heartbeats to the new coordinator is not removed."""
    first = broker.coordinator(group)
    member_id, generation = member_of(nodes[first], group)
    second = other_than(first)
    partition = coordinator_partition(group, 4)
    former = broker.call(lambda b: b.group_coordinator.shards.find_loaded(partition))
    broker.move_coordinator(group, second)
    assert nodes[second].call(heartbeat(group, generation, member_id), 4).error_code == 0
    broker.call(lambda b: former.timers.on_expiry(SessionTimer(group, member_id)))
    assert nodes[second].call(heartbeat(group, generation, member_id), 4).error_code == 0


# --- loading ---


@pytest.mark.conformance("GC-001")
def test_a_loading_coordinator_returns_coordinator_load_in_progress(broker, nodes, topic, group):
    create_topic(nodes[1], topic)
    first = broker.coordinator(group)
    member_id, generation = member_of(nodes[first], group)
    second = nodes[other_than(first)]
    ids = (f"{group}-{number}" for number in range(99))
    elsewhere = next(each for each in ids if coordinator_partition(each, 4) != coordinator_partition(group, 4))
    its_node = nodes[broker.coordinator(elsewhere)]
    its_member, its_generation = member_of(its_node, elsewhere)
    broker.pause_loading()
    try:
        broker.move_coordinator(group, other_than(first))
        assert second.call(FindCoordinatorRequest(key=group, key_type=0), 3).node_id == other_than(first)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert second.call(join(group), 5).error_code == loading
        refused = second.call(commit(group, generation, member_id, topic, 7), 8)
        assert refused.topics[0].partitions[0].error_code == loading
        assert second.call(committed(group), 8).groups[0].error_code == loading
        assert second.call(heartbeat(group, generation, member_id), 4).error_code == 0, "succeeds during loading"
        assert second.call(sync(group, generation, member_id), 5).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert second.call(ListGroupsRequest(), 2).error_code == loading
        # groups of other partitions are served
        assert its_node.call(heartbeat(elsewhere, its_generation, its_member), 4).error_code == 0
        stored = its_node.call(commit(elsewhere, its_generation, its_member, topic, 7), 8)
        assert stored.topics[0].partitions[0].error_code == 0
        assert its_node.call(DescribeGroupsRequest(groups=[elsewhere]), 5).groups[0].group_state == "Stable"
    finally:
        broker.pause_loading(False)
    assert second.call(DescribeGroupsRequest(groups=[group]), 5).groups[0].group_state == "Stable"
    assert second.call(committed(group), 8).groups[0].error_code == 0
    assert second.call(heartbeat(group, generation, member_id), 4).error_code == 0


def test_offsets_of_a_topic_deleted_during_loading_are_removed(broker, nodes, topic, group):
    create_topic(nodes[1], topic)
    first = broker.coordinator(group)
    assert nodes[first].call(commit(group, -1, "", topic, 7), 8).topics[0].partitions[0].error_code == 0
    broker.pause_loading()
    try:
        broker.move_coordinator(group, other_than(first))
        broker.call(lambda b: run_at_once(b.delete_topic(topic)))
    finally:
        broker.pause_loading(False)
    responses = []

    def is_loaded():
        responses.append(nodes[other_than(first)].call(committed(group), 8).groups[0])
        return responses[-1].error_code == 0

    wait_until(is_loaded, "the coordinator has removed the offsets")
    assert [each.topics for each in responses] == [[]] * len(responses)


@pytest.mark.slow
def test_a_long_log_is_loaded_completely_in_slices(tmp_path, topic):
    """Requests during loading get COORDINATOR_LOAD_IN_PROGRESS; afterwards all offsets are present."""
    config = {**CONFIG, "offsets.topic.num.partitions": "1"}
    count = 6_000
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, topic)
        for number in range(count):
            connection.post(commit(f"g{number}", -1, "", topic, number), 8)
            if number % 100 == 99:
                for _ in range(100):
                    connection.read_frame()
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        seen = set()
        while True:
            response = connection.call(committed(f"g{count - 1}"), 8).groups[0]
            seen.add(response.error_code)
            if not response.error_code:
                break
        assert seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE}
        assert response.topics[0].partitions[0].committed_offset == count - 1
        assert len(connection.call(ListGroupsRequest(), 2).groups) == count
