"""Bounded memory with many, idle, slow and invalid clients."""

from __future__ import annotations

import resource
import struct
import threading
from contextlib import ExitStack

import pytest
from attacks.hostile_frames import fuzz, memory_mb
from support.examples import scaled
from support.partition_logs import batch
from support.raw_broker import (
    RawConnection,
    create_topic,
    fetch,
    fetch_request,
    fetched_values,
    metadata,
    produce,
    unexpected_errors,
)
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.frames import decode_response, encode_request
from spark_groupsource.wire.messages import (
    CreateTopicsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
)

CONFIG = {"offsets.topic.num.partitions": "2", "connections.max.idle.ms": "600000"}


@pytest.fixture
def broker():
    with EmbeddedBroker(config=CONFIG) as running:
        with RawConnection(running.bootstrap_servers) as connection:
            assert create_topic(connection, "t").error_code == 0
            assert produce(connection, "t", batch(b"before")).base_offset == 0
        yield running


def is_served(broker: EmbeddedBroker) -> bool:
    with RawConnection(broker.bootstrap_servers) as connection:
        return fetched_values(fetch(connection, "t", 0))[0] == b"before"


def connections(broker: EmbeddedBroker) -> int:
    return broker.call(lambda _: broker.connection_count)


def test_random_invalid_bytes():
    fuzz(examples=scaled(150), chosen_seed=4)


def test_a_thousand_idle_connections(broker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows fewer than 4096 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    threads, before_mb = threading.active_count(), memory_mb()
    with ExitStack() as held:
        for number in range(1000):
            connection = held.enter_context(RawConnection(broker.bootstrap_servers))
            if number % 3:
                connection.send(struct.pack(">i", 90_000_000)[: number % 5])  # half-open: a piece of a length
        wait_until(lambda: connections(broker) == 1000, "all are connected")
        assert is_served(broker)
        assert threading.active_count() <= threads  # those of earlier tests may end
        assert memory_mb() - before_mb < 100
    wait_until(lambda: connections(broker) == 0, "all are closed")


def test_slow_senders_use_memory_for_received_bytes_only(broker):
    before_mb = memory_mb()
    with ExitStack() as held:
        slow = [held.enter_context(RawConnection(broker.bootstrap_servers)) for _ in range(100)]
        request = bytes(encode_request(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9, 1, "slow"))
        for at in range(len(request)):
            for connection in slow:
                connection.send(request[at : at + 1])
            if at % 10 == 0:
                assert is_served(broker)
        for connection in slow:
            assert connection.read_frame()
        for connection in slow:  # and now each claims 100 MB, and sends little of it
            connection.send(struct.pack(">i", 100_000_000) + bytes(1000))
        assert is_served(broker)
    assert memory_mb() - before_mb < 100


def test_clients_that_never_read_use_bounded_memory(broker):
    """Responses wait in the client sockets; the broker buffers a bounded part of each."""
    with RawConnection(broker.bootstrap_servers) as connection:
        for _ in range(10):
            assert produce(connection, "t", batch(b"x" * 100_000)).error_code == 0
    before_mb = memory_mb()
    with ExitStack() as held:
        greedy = [held.enter_context(RawConnection(broker.bootstrap_servers)) for _ in range(20)]
        for connection in greedy:
            for _ in range(20):  # 400 MB of responses in all
                connection.post(fetch_request("t", 0), 11)
        assert is_served(broker)
        unsent = broker.call(lambda _: broker.unsent_bytes)
        assert unsent <= 20 * 3_000_000
        assert memory_mb() - before_mb < 200
    wait_until(lambda: connections(broker) == 0, "all are closed")


ARRAYS = {
    "metadata of 2 billion topics": (3, 1, struct.pack(">i", 2**31 - 1)),
    "metadata of -2 topics": (3, 1, struct.pack(">i", -2)),
    "a compact array of 2**32 - 2 topics": (3, 9, b"\xff\xff\xff\xff\x0f"),
    "a group id of -5 bytes": (12, 0, struct.pack(">h", -5)),
    "a group id of 32767 bytes that are not there": (12, 0, struct.pack(">h", 32767)),
    "a varint that does not end": (3, 9, b"\xff" * 12),
    "a batch of -1 bytes": (0, 3, struct.pack(">hhiihih", -1, -1, 1000, 1, 1, 1, 0) + struct.pack(">ii", 0, -7)),
    "a tag of 2 GB": (3, 9, b"\x01\x00\x00\x00\x01\x00\xff\xff\xff\xff\x07"),
}


@pytest.mark.parametrize("key, version, body", ARRAYS.values(), ids=ARRAYS.keys())
def test_wrong_lengths_in_a_request_are_rejected(broker, key, version, body):
    before_mb = memory_mb()
    header = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if version >= 9 else b"")
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send(struct.pack(">i", len(header) + len(body)) + header + body)
        assert connection.is_closed_by_peer()
    assert memory_mb() - before_mb < 50
    assert is_served(broker)
    assert not unexpected_errors(broker.reports)
    with RawConnection(broker.bootstrap_servers) as connection:
        assert metadata(connection, "t").topics[0].error_code == 0


