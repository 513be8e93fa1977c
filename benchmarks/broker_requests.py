"""Processor and wall time of the embedded broker per request.

Heartbeats, commits, Produce, Fetch and Metadata, sent one by one and pipelined over one connection. `compare.py`
measures two checkouts with them, `broker.py` the embedded broker and Apache Kafka. Linux only.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

from coordinator import Connection, Member, Target, frames, leave

from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire import messages

ROUND_S = 0.3
PIPELINED = 50
PARTITIONS = 100


class Case(NamedTuple):
    title: str
    version: int
    make: Callable[[Member], Any]
    depth: int = 1


def produce(records: int) -> Callable[[Member], Any]:
    data = encode_batch([Record(None, b"x" * 100, 1_700_000_000_000) for _ in range(records)])
    topic = messages.ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=data)
    request = messages.ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=1000, topic_data=[topic(name="load", partition_data=[partition])]
    )
    return lambda _: request


def fetch(partitions: int) -> Callable[[Member], Any]:
    topic = messages.FetchRequest.FetchTopic
    rows = [
        topic.FetchPartition(
            partition=number, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000
        )
        for number in range(partitions)
    ]
    request = messages.FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1_000_000, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[topic(topic="load", partitions=rows)], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return lambda _: request


def metadata(_: Member) -> Any:
    topic = messages.MetadataRequest.MetadataRequestTopic
    return messages.MetadataRequest(topics=[topic(name="load")], allow_auto_topic_creation=False)


def commit(partitions: int) -> Callable[[Member], Any]:
    return lambda member: member.commit("load", partitions)


CASES = (
    Case("Heartbeat", 3, Member.heartbeat),
    Case("Heartbeat", 3, Member.heartbeat, PIPELINED),
    Case("OffsetCommit of 1 partition", 7, commit(1)),
    Case("OffsetCommit of 10 partitions", 7, commit(10)),
    Case("OffsetCommit of 100 partitions", 7, commit(100)),
    Case("Produce of 1 record", 9, produce(1)),
    Case("Produce of 1 record", 9, produce(1), PIPELINED),
    Case("Produce of 150 records", 9, produce(150)),
    Case("Fetch of 1 partition", 11, fetch(1)),
    Case("Fetch of 100 partitions", 11, fetch(PARTITIONS)),
    Case("Metadata of 100 partitions", 9, metadata),
    Case("Metadata of 100 partitions", 9, metadata, PIPELINED),
)


def busy_us(target: Target) -> float:
    """Processor microseconds of all threads of the broker."""
    tasks = Path(f"/proc/{target.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


async def per_request(target: Target, case: Case) -> tuple[float, float]:
    """Returns the processor and wall microseconds per request."""
    connection = await Connection.open(target.address)
    member = Member(connection, "requests")
    await member.settle()
    sent = frames(case.make(member), case.version)
    await connection.exchange(next(sent))
    busy, began, count = busy_us(target), time.perf_counter(), 0
    while time.perf_counter() - began < ROUND_S:
        await connection.exchange_many([next(sent) for _ in range(case.depth)])
        count += case.depth
    took = (busy_us(target) - busy) / count, (time.perf_counter() - began) / count * 1e6
    await connection.call(leave([member]))
    connection.close()
    return took
