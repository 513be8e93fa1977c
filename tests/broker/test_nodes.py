"""Three nodes in one broker: metadata, partition leaders, stopped nodes."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import ExitStack

import pytest
from support.partition_logs import batch
from support.raw_broker import (
    RawConnection,
    create_topic,
    fetch,
    fetch_request,
    fetched_values,
    metadata,
    produce,
    produce_request,
)
from support.three_nodes import (
    CONFIG,
    NODES,
    commit,
    connected,
    heartbeat,
    member_of,
    other_than,
)
from support.waiting import wait_until

from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.leaders import Leader, Leaders
from spark_groupsource.broker.server import BrokerServer
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError, ErrorCode, NetworkError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.frames import decode_response
from spark_groupsource.wire.messages import (
    DeleteRecordsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

# --- metadata ---


def test_all_nodes_return_the_same_metadata(broker, nodes, topic, group):
    create_topic(nodes[2], topic, 6)
    returned = []
    for connection in nodes.values():
        response = metadata(connection, topic)
        partitions = [(p.leader_id, p.leader_epoch, tuple(p.replica_nodes)) for p in response.topics[0].partitions]
        addresses = [(node.node_id, f"{node.host}:{node.port}") for node in response.brokers]
        coordinator = connection.call(FindCoordinatorRequest(key=group, key_type=0), 3)
        cluster = connection.call(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
        described = [(node.broker_id, f"{node.host}:{node.port}") for node in cluster.brokers]
        coordinator_address = coordinator.node_id, coordinator.port
        returned.append((partitions, addresses, response.controller_id, *coordinator_address, described))
    assert returned[0] == returned[1] == returned[2]
    partitions, addresses, controller, coordinator, port, described = returned[0]
    assert addresses == described == list(zip(NODES, broker.bootstrap_servers.split(",")))
    assert sorted(leader for leader, _, _ in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(epoch == 0 and replicas[0] == leader for leader, epoch, replicas in partitions)
    assert controller == 1 and f":{port}" in dict(addresses)[coordinator]
    assert broker.coordinator(group) == coordinator


def test_coordinators_are_distributed_over_the_nodes():
    leaders = Leaders(NODES, pytest.fail)
    led = [leaders.leader(TopicPartition("__consumer_offsets", number)) for number in range(50)]
    assert Counter(led) == {Leader(1, 0): 16, Leader(2, 0): 17, Leader(3, 0): 17}


def test_a_node_describes_only_its_own_settings(nodes):
    def code(requested: int, named: str) -> int:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name=named, configuration_keys=["node.id"]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        return nodes[requested].call(request, 4).results[0].error_code

    assert (code(2, "2"), code(2, "1")) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)


def test_the_replication_factor_is_at_most_the_number_of_nodes(nodes, topic):
    assert create_topic(nodes[1], topic).replication_factor == 3


# --- partitions ---


def list_offset(connection, topic, epoch=-1):
    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=epoch, timestamp=-1
    )
    wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted])
    return connection.call(request, 6).topics[0].partitions[0]


def delete_records(connection, topic, offset):
    part = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(partition_index=0, offset=offset)
    wanted = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[part])
    return connection.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), 2).topics[0].partitions[0]


def test_only_the_leader_accepts_and_returns_records(broker, nodes, topic):
    create_topic(nodes[1], topic)
    leader = broker.leader(topic, 0).node_id
    for node, connection in nodes.items():
        expected = ErrorCode.NONE if node == leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert produce(connection, topic, batch(b"x")).error_code == expected
        assert fetch(connection, topic, 0).error_code == expected
        assert list_offset(connection, topic).error_code == expected
        assert delete_records(connection, topic, 0).error_code == expected


def test_a_moved_partition_keeps_its_records_and_gets_a_higher_leader_epoch(broker, nodes, topic):
    create_topic(nodes[1], topic)
    first = broker.leader(topic, 0)
    assert produce(nodes[first.node_id], topic, batch(b"a")).base_offset == 0
    second = other_than(first.node_id)
    broker.move_leader(topic, 0, second)
    assert broker.leader(topic, 0) == Leader(second, first.epoch + 1)
    assert metadata(nodes[1], topic).topics[0].partitions[0].leader_epoch == first.epoch + 1
    assert produce(nodes[first.node_id], topic, batch(b"b")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produce(nodes[second], topic, batch(b"b")).base_offset == 1
    assert fetched_values(fetch(nodes[second], topic, 0)) == [b"a", b"b"]
    # a client with the previous leader epoch, and one with a future epoch
    returned = [list_offset(nodes[second], topic, epoch=epoch) for epoch in (0, 1, 2)]
    expected = [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]
    assert [each.error_code for each in returned] == expected
    assert (returned[1].offset, returned[1].leader_epoch) == (2, 1)


@pytest.mark.parametrize(
    ("api", "version", "has_current_leader"),
    [("produce", 9, 0), ("produce", 10, 1), ("fetch", 15, 0), ("fetch", 16, 1)],
)
def test_not_leader_errors_contain_the_leader_and_its_endpoint(broker, nodes, topic, api, version, has_current_leader):
    create_topic(nodes[1], topic)
    refusing = broker.leader(topic, 0).node_id
    broker.move_leader(topic, 0, other_than(refusing))
    leader = broker.leader(topic, 0)
    if api == "produce":
        response = nodes[refusing].call(produce_request(topic, batch(b"x")), version)
        entry = response.responses[0].partition_responses[0]
    else:
        request = fetch_request(topic, 0)
        request.topics[0].topic_id = broker.call(lambda b: b.partitions.topic(topic).topic_id)
        response = nodes[refusing].call(request, version)
        entry = response.responses[0].partitions[0]
    assert entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    hint = entry.current_leader
    assert (hint and (hint.leader_id, hint.leader_epoch)) == (leader if has_current_leader else None)
    address = broker.bootstrap_servers.split(",")[leader.node_id - 1]
    returned = [(node.node_id, f"{node.host}:{node.port}", node.rack) for node in response.node_endpoints or []]
    assert returned == [(leader.node_id, address, None)] * has_current_leader


def epoch_end(connection, topic, epoch):
    """(code, epoch, end offset)"""
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = wanted.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[wanted(topic=topic, partitions=[part])])
    response = connection.call(request, 4).topics[0].partitions[0]
    return response.error_code, response.leader_epoch, response.end_offset


def test_records_carry_the_leader_epoch_and_epoch_ends_are_known(tmp_path, topic):
    def check(broker):
        leader = broker.leader(topic, 0).node_id
        with connected(broker) as nodes:
            returned = [epoch_end(nodes[leader], topic, epoch) for epoch in range(6)]
            # epoch 2 has no records, 4 is current, 5 is unknown
            assert returned == [(0, 0, 1), (0, 1, 3), (0, 1, 3), (0, 3, 4), (0, 4, 4), (0, -1, -1)]
            batches = bytes(fetch(nodes[leader], topic, 0).records)
            assert [header.partition_leader_epoch for header in iter_batches(batches)] == [0, 1, 3]
            refused = epoch_end(nodes[other_than(leader)], topic, 0)
            assert refused == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)

    with EmbeddedBroker(tmp_path, config=CONFIG, brokers=3) as broker:
        with connected(broker) as nodes:
            create_topic(nodes[1], topic)
            for values in ([b"a"], [b"b", b"c"], [], [b"d"], []):
                leader = broker.leader(topic, 0).node_id
                if values:
                    assert produce(nodes[leader], topic, batch(*values)).error_code == 0
                if broker.leader(topic, 0).epoch < 4:
                    broker.move_leader(topic, 0, other_than(leader))
        check(broker)
    assert (tmp_path / f"{topic}-0" / "leader-epoch-checkpoint").read_text() == "0\n4\n0 0\n1 1\n3 3\n4 4\n"
    with EmbeddedBroker(tmp_path, config=CONFIG, brokers=3) as broker:
        check(broker)


@pytest.mark.conformance("UL-068")
def test_list_offsets_returns_the_epoch_of_the_record_found(broker, nodes, topic):
    create_topic(nodes[1], topic, retention_ms="-1")
    for timestamp_ms in (1_000, 3_000, 2_000):
        leader = broker.leader(topic, 0).node_id
        assert produce(nodes[leader], topic, batch(b"x", timestamp_ms=timestamp_ms)).error_code == 0
        broker.move_leader(topic, 0, other_than(leader))

    def found(timestamp):
        row = ListOffsetsRequest.ListOffsetsTopic
        wanted = row.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[row(name=topic, partitions=[wanted])])
        entry = nodes[broker.leader(topic, 0).node_id].call(request, 7).topics[0].partitions[0]
        return entry.offset, entry.leader_epoch

    earliest, latest, max_timestamp = -2, -1, -3
    returned = [found(timestamp) for timestamp in (earliest, latest, max_timestamp, 0, 1_500, 5_000)]
    assert returned == [(0, 0), (3, 3), (1, 1), (0, 0), (1, 1), (-1, -1)]
    delete_records(nodes[broker.leader(topic, 0).node_id], topic, 2)
    assert found(earliest) == (2, 2)


def test_moving_a_partition_to_its_leader_changes_nothing(broker, nodes, topic):
    create_topic(nodes[1], topic)
    leader = broker.leader(topic, 0)
    broker.move_leader(topic, 0, leader.node_id)
    assert broker.leader(topic, 0) == leader
    with pytest.raises(ValueError, match="Node 9 cannot lead"):
        broker.move_leader(topic, 0, 9)


def test_a_delayed_fetch_completes_when_its_partition_moves(broker, nodes, topic):
    create_topic(nodes[1], topic)
    leader = broker.leader(topic, 0).node_id
    request = fetch_request(topic, 0, max_wait_ms=600_000)
    posted = nodes[leader].post(request, 11)
    wait_until(lambda: broker.call(lambda b: len(b.fetch_manager)) == 1, "the fetch is delayed")
    broker.move_leader(topic, 0, other_than(leader))
    response = decode_response(nodes[leader].read_frame(), request, 11, posted)
    assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- stopping and starting nodes ---


def test_a_stopped_node_is_replaced_and_can_be_started_again(tmp_path, topic, group):
    with EmbeddedBroker(tmp_path, config=CONFIG, brokers=3) as broker:
        with connected(broker) as nodes:
            create_topic(nodes[1], topic, 3)
            first = broker.coordinator(group)
            member_id, generation = member_of(nodes[first], group)
            before = [broker.leader(topic, number) for number in range(3)]
            broker.stop_node(first)
            with pytest.raises(NetworkError):
                metadata(nodes[first], topic)
            alive = nodes[other_than(first)]
            returned = metadata(alive, topic)
            assert [node.node_id for node in returned.brokers] == [node for node in NODES if node != first]
            for number, was in enumerate(before):
                partition = returned.topics[0].partitions[number]
                assert sorted([*partition.isr_nodes, *partition.offline_replicas]) == list(NODES)
                assert partition.offline_replicas == [first]
                expected = was.epoch + 1 if was.node_id == first else was.epoch
                assert (partition.leader_epoch, partition.leader_id == first) == (expected, False)
            second = broker.coordinator(group)
            assert second != first
            assert nodes[second].call(heartbeat(group, generation, member_id), 4).error_code == 0
            # a new topic gets running leaders
            create_topic(alive, f"{topic}-2", 6)
            leaders = [p.leader_id for p in metadata(alive, f"{topic}-2").topics[0].partitions]
            assert first not in leaders
            broker.start_node(first)
        with connected(broker) as nodes:
            assert [node.node_id for node in metadata(nodes[first], topic).brokers] == list(NODES)
            assert broker.coordinator(group) == second, "the started node can become leader again"
            broker.move_coordinator(group, first)
            assert nodes[first].call(heartbeat(group, generation, member_id), 4).error_code == 0


@pytest.mark.parametrize("iterations", range(4))
def test_connections_accepted_while_a_node_stops_are_closed(tmp_path, iterations):
    """The event loop accepts a connection, makes its transport and notifies the listener in three iterations."""

    async def connections_after_stop() -> int:
        server = BrokerServer(
            tmp_path, Address("127.0.0.1", 0), broker_config(CONFIG), SystemClock(), lambda line, level: None, 2
        )
        addresses = await server.start()
        with ExitStack() as clients:
            for _ in range(20):
                clients.enter_context(RawConnection(str(addresses["PLAINTEXT"][1])))
            for _ in range(iterations):
                await asyncio.sleep(0)
            await server.stop_node(2)
            found = server.connection_count
            await server.stop()
        return found

    # a socket that asyncio left open would warn
    assert asyncio.run(connections_after_stop()) == 0
    gc.collect()


def test_a_write_with_acks_all_requires_min_insync_replicas_running_nodes(topic, group):
    config = {**CONFIG, "min.insync.replicas": "2"}
    with EmbeddedBroker(config=config, brokers=3) as broker:
        with connected(broker) as nodes:
            create_topic(nodes[1], topic)
            create_topic(nodes[1], f"{topic}-all", min_insync_replicas="9")
        for stopped in (2, 3):
            broker.stop_node(stopped)
        with RawConnection(broker.bootstrap_servers.split(",")[0]) as connection:

            def produced(name, acks):
                response = connection.call(produce_request(name, batch(b"x"), acks=acks), 9)
                return response.responses[0].partition_responses[0].error_code

            rejected = ErrorCode.NOT_ENOUGH_REPLICAS
            assert [produced(topic, acks) for acks in (-1, 1, -1)] == [rejected, 0, rejected]
            committed_at = commit(group, -1, "", topic, 1)
            (entry,) = connection.call(committed_at, 8).topics[0].partitions
            assert entry.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            broker.start_node(2)
            assert (produced(topic, -1), produced(f"{topic}-all", -1)) == (0, rejected)
            broker.start_node(3)
            assert produced(f"{topic}-all", -1) == 0, "never more than the replicas"


def test_partitions_are_available_after_all_nodes_were_stopped(tmp_path, topic):
    with EmbeddedBroker(tmp_path, config=CONFIG, brokers=3) as broker:
        with connected(broker) as nodes:
            create_topic(nodes[1], topic)
            leader = broker.leader(topic, 0).node_id
            assert produce(nodes[leader], topic, batch(b"kept")).error_code == 0
        for node in NODES:
            broker.stop_node(node)
        broker.start_node(2)
        assert broker.leader(topic, 0).node_id == 2
        with RawConnection(broker.bootstrap_servers.split(",")[1]) as connection:
            assert fetched_values(fetch(connection, topic, 0)) == [b"kept"]
        with pytest.raises(ValueError, match="Unknown node 7"):
            broker.stop_node(7)


def test_leader_epochs_do_not_decrease_after_a_restart(tmp_path, topic):
    with EmbeddedBroker(tmp_path, config=CONFIG, brokers=3) as broker:
        with connected(broker) as nodes:
            create_topic(nodes[1], topic)
        broker.move_leader(topic, 0, other_than(broker.leader(topic, 0).node_id))
        moved = broker.leader(topic, 0)
    with EmbeddedBroker(tmp_path, config=CONFIG, brokers=3) as broker:
        assert broker.leader(topic, 0) == moved == Leader(moved.node_id, 1)
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker:
        assert broker.leader(topic, 0) == Leader(1, 2), "with other node ids"
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker:
        assert broker.leader(topic, 0) == Leader(1, 2), "with the same node id"


@pytest.mark.parametrize("listeners", ["localhost:0", "PLAINTEXT://a:1,PLAINTEXT://b:2"])
def test_advertised_listeners_must_have_one_address_per_node(tmp_path, listeners):
    broker = EmbeddedBroker(tmp_path, config={"advertised.listeners": listeners}, brokers=3)
    with pytest.raises(ConfigurationError, match="must have 3 addresses"):
        broker.start()


def test_metadata_contains_advertised_addresses(tmp_path):
    names = "PLAINTEXT://localhost:0,localhost:0"
    with EmbeddedBroker(tmp_path, config={"advertised.listeners": names}, brokers=2) as broker:
        with RawConnection(broker.bootstrap_servers.split(",")[1].replace("localhost", "127.0.0.1")) as connection:
            returned = metadata(connection).brokers
        assert [f"{node.host}:{node.port}" for node in returned] == broker.bootstrap_servers.split(",")
        assert {node.host for node in returned} == {"localhost"}


def test_a_broker_without_nodes_is_rejected():
    with pytest.raises(ConfigurationError, match="Argument brokers must be an integer of at least 1"):
        EmbeddedBroker(brokers=0)