def test_a_defect_in_a_handler_closes_one_connection_and_is_reported(broker):
    def fail(*_):
        raise RuntimeError("a defect")

    with RawConnection(broker.bootstrap_servers) as connection, RawConnection(broker.bootstrap_servers) as other:
        handle = broker.call(lambda b: b.fetch_manager.fetch)
        broker.call(lambda b: setattr(b.fetch_manager, "fetch", fail))
        connection.post(fetch_request("t", 0), 11)
        assert connection.is_closed_by_peer()
        assert metadata(other, "t").topics[0].error_code == 0
        broker.call(lambda b: setattr(b.fetch_manager, "fetch", handle))
    assert is_served(broker)
    (line,) = unexpected_errors(broker.reports)
    assert line.startswith("[client=127.0.0.1] Closing the connection") and "RuntimeError: a defect" in line


def test_an_illegal_state_of_a_group_is_an_error_response(broker):
    def join(connection, member_id="", instance=None):
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id=member_id,
            group_instance_id=instance, protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        return connection.call(request, 5)

    with RawConnection(broker.bootstrap_servers) as connection:
        pending = join(connection).member_id
        assert join(connection, pending, "instance").error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert metadata(connection, "t").topics[0].error_code == 0
    (line,) = unexpected_errors(broker.reports)
    assert line.startswith("[partition=__consumer_offsets-") and "RuntimeError: Pending member id" in line


def test_a_defect_in_a_timer_is_reported_and_other_timers_run(broker):
    def fail():
        raise RuntimeError("a defect")

    ran = threading.Event()

    def start(running):
        now_ms = running.clock.now_ms()
        running.timers.timer(fail).set(now_ms)
        running.timers.timer(ran.set).set(now_ms)

    broker.call(start)
    assert ran.wait(20)
    (line,) = unexpected_errors(broker.reports)
    assert line.startswith("[broker]") and "RuntimeError: a defect" in line


# --- strings longer than a string of the protocol can be ---


def join_request(group_id="g", instance_id=None):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[protocol],
    )


def listed_groups(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        return [group.group_id for group in connection.call(ListGroupsRequest(), 4).groups]


LONG = "g" * 40_000
LONG_STRINGS = {
    "JoinGroup, group id": (join_request(LONG), 9),
    "JoinGroup, instance id": (join_request(instance_id=LONG), 9),
    "OffsetCommit, group id": (OffsetCommitRequest(group_id=LONG, topics=[]), 8),
    "DescribeGroups, group id": (DescribeGroupsRequest(groups=["g", LONG]), 5),
    "Metadata, topic": (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=LONG)]), 9),
}


@pytest.mark.parametrize("request_, version", LONG_STRINGS.values(), ids=LONG_STRINGS.keys())
def test_a_string_of_40000_bytes_closes_the_connection_and_changes_nothing(cluster, request_, version):
    with RawConnection(cluster.bootstrap_servers) as connection:
        before = listed_groups(cluster)
        connection.post(request_, version)
        assert connection.is_closed_by_peer()
    assert listed_groups(cluster) == before


TOO_LONG = {
    "client id, v2": (2, "c" * 32_767, None),
    "client id, v9": (9, "c" * 32_767, None),
    "instance id, v9": (9, "c", "i" * 32_767),
}


@pytest.mark.parametrize("version, client_id, instance_id", TOO_LONG.values(), ids=TOO_LONG.keys())
def test_a_join_whose_member_id_would_be_too_long_is_rejected(broker, version, client_id, instance_id):
    request = join_request(instance_id=instance_id)
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send(encode_request(request, version, 1, client_id))
        joined = decode_response(connection.read_frame(), request, version, 1)
        assert joined.error_code == ErrorCode.INVALID_REQUEST
    assert listed_groups(broker) == []
    assert not unexpected_errors(broker.reports)


def test_the_longest_names_fit_into_every_response(broker):
    """Names of 32,767 bytes in requests whose error messages repeat them."""
    longest = "n" * 32_767
    with RawConnection(broker.bootstrap_servers) as connection:
        for version in (3, 7):
            topic = CreateTopicsRequest.CreatableTopic(
                name=longest, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            created = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=1), version)
            assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            setting = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=longest, value=longest)
            topic.name, topic.configs = "other", [setting]
            created = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=1), version)
            assert created.topics[0].error_code == ErrorCode.INVALID_CONFIG
        assert connection.call(join_request(longest), 5).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert listed_groups(broker) == [longest]
    assert all(len(line) < 3_000 for line in broker.reports)
    assert not unexpected_errors(broker.reports)


def test_names_with_line_breaks_forge_no_log_line(broker):
    name = "g\n[broker] Unexpected error \x1b[31m"
    with RawConnection(broker.bootstrap_servers) as connection:
        assert connection.call(join_request(name), 5).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert any("g\\n[broker] Unexpected error \\x1b[31m" in line for line in broker.reports)
    assert all(line.isprintable() for line in broker.reports)
