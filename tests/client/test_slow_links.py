"""Links that are slower than the largest response per request timeout."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from support.clients import client_settings, open_cluster
from support.fake_leader import TP, FakeLeader, fake_leader
from support.links import forwarding, send_slowly
from support.topics import create_topic, produce

from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.records.partition_fetch import FetchSize
from spark_groupsource.common import net
from spark_groupsource.common.deadlines import LEAST_BYTES_PER_S, TransferDeadline
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.messages import FetchResponse

KIB = 1024


# -- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moves, left_ms",
    [
        ([], 1_000),
        ([(600, 4 * KIB)], 1_000),
        ([(600, 4 * KIB), (1_500, 8 * KIB)], 1_000),
        # a peer that sends a byte now and then: less than LEAST_BYTES_PER_S after the first timeout
        ([(900, 1)], 100),
        ([(500, 1), (999, 1)], 1),
        # as many bytes as the transfer has: the next must arrive within the timeout nevertheless
        ([(10, 1 << 30)], 1_000),
    ],
)
def test_bytes_extend_the_deadline_of_a_transfer(moves: list[tuple[int, int]], left_ms: int) -> None:
    deadline = TransferDeadline(1_000, now_ms=50_000)
    now_ms = 50_000
    for at_ms, count in moves:
        now_ms = 50_000 + at_ms
        deadline.moved(count, now_ms)
    assert deadline.left_ms(now_ms) == left_ms
    assert deadline.left_ms(now_ms + left_ms) == 0


def test_slowest_rate_holds_a_transfer() -> None:
    deadline = TransferDeadline(1_000, now_ms=0)
    for second in range(1, 100):
        deadline.moved(LEAST_BYTES_PER_S, second * 1_000)
        assert deadline.left_ms(second * 1_000) == 1_000
    slower = TransferDeadline(1_000, now_ms=0)
    lefts = []
    for second in (1, 2):
        slower.moved(LEAST_BYTES_PER_S // 2, second * 1_000)
        lefts.append(slower.left_ms(second * 1_000))
    assert lefts == [500, 0]


def test_size_of_fetches_follows_the_link() -> None:
    size = FetchSize(client_settings("h:1", request_timeout_ms="16000"))
    largest = 8_000 * KIB
    assert size.limit(largest) == largest
    size.received(largest, 4_000, largest)
    assert size.limit(largest) == 4_000 * KIB
    size.received(4_000 * KIB, 2_000, largest)
    assert size.limit(largest) == 4_000 * KIB, "neither slow nor fast"
    size.failed(largest)
    size.received(10, 9_000, largest)
    assert size.limit(largest) == 2_000 * KIB, "a small response that is late shows nothing about the link"
    for expected in (4_000 * KIB, largest, largest):
        size.received(1_000, 100, largest)
        assert size.limit(largest) == expected
    for _ in range(20):
        size.failed(largest)
    assert size.limit(largest) == 64 * KIB
    assert size.limit(10) == 10


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_large_request_is_sent_while_the_peer_receives() -> None:
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * KIB)
    data, received = bytes(384 * KIB), bytearray()
    pause = threading.Event()

    def receive() -> None:
        while len(received) < len(data) and (more := far.recv(32 * KIB)):
            received.extend(more)
            pause.wait(0.07)

    with near, far:
        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        net.send_all(near, data, 1_500)
        thread.join(20)
    assert len(received) == len(data)


class LargeLeader(FakeLeader):
    """Serves records of 40 kB, as many as the request has room for."""

    def _fetch(self, request: Any, version: int) -> FetchResponse:
        response: FetchResponse = super()._fetch(request, version)
        (data,) = response.responses[0].partitions
        begin, room = request.topics[0].partitions[0].fetch_offset, request.max_bytes
        batches = b""
        for offset in range(begin, self.log_end if data.records else begin):
            batch = encode_batch([Record(None, bytes(40_000), 1)], base_offset=offset)
            if batches and len(batches) + len(batch) > room:
                break
            batches += batch
        data.records = batches
        return response


@pytest.mark.slow
def test_fetch_over_a_slow_link_progresses() -> None:
    """1.6 MB in 2 s, with a request timeout of 600 ms."""
    broker = LargeLeader(log_end=40)
    try:
        send_slowly(broker, 800_000)
        settings = {"request_timeout_ms": "600", "default_api_timeout_ms": "20000", "fetch_max_wait_ms": "1"}
        with open_cluster(str(broker.address), retry_backoff_ms="1", **settings) as client:
            blocks = list(PartitionFetcher(client).fetch_blocks([OffsetRange(TP, 0, 40)]))
    finally:
        broker.close()
    assert blocks[-1].next_offset == 40
    sizes = [request.max_bytes for _, request in broker.sent("Fetch")]
    assert sizes[0] > 1_600_000 and min(sizes) < 1_000_000 or len(sizes) == 1


def test_peer_that_stops_in_a_response_is_left() -> None:
    with fake_leader() as broker:
        cut = [True, True]

        def send(peer: socket.socket, data: bytes) -> None:
            is_cut = broker.requests[-1][0] == "Fetch" and cut and cut.pop()
            peer.sendall(data[: len(data) // 2] if is_cut else data)

        broker.send = send  # type: ignore[method-assign]
        settings = {"request_timeout_ms": "100", "fetch_max_wait_ms": "1", "retry_backoff_ms": "1"}
        with open_cluster(str(broker.address), **settings) as client:
            blocks = list(PartitionFetcher(client).fetch_blocks([OffsetRange(TP, 0, 10)]))
    assert blocks[-1].next_offset == 10


def read_slowly(bootstrap_servers: str, topic: str) -> tuple[int, list[Any]]:
    """Returns the number of records that are read over a link of 1 MB/s, and the Fetch requests."""
    create_topic(bootstrap_servers, topic, 1)
    produce(bootstrap_servers, topic, [(0, None, bytes(20_000)) for _ in range(80)], compression_type="none")
    requests: list[Any] = []
    with forwarding(bootstrap_servers, lambda request, _: requests.append(request)) as proxy:
        settings = {"request_timeout_ms": "600", "fetch_max_wait_ms": "1", "default_api_timeout_ms": "20000"}
        with open_cluster(str(proxy.address), retry_backoff_ms="1", **settings) as client:
            client.metadata([topic])
            send_slowly(proxy, 1_000_000)
            found = 0
            for block in PartitionFetcher(client).fetch_blocks([OffsetRange(TopicPartition(topic, 0), 0, 80)]):
                found += sum(header.record_count for header in iter_batches(block.data))
    return found, requests


@pytest.mark.kafka
def test_response_of_a_real_kafka_over_a_slow_link_is_received(kafka: Any, topic: str) -> None:
    found, requests = read_slowly(kafka.bootstrap_servers, topic)
    assert found == 80 and len(requests) < 20


@pytest.mark.slow
def test_response_of_the_embedded_broker_over_a_slow_link_is_received(embedded: Any, topic: str) -> None:
    found, requests = read_slowly(embedded.bootstrap_servers, topic)
    assert found == 80 and len(requests) < 20
