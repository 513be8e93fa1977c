"""Bounds on connections, requests and responses."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time
from contextlib import ExitStack, suppress

import pytest
from support import attack_frames, attacks
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetch, metadata, produce
from support.waiting import wait_until

from spark_groupsource.broker.api import topics, users
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.fetch import delayed_fetch
from spark_groupsource.broker.network.limits import ConnectionCounts, RequestMemory, ResponseMemory
from spark_groupsource.broker.network.listener import ResponseRouter
from spark_groupsource.broker.network.scheduler import Scheduler
from spark_groupsource.errors import ErrorCode, RemoteProtocolError
from spark_groupsource.storage import log_manager
from spark_groupsource.wire.decoder import TooManyElementsError
from spark_groupsource.wire.element_count import has_more_elements
from spark_groupsource.wire.frames import decode_request, encode_request, read_request_header
from spark_groupsource.wire.messages import (
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatResponse,
    MetadataRequest,
    SaslHandshakeRequest,
)

KB = 1024


# --- pure bounds ---


class Peer:
    """A connection as the bounds see it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_activity_ms = 0
        self.waits_for_client = True
        self.unsent_bytes = 0
        self.resumed = 0
        self.refused = ""

    def resume(self) -> None:
        self.resumed += 1

    def reject(self, reason: str) -> None:
        self.refused = reason

    def __repr__(self) -> str:
        return self.name


def test_connections_are_counted_in_total_and_by_address():
    counts = ConnectionCounts()
    assert [counts.add("a", 3, 2), counts.add("a", 3, 2), counts.add("a", 3, 2)] == ["", "", "max.connections.per.ip"]
    assert counts.add("b", 3, 2) == "max.connections"
    counts.remove("a")
    counts.remove("b")
    assert counts.add("b", 3, 2) == ""


def test_above_the_limit_one_large_request_is_read_at_a_time():
    memory, (first, second, small) = RequestMemory(100 * KB), map(Peer, ("first", "second", "small"))
    assert memory.set_size(first, 90 * KB)
    assert memory.set_size(second, 90 * KB)  # exceeds the limit and is the one that is read
    assert not memory.set_size(first, 91 * KB)
    assert memory.set_size(small, 10 * KB)
    assert memory.set_size(second, 120 * KB)
    assert memory.set_size(second, 0)  # handled: below the limit again
    assert first.resumed == 1
    assert memory.total == 101 * KB


def test_the_next_large_request_is_read_after_the_first():
    memory, peers = RequestMemory(100 * KB), [Peer(str(number)) for number in range(3)]
    assert [memory.set_size(peer, 90 * KB) for peer in peers] == [True, True, False]
    memory.set_size(peers[1], 0)
    assert [peer.resumed for peer in peers] == [0, 0, 1]


def test_above_twice_the_limit_only_tiny_requests_are_read():
    memory, (large, *small) = RequestMemory(100 * KB), [Peer(str(number)) for number in range(12)]
    assert memory.set_size(large, 90 * KB) and memory.read_bytes == 256 * KB
    assert all(memory.set_size(peer, 10 * KB) for peer in small) and memory.read_bytes == 16 * KB
    tiny = Peer("tiny")
    assert memory.set_size(Peer("admitted"), 1 * KB) and memory.set_size(tiny, 1 * KB) and memory.read_bytes == 1 * KB
    assert memory.set_size(Peer("next"), 2 * KB)  # admitted
    assert not memory.set_size(Peer("other"), 2 * KB)
    memory.set_size(large, 0)
    assert memory.read_bytes == 16 * KB


