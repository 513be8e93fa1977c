"""Bounds on connections, requests and responses."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time
from collections import deque
from contextlib import ExitStack, suppress
from types import CoroutineType, SimpleNamespace

import pytest
from attacks import attack_frames
from attacks.client_attacks import Target
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetch, fetched_values, metadata, produce
from support.raw_members import committed
from support.waiting import wait_until

from spark_groupsource.broker import server
from spark_groupsource.broker.api import request_limits, users
from spark_groupsource.broker.api import topic_requests as topics
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.fetch import delayed_fetch
from spark_groupsource.broker.network import limits
from spark_groupsource.broker.network.response_router import ResponseRouter
from spark_groupsource.broker.storage import log_manager
from spark_groupsource.common.coroutines import enter_task, next_turn
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import (
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    SaslHandshakeRequest,
)

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
    # another test may have opened its connections faster than its former ones were closed
    broker.reports.clear()
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
    target = Target(broker.bootstrap_servers, None)
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


def test_large_requests_are_served_after_stalled_ones_that_hold_the_memory(broker, monkeypatch):
    monkeypatch.setattr(server, "_CONNECTION_CHECK_MS", 20)
    monkeypatch.setattr(limits, "_STALLED_ADMITTED_MS", 500)
    target = Target(broker.bootstrap_servers, None)
    data = attack_frames.half_sent(1_000_000, 900_000)
    with ExitStack() as held:
        for _ in range(15):
            client = held.enter_context(target.connect())
            client.socket.setblocking(False)
            with suppress(OSError):
                client.socket.send(data)
        requests = limits_of(broker).requests
        wait_until(lambda: broker.call(lambda _: requests.total) > 2_000_000, "the memory is used")
        with RawConnection(broker.bootstrap_servers) as neighbor:
            assert produce(neighbor, "t", batch(bytes(900_000))).error_code == 0
            assert len(metadata(neighbor, *[f"unknown-{number}" for number in range(3_000)]).topics) == 3_000


def test_a_large_request_is_accepted_when_memory_is_free(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        assert produce(connection, "t", batch(bytes(900_000))).error_code == 0
        names = [f"unknown-{number}" for number in range(3_000)]
        response = metadata(connection, *names)
        assert [topic.name for topic in response.topics] == names
        assert len(fetch(connection, "t", 0).records) > 900_000


def test_the_memory_of_closed_connections_is_free_again(broker):
    target = Target(broker.bootstrap_servers, None)
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
        wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "the connections are closed")
        # a cycle of asyncio's transport has seven objects
        assert gc.collect() < 50
    finally:
        gc.enable()


def test_deleted_topics_leave_no_cycles(broker):
    target = Target(broker.bootstrap_servers, None)
    deleted = DeleteTopicsRequest(topic_names=[f"deleted-{number}" for number in range(5)], timeout_ms=1_000)
    with target.connect() as client:
        gc.collect()
        gc.disable()
        try:
            client.call(attack_frames.create_topics(5, 20, "deleted"))
            client.call(attack_frames.produce("deleted-0", batch(b"v")))
            client.call(bytes(encode_request(deleted, 4, 1, None)))
            wait_until(lambda: "deleted-0" not in broker.call(lambda each: set(each.partitions.topics)), "deletion")
            # a partition and its log have more than ten objects
            assert gc.collect() < 100
        finally:
            gc.enable()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(attack_frames.create_topics(200, 11_000, "rejected"), id="topics with too many partitions"),
        pytest.param(attack_frames.create_topics(200, 11_000, "not valid"), id="topics with invalid names"),
        pytest.param(attack_frames.metadata_of(["not valid"] * 200 + ["."] * 200, create=True), id="created"),
        pytest.param(attack_frames.metadata_of([f"unknown-{number}" for number in range(5_000)]), id="unknown topics"),
        pytest.param(attack_frames.describe_group("unknown", 1_000), id="one group many times"),
        pytest.param(attack_frames.produce_to_many(1_000), id="unknown partitions"),
        pytest.param(attack_frames.fetch_many(1_000), id="unknown partitions to fetch"),
    ],
)
def test_rejected_requests_leave_no_cycles(broker, frame):
    target = Target(broker.bootstrap_servers, None)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            with target.connect() as client:
                client.send(frame * 2)
                assert client.read() is not None and client.read() is not None
        wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "the connections are closed")
        gc.collect()
        kept = [each for each in gc.garbage if isinstance(each, (ApiError, CoroutineType, asyncio.Future))]
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert kept == []


def test_clients_that_read_are_served_while_others_do_not(monkeypatch):
    with EmbeddedBroker(config=SETTINGS) as broker, ExitStack() as held:
        target = Target(broker.bootstrap_servers, None)
        neighbor = held.enter_context(RawConnection(broker.bootstrap_servers))
        for name in ("unread", "small"):
            create_topic(neighbor, name)
        produce(neighbor, "small", batch(b"value"))
        for _ in range(4):
            produce(neighbor, "unread", batch(bytes(900_000)))
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        wait_until(lambda: neighbor.call(find, 4).coordinators[0].error_code == 0, "the coordinator is known")
        for _ in range(8):
            held.enter_context(target.connect(receive_bytes=4096)).send(attack_frames.fetch("unread", 50_000_000) * 20)
        responses = limits_of(broker).responses
        totals: deque[int] = deque(maxlen=20)

        def are_blocked() -> bool:
            totals.append(broker.call(lambda _: responses.total))
            # what the system's buffers take is written first
            return totals[0] > 1_000_000 and totals.count(totals[0]) == totals.maxlen

        wait_until(are_blocked, "responses are not read")
        monkeypatch.setattr(limits, "_RESPONSE_BYTES", totals[0])
        monkeypatch.setattr(limits, "_STALLED_RESPONSE_MS", 600_000)
        assert fetched_values(fetch(neighbor, "small", 0)) == [b"value"]
        assert committed(neighbor) == {}
        assert metadata(neighbor, "small").topics[0].error_code == 0
        assert produce(neighbor, "small", batch(bytes(100_000))).error_code == 0
        # a large batch needs memory
        assert not fetch(neighbor, "unread", 0, max_wait_ms=0).records
        assert broker.call(lambda _: (responses.is_full, broker.connection_count)) == (True, 9)


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
    with Target(broker.bootstrap_servers, None).connect() as client:
        assert client.call(frame) is None
    assert reason in broker.reports[-1]


def test_new_groups_are_rejected_above_the_memory_of_all_groups():
    config = {
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.coordinator.max.state.bytes": "1000000",
    }
    with EmbeddedBroker(config=config) as small:
        target = Target(small.bootstrap_servers, None)
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
    monkeypatch.setattr(request_limits, "MAX_CHANGES", 4)
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

    async def work(name: str) -> None:
        nonlocal most
        await enter_task()
        running.append(name)
        most = max(most, sum(each.startswith("large") for each in running))
        await next_turn()
        running.remove(name)

    async def run() -> None:
        ended: list[object] = []
        router, client = ResponseRouter(), SimpleNamespace(send_response=ended.append, fail=ended.append)
        for number in range(3):
            for name, is_large in (("large", True), ("small", False)):
                token = router.new_token(client)
                router.run(token, work(f"{name} {number}"), 0, is_update=True, is_large=is_large)
        while len(ended) < 6:
            await asyncio.sleep(0)
        assert ended == [None] * 6

    asyncio.run(asyncio.wait_for(run(), 10))
    assert most == 1 and not running


def test_small_requests_do_not_wait_for_the_end_of_long_ones():
    async def small() -> None:
        await next_turn()

    async def endless() -> None:
        while True:
            await next_turn()

    async def run() -> None:
        ended: list[object] = []
        router, client = ResponseRouter(), SimpleNamespace(send_response=ended.append, fail=ended.append)
        long = [router.new_token(client) for _ in range(10)]
        for token in long:
            router.run(token, endless(), 0, is_update=False)
        for _ in range(2):
            router.run(router.new_token(client), small(), 0, is_update=False, is_small=True)
        while len(ended) < 2:
            await asyncio.sleep(0)
        for token in long:
            router.cancel(token)
        router.run(router.new_token(client), small(), 0, is_update=False)
        while len(ended) < 3:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.slow
def test_clients_before_login_hold_bounded_memory_and_are_closed():
    config = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256", "authentication.timeout.ms": "1000",
        "queued.max.request.bytes": "1048576",
    }  # fmt: skip
    data = struct.pack(">ihhih", 500_000, 36, 1, 1, -1) + bytes(30_000)
    with EmbeddedBroker(config=config) as broker, ExitStack() as held:
        target = Target(broker.bootstrap_servers, None)
        clients = [held.enter_context(target.connect()) for _ in range(200)]
        for client in clients:
            client.socket.setblocking(False)
            with suppress(OSError):
                client.socket.send(data)
        wait_until(lambda: broker.call(lambda _: limits_of(broker).requests.total) > 1_048_576, "bytes are held")
        assert broker.call(lambda _: limits_of(broker).requests.total) < 4_000_000
        wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "all are closed")


def test_settings_and_users_are_bounded(monkeypatch):
    monkeypatch.setattr(log_manager, "MAX_SETTINGS_BYTES", 100)
    monkeypatch.setattr(users, "MAX_USERS", 1)
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    # a broker without other topics that have settings
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        created = [create_topic(connection, f"settings-{number}", retention_ms="1000000") for number in range(10)]
        assert [each.error_code for each in created] == [0] * 5 + [ErrorCode.POLICY_VIOLATION] * 5
        upsertions = [
            upsertion(name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=bytes(32)) for name in "ab"
        ]
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
        codes = [each.error_code for each in connection.call(request, 0).results]
        assert codes == [0, ErrorCode.POLICY_VIOLATION]


def test_connections_with_tls_are_fewer():
    counts = limits.ConnectionCounts()
    accepted = [counts.add("host", 5_000, 5_000, True) for _ in range(2_001)]
    assert set(accepted[:-1]) == {""} and accepted[-1] == "max.connections (with TLS 2,000)"
    counts.remove("host", True)
    assert not counts.add("host", 5_000, 5_000)
    assert counts.add("host", 5_000, 5_000, True) and not counts.add("host", 10_000, 5_000, True)
    assert counts.add("host", 10, 5_000, True) == "max.connections"
    for is_tls in [False, *[True] * 2_003]:
        counts.remove("host", is_tls)
    assert (counts.total, counts.tls) == (0, 0)
