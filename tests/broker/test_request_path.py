"""Request path: framing, order of responses, imports at start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.raw_broker import RawConnection, create_topic

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.config import BrokerConfig
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.network.client_connection import Connection
from spark_groupsource.broker.network.limits import RequestMemory, ResponseMemory
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import (
    ApiVersionsRequest,
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsResponse,
    MetadataRequest,
)


class Wire(asyncio.Transport):
    """A transport that records the correlation ids of responses."""

    def __init__(self) -> None:
        super().__init__()
        self.correlation_ids: list[int] = []

    def write(self, data: Any) -> None:
        self.correlation_ids.append(int.from_bytes(data[4:8], "big"))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Host:
    """Records requests; the test sends the responses."""

    node_id = 0
    protocol = "PLAINTEXT"

    def __init__(self) -> None:
        self.receive_buffer = memoryview(bytearray(64))
        self.taken: list[str] = []
        self.broker: Any = SimpleNamespace(
            config=BrokerConfig(), report=lambda line, level=0: self.taken.append(line)
        )
        self.requests, self.responses = RequestMemory(1 << 20), ResponseMemory()
        self.dispatcher: Any = RequestDispatcher(self.broker, SERVED, lambda *_: None, lambda *_: None)
        self.dispatcher.handle = self._handle
        self.on_open = self.on_close = self.cancel = lambda connection: None
        self.after_requests = lambda: None

    def new_token(self, connection: Connection) -> int:
        return len(self.taken)

    def on_error(self, connection: Connection, error: Exception) -> None:
        raise error

    def _handle(self, call: Any, request: Any) -> None:
        self.taken.append(request.group_id)


def receive(host: Host, connection: Connection, data: bytes) -> None:
    """Delivers bytes as the event loop does: at most one buffer at a time."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        buffer[:size] = b"\xff" * size  # the buffer is reused by another connection
        data = data[size:]


@given(
    names=st.lists(st.text("abc", min_size=1, max_size=40), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 300), max_size=12),
    at_once=st.booleans(),
)
def test_requests_are_handled_in_order_for_any_split_of_their_bytes(names, cuts, at_once):
    async def run() -> None:
        host, wire = Host(), Wire()
        connection = Connection(host, lambda: 0)
        connection.connection_made(wire)
        if at_once:
            take_down = host.dispatcher.handle

            def handle(call: Any, request: Any) -> None:
                take_down(call, request)
                connection.send_response(HeartbeatResponse(throttle_time_ms=0, error_code=0))

            host.dispatcher.handle = handle
        requests = [HeartbeatRequest(group_id=name, generation_id=1, member_id="m") for name in names]
        data = b"".join(bytes(encode_request(each, 3, number, "c")) for number, each in enumerate(requests))
        places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
        for start, stop in zip(places, places[1:]):
            receive(host, connection, data[start:stop])
        for _ in names:
            await asyncio.sleep(0)  # at most one request in each time slice
        for received in range(0 if at_once else len(names)):
            # the next request is handled after the response to this one
            assert (host.taken, wire.correlation_ids) == (names[: received + 1], list(range(received)))
            connection.send_response(HeartbeatResponse(throttle_time_ms=0, error_code=0))
            await asyncio.sleep(0)
        assert (host.taken, wire.correlation_ids) == (names, list(range(len(names))))

    asyncio.run(run())


def test_a_response_that_was_sent_holds_no_response_memory():
    async def run() -> None:
        host, wire = Host(), Wire()
        connection = Connection(host, lambda: 0)
        connection.connection_made(wire)
        receive(host, connection, bytes(encode_request(HeartbeatRequest(group_id="g"), 3, 1, "c")))
        listed = [ListGroupsResponse.ListedGroup(group_id=str(number)) for number in range(2_000)]
        connection.send_response(ListGroupsResponse(throttle_time_ms=0, groups=listed))  # encoded by the worker thread
        assert host.responses.total > 0
        while not wire.correlation_ids:
            await asyncio.sleep(0.001)
        assert host.responses.total == 0

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_delayed_response_is_sent_before_the_responses_of_later_requests():
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000
        )
        waits = FetchRequest(
            max_wait_ms=200, min_bytes=1, max_bytes=1000, isolation_level=0, session_id=0, session_epoch=-1,
            topics=[topic(topic="t", partitions=[partition])], forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        behind = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        wanted = [(ApiVersionsRequest(), 0), (waits, 11), (behind, 4), (ApiVersionsRequest(), 0)]
        frames = [bytes(encode_request(each, v, number, "c")) for number, (each, v) in enumerate(wanted)]
        connection.send(b"".join(frames))
        received = [int.from_bytes(connection.read_frame()[:4], "big") for _ in wanted]
    assert received == [0, 1, 2, 3]


def test_the_broker_does_not_import_libraries_for_bulk_decoding():
    code = (
        "import sys; import spark_groupsource.cli.main, spark_groupsource.cli.broker_command; "
        "import spark_groupsource.broker.process; "
        "print({'numpy', 'pyarrow', 'pandas', 'numba'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout == "set()\n", run.stderr