@pytest.mark.parametrize("other_kb", [8_000, 0], ids=["above the limit", "below the limit"])
def test_thousands_of_waiting_connections_are_resumed_in_turns(other_kb):
    class Reader(Peer):
        def resume(self) -> None:
            super().resume()
            memory.set_size(self, 2 * KB)

    memory, other, large = RequestMemory(10_000 * KB), Peer("other"), Peer("large")
    other.waits_for_client = False
    assert memory.set_size(other, other_kb * KB) and memory.set_size(large, 30_000 * KB)
    readers = [Reader(str(number)) for number in range(3_000)]
    assert not any(memory.set_size(reader, 2 * KB) for reader in readers)
    memory.set_size(large, 0)
    assert sum(reader.resumed for reader in readers) == 100
    for second in range(29):
        memory.close_stalled(1_000 * second)
    assert {reader.resumed for reader in readers} == {1}


def test_a_connection_that_holds_memory_and_sends_nothing_is_closed():
    memory, (silent, waiting, busy) = RequestMemory(100 * KB), map(Peer, ("silent", "waiting", "busy"))
    assert [memory.set_size(silent, 90 * KB), memory.set_size(waiting, 90 * KB)] == [True, True]
    busy.waits_for_client = False  # its request is in progress
    memory.set_size(busy, 50 * KB)
    memory.close_stalled(4_000)
    assert not silent.refused
    waiting.last_activity_ms = 4_000
    memory.close_stalled(6_000)
    assert "92,160 bytes" in silent.refused and not waiting.refused and not busy.refused


def test_a_large_request_that_arrives_slowly_is_closed_only_when_others_wait():
    memory, (slow, other) = RequestMemory(100 * KB), map(Peer, ("slow", "other"))
    memory.set_size(slow, 80 * KB)
    slow.last_activity_ms = 100_000
    memory.close_stalled(100_000)
    assert not slow.refused
    memory.set_size(other, 10 * KB)
    memory.set_size(slow, 120 * KB)
    for now_ms in (100_000, 103_000, 106_000):
        slow.last_activity_ms = now_ms
        memory.close_stalled(now_ms)
    assert slow.refused


def test_fetch_responses_shrink_with_the_unread_bytes_of_all_clients():
    memory, peers = ResponseMemory(), [Peer(str(number)) for number in range(100)]
    for peer in peers:
        size = memory.largest_bytes
        assert size <= 4 << 20
        memory.set_size(peer, size)
    assert memory.total <= 64 << 20
    memory.set_size(Peer("large"), 64 << 20)
    assert memory.is_full and memory.largest_bytes == 0


def test_clients_that_do_not_read_are_closed_while_others_wait():
    memory, (silent, waiting) = ResponseMemory(), map(Peer, ("silent", "waiting"))
    silent.unsent_bytes = 70 << 20
    memory.set_size(silent, silent.unsent_bytes)
    memory.wait(waiting)
    memory.close_stalled(1_000)
    assert not silent.refused
    memory.close_stalled(2_000)
    assert "73,400,320 bytes" in silent.refused
    memory.remove(silent)
    assert waiting.resumed == 1 and memory.total == 0


@pytest.mark.parametrize(
    "frame",
    [
        attack_frames.metadata_of(["t"] * 300),
        attack_frames.unknown_tags(600),
        attack_frames.fetch_many(300),
        attack_frames.produce_to_many(300),
    ],
)
def test_elements_are_counted_before_they_are_decoded(frame):
    body = memoryview(frame)[4:]
    header, position = read_request_header(body)
    assert decode_request(body, header, position, 400)
    with pytest.raises(TooManyElementsError, match="more than 200 elements"):
        decode_request(body, header, position, 200)


def test_a_header_has_a_bounded_number_of_tags():
    with pytest.raises(RemoteProtocolError, match="1000 tagged fields"):
        read_request_header(memoryview(attack_frames.header_tags(2_000))[4:])


def test_the_elements_of_a_message_are_counted_up_to_a_limit():
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=[topic(name="t")] * 50, allow_auto_topic_creation=False)
    assert has_more_elements(request, 49) and not has_more_elements(request, 50)
    assert not has_more_elements(HeartbeatResponse(throttle_time_ms=0, error_code=0), 0)
    member = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(member_metadata=bytes(50_000))
    group = DescribeGroupsResponse.DescribedGroup(members=[member])
    response = DescribeGroupsResponse(groups=[group])
    assert has_more_elements(response, 51) and not has_more_elements(response, 52)  # group, member, 50 kB


