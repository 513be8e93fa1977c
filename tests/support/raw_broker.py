"""Raw connections to a broker, and a broker in a process."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Iterable

from spark_groupsource.common.net import Address, dial, parse_addresses, receive_into, send_all
from spark_groupsource.errors import NetworkError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.frames import decode_response, encode_request
from spark_groupsource.wire.messages import CreateTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest

TIMEOUT_MS = 20_000


class RawConnection:
    """A connection that sends requests or bytes and reads frames."""

    def __init__(self, bootstrap_servers: str) -> None:
        (address,) = parse_addresses(bootstrap_servers)
        self.socket = dial(address, TIMEOUT_MS)
        self._correlation_id = 0

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        # unlike close(), this wakes a thread that receives
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def send(self, data: bytes | bytearray) -> None:
        send_all(self.socket, data, TIMEOUT_MS)

    def read_frame(self) -> memoryview:
        prefix = bytearray(4)
        receive_into(self.socket, memoryview(prefix), TIMEOUT_MS)
        frame = bytearray(int.from_bytes(prefix, "big"))
        receive_into(self.socket, memoryview(frame), TIMEOUT_MS)
        return memoryview(frame)

    def is_closed_by_peer(self) -> bool:
        """Waits until the peer closes the connection; returns False if it sends bytes instead."""
        try:
            receive_into(self.socket, memoryview(bytearray(1)), TIMEOUT_MS)
        except NetworkError as error:
            return "closed" in str(error) or "lost" in str(error)
        return False

    def post(self, request, version: int) -> int:
        self._correlation_id += 1
        self.send(encode_request(request, version, self._correlation_id, "test"))
        return self._correlation_id

    def call(self, request, version: int):
        correlation_id = self.post(request, version)
        return decode_response(self.read_frame(), request, version, correlation_id)


def create_topic(connection: RawConnection, name: str, partitions: int = 1, **settings: str):
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    (result,) = connection.call(request, 7).topics
    return result


def produce_request(topic: str, data: bytes, partition: int = 0, acks: int = -1, transactional_id: str | None = None):
    topic_data = ProduceRequest.TopicProduceData
    part = topic_data.PartitionProduceData(index=partition, records=data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[topic_data(name=topic, partition_data=[part])],
    )


def produce(connection: RawConnection, topic: str, data: bytes, partition: int = 0, version: int = 9):
    """Returns the response entry of the partition."""
    response = connection.call(produce_request(topic, data, partition), version)
    return response.responses[0].partition_responses[0]


def fetch_request(topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 20, min_bytes=1, max_wait_ms=0):
    topic_class = FetchRequest.FetchTopic
    wanted = topic_class.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic_class(topic=topic, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
    )


def fetch(connection: RawConnection, topic: str, offset: int, version: int = 11, **options):
    """Returns the response entry of the partition."""
    return connection.call(fetch_request(topic, offset, **options), version).responses[0].partitions[0]


def fetched_values(response) -> list[bytes | None]:
    data = bytes(response.records or b"")
    return [record.value for header in iter_batches(data) for record in decode_records(data, header)]


def metadata(connection: RawConnection, *names: str, version: int = 9):
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return connection.call(request, version)


def unexpected_errors(lines: Iterable[str]) -> list[str]:
    """The reports of defects of the broker among its reports or log lines."""
    return [line for line in lines if "unexpected error" in line.lower()]


_PROGRAM = """
import sys
from contextlib import suppress
from pathlib import Path
from spark_groupsource.broker.process import serve_forever
from spark_groupsource.common.net import Address

serve_forever(
    Path(sys.argv[1]), Address("127.0.0.1", int(sys.argv[2])), dict(item.split("=", 1) for item in sys.argv[3:]),
    ready=lambda address: print("listening on", address, flush=True),
    report=lambda lines: [print(line, flush=True) for line, _ in lines],
)
print("stopped", flush=True)
"""


class BrokerProcess:
    """A broker in a process, which can be killed."""

    def __init__(self, data_dir: Path, *settings: str, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(data_dir), str(port), *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("listening on "):
                break
        else:
            raise AssertionError("\n".join(self.lines))
        self.bootstrap_servers = self.lines[-1].removeprefix("listening on ")

    @property
    def address(self) -> Address:
        return parse_addresses(self.bootstrap_servers)[0]

    def kill(self) -> None:
        self.process.kill()
        self._finish()

    def terminate(self) -> int:
        self.process.terminate()
        self._finish()
        return self.process.returncode

    def _finish(self) -> None:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        self.process.wait(20)
        self.process.stdout.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.kill()