# --- through a broker ---


SETTINGS = {
    "max.connections.per.ip": "20",
    "queued.max.request.bytes": "2000000",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def limits_of(broker):
    """The memory that connections hold; private, because no response shows it."""
    return broker._server._limits


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(config=SETTINGS) as running:
        with RawConnection(running.bootstrap_servers) as connection:
            assert create_topic(connection, "t").error_code == 0
        yield running


def test_connections_of_one_address_are_limited(broker):
    wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "those of other tests are closed")
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(RawConnection(broker.bootstrap_servers))
        wait_until(lambda: broker.call(lambda _: broker.connection_count) == 20, "all are connected")
        for _ in range(3):
            with RawConnection(broker.bootstrap_servers) as refused:
                assert refused.is_closed_by_peer()
    lines = [line for line in broker.reports if "max.connections.per.ip is reached" in line]
    assert len(lines) == 1
    wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "all are closed")
    with RawConnection(broker.bootstrap_servers) as connection:
        assert metadata(connection, "t").topics[0].error_code == 0


def test_half_sent_requests_hold_a_bounded_number_of_bytes(broker):
    target = attacks.Target(broker.bootstrap_servers, None)
    with ExitStack() as held:
        clients = [held.enter_context(target.connect()) for _ in range(10)]
        for client in clients:
            client.socket.settimeout(0.2)
            try:
                client.socket.sendall(attack_frames.half_sent(100_000_000, 1_000_000))
            except TimeoutError:
                pass  # the broker does not read on
        assert broker.call(lambda _: limits_of(broker).requests.total) < 5_000_000
        with RawConnection(broker.bootstrap_servers) as neighbor:
            assert metadata(neighbor, "t").topics[0].error_code == 0


def test_a_large_request_is_accepted_when_memory_is_free(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        assert produce(connection, "t", batch(bytes(900_000))).error_code == 0
        names = [f"unknown-{number}" for number in range(3_000)]
        response = metadata(connection, *names)
        assert [topic.name for topic in response.topics] == names
        assert len(fetch(connection, "t", 0).records) > 900_000


def test_the_memory_of_closed_connections_is_free_again(broker):
    target = attacks.Target(broker.bootstrap_servers, None)
    frames = {
        "incomplete": attack_frames.half_sent(3_000_000, 2_000_000),
        "decoded in the worker thread": attack_frames.metadata_of([f"unknown-{number}" for number in range(20_000)]),
        "encoded in the worker thread": attack_frames.metadata_of([f"none-{number}" for number in range(5_000)]) * 20,
        "not read": attack_frames.fetch("large", 50_000_000) * 20,
    }
    with RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "large")
        produce(connection, "large", batch(bytes(900_000)))
    with ExitStack() as held:
        for _ in range(3):
            for frame in frames.values():
                client = held.enter_context(target.connect(receive_bytes=4096))
                client.send_available(frame)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
    server = broker._server
    wait_until(lambda: broker.call(lambda _: server.connection_count) == 0, "the connections are closed")
    wait_until(lambda: broker.call(lambda _: limits_of(broker).requests.total) == 0, "no request is kept")
    wait_until(lambda: broker.call(lambda _: limits_of(broker).responses.total) == 0, "no response is kept")


def test_closed_connections_leave_no_cycles(broker):
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            with RawConnection(broker.bootstrap_servers) as connection:
                metadata(connection)
        wait_until(lambda: broker.call(lambda _: broker._server.connection_count) == 0, "the connections are closed")
        # a cycle of asyncio's transport has seven objects
        assert gc.collect() < 50
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "frame, reason",
    [
        (attack_frames.metadata_of_empty_names(4_000_000), "more than 40,000 elements"),
        (attack_frames.metadata_of_empty_names(9_000_000), "the limit is 8,388,608"),
        (attack_frames.frame(12, 3, bytes(300_000)), "the limit is 262,144"),
        (attack_frames.header_tags(4_000), "2000 tagged fields"),
    ],
    ids=["elements", "bytes", "heartbeat", "header"],
)
def test_a_request_above_the_limits_of_its_api_closes_the_connection(broker, frame, reason):
    with attacks.Target(broker.bootstrap_servers, None).connect() as client:
        assert client.call(frame) is None
    assert reason in broker.reports[-1]


def test_new_groups_are_rejected_above_the_memory_of_all_groups():
    config = {
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.coordinator.max.state.bytes": "1000000",
    }
    with EmbeddedBroker(config=config) as small:
        target = attacks.Target(small.bootstrap_servers, None)
        with target.connect() as client:
            responses = [client.call(attack_frames.join_group(f"g{number}", bytes(20_000))) for number in range(60)]
        codes = [int.from_bytes(response[8:10], "big") for response in responses]
        first_rejected = codes.index(15)
        assert 10 < first_rejected < 60 and set(codes[:first_rejected]) == {0}
        assert sum("group.coordinator.max.state.bytes=1000000" in line for line in small.reports) == 1


# --- before authentication ---


@pytest.fixture(scope="module")
def protected():
    config = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required user_a=\"secret\";"
        ),
        "authentication.timeout.ms": "300",
        "sasl.server.max.receive.size": "2000",
    }
    with EmbeddedBroker(config=config) as running:
        yield running


@pytest.mark.parametrize(
    "data, reason",
    [
        (struct.pack(">ihh", 1000, 3, 4), "API 3 requested before authentication"),
        (struct.pack(">ihh", 3000, 17, 1), "has 3,000 bytes, the limit is 2,000"),
    ],
    ids=["another API", "too large"],
)
def test_before_authentication_a_request_is_refused_by_its_first_bytes(protected, data, reason):
    with RawConnection(protected.bootstrap_servers) as connection:
        connection.send(data)
        assert connection.is_closed_by_peer()
    assert any(reason in line for line in protected.reports)


def test_a_connection_without_authentication_is_closed(protected):
    with RawConnection(protected.bootstrap_servers) as connection:
        connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert connection.is_closed_by_peer()
    assert "not authenticated within 300 ms (authentication.timeout.ms)" in protected.reports[-1]


def test_the_response_to_a_failed_authentication_is_delayed(protected):
    with RawConnection(protected.bootstrap_servers) as connection:
        frames = [encode_request(SaslHandshakeRequest(mechanism="NONE"), 1, number, "c") for number in range(2)]
        connection.send(b"".join(map(bytes, frames)))
        assert connection.read_frame()
        assert connection.is_closed_by_peer()  # the second request is not handled


def test_partitions_of_all_topics_are_limited():
    with EmbeddedBroker(config={"max.broker.partitions": "5"}) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "first", 4)
            topic = CreateTopicsRequest.CreatableTopic
            wanted = [
                topic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
                for name, count in (("second", 2), ("third", 1))
            ]
            request = CreateTopicsRequest(topics=wanted, timeout_ms=1000, validate_only=False)
            results = {each.name: each for each in connection.call(request, 4).topics}
            assert (results["second"].error_code, results["third"].error_code) == (44, 0)
            assert "max.broker.partitions=5" in results["second"].error_message
            # the topics of the coordinators are always created
            find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            assert connection.call(find, 4).coordinators[0].error_code == 0


@pytest.mark.parametrize("setting", ["max.connections", "max.connections.per.ip"])
def test_connections_above_a_limit_are_closed_and_reported(setting):
    with EmbeddedBroker(config={setting: "2"}) as broker:
        with RawConnection(broker.bootstrap_servers) as one, RawConnection(broker.bootstrap_servers) as two:
            for connection in (one, two):
                metadata(connection)
            with RawConnection(broker.bootstrap_servers) as refused:
                assert refused.is_closed_by_peer()
            one.call(ApiVersionsRequest(), 0)
        reported = [line for line in broker.reports if setting in line]
        assert len(reported) == 1


def test_a_request_creates_a_limited_number_of_partitions_and_topics(monkeypatch):
    monkeypatch.setattr(topics, "_MAX_PARTITIONS_PER_REQUEST", 4)
    monkeypatch.setattr(topics, "_MAX_CREATED_BY_METADATA", 2)
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        topic = CreateTopicsRequest.CreatableTopic
        wanted = [
            topic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for name, count in (("large", 5), ("small", 3), ("other", 2))
        ]
        created = connection.call(CreateTopicsRequest(topics=wanted, timeout_ms=1000, validate_only=False), 4).topics
        assert {each.name: each.error_code for each in created} == {"large": 44, "small": 0, "other": 44}
        names = [MetadataRequest.MetadataRequestTopic(name=f"auto-{number}") for number in range(3)]
        found = connection.call(MetadataRequest(topics=names, allow_auto_topic_creation=True), 4).topics
        assert [each.error_code for each in found] == [0, 0, 3]


def test_a_fetch_beyond_the_partitions_of_delayed_fetches_does_not_wait(broker, monkeypatch):
    with RawConnection(broker.bootstrap_servers) as connection:
        end = fetch(connection, "t", 0).high_watermark
        monkeypatch.setattr(delayed_fetch, "MAX_DELAYED_PARTITIONS", 0)
        began_s = time.monotonic()
        assert fetch(connection, "t", end, max_wait_ms=15_000).error_code == 0
        assert time.monotonic() - began_s < 10


def test_one_large_request_runs_at_a_time():
    running: list[str] = []
    most = 0

    def steps(name: str):
        nonlocal most
        running.append(name)
        most = max(most, sum(each.startswith("large") for each in running))
        yield None
        running.remove(name)
        return None

    async def run() -> None:
        ended: list[object] = []
        router = ResponseRouter(Scheduler(lambda: None))
        for number in range(3):
            router.run_steps(number, steps(f"large {number}"), None, ended.append, True, True)
            router.run_steps(10 + number, steps(f"small {number}"), None, ended.append, True)
        while len(ended) < 6:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 10))
    assert most == 1 and not running


def test_clients_before_login_hold_bounded_memory_and_are_closed():
    config = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256", "authentication.timeout.ms": "1000",
        "queued.max.request.bytes": "1048576",
    }  # fmt: skip
    data = struct.pack(">ihhih", 500_000, 36, 1, 1, -1) + bytes(30_000)
    with EmbeddedBroker(config=config) as broker, ExitStack() as held:
        target = attacks.Target(broker.bootstrap_servers, None)
        clients = [held.enter_context(target.connect()) for _ in range(200)]
        for client in clients:
            client.socket.setblocking(False)
            with suppress(OSError):
                client.socket.send(data)
        wait_until(lambda: broker.call(lambda _: limits_of(broker).requests.total) > 1_048_576, "bytes are held")
        assert broker.call(lambda _: limits_of(broker).requests.total) < 4_000_000
        wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "all are closed")


def test_settings_and_users_are_bounded(broker, monkeypatch):
    monkeypatch.setattr(log_manager, "MAX_SETTINGS_BYTES", 100)
    monkeypatch.setattr(users, "MAX_USERS", 1)
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    with RawConnection(broker.bootstrap_servers) as connection:
        created = [create_topic(connection, f"settings-{number}", retention_ms="1000000") for number in range(10)]
        assert [each.error_code for each in created] == [0] * 5 + [ErrorCode.POLICY_VIOLATION] * 5
        upsertions = [
            upsertion(name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=bytes(32)) for name in "ab"
        ]
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
        codes = [each.error_code for each in connection.call(request, 0).results]
        assert codes == [0, ErrorCode.POLICY_VIOLATION]
