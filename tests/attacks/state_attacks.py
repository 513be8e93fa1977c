"""Attacks on broker state: groups, transactions, producers, fetch sessions, responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from contextlib import ExitStack
from typing import Any, Callable

import pyarrow
from attacks.attack_frames import create_topics, fetch, list_offsets_at, metadata_of, one_record_batch, produce
from attacks.client_attacks import Outcome, Target, call_all
from support.commit_requests import commit_topics

from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.frames import decode_response, encode_request
from spark_groupsource.wire.messages import (
    AddPartitionsToTxnRequest,
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

_PARTITIONS = 5_000
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_LOADING = (14, 15, 16)
_DEADLINE_S = 30


def frame(request: Any, version: int) -> bytes:
    return bytes(encode_request(request, version, 1, None))


def call(client: Any, request: Any, version: int) -> Any:
    """The decoded response, None if the broker closes the connection."""
    response = client.call(frame(request, version))
    return None if response is None else decode_response(memoryview(response), request, version, 1)


def find_coordinator(client: Any, key_type: int, name: str) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
    deadline_s = time.monotonic() + _DEADLINE_S
    while call(client, request, 4).coordinators[0].error_code in _LOADING and time.monotonic() < deadline_s:
        time.sleep(0.05)


def commit_frame(group_id: str, topic: str, numbers: range, metadata: str = "") -> bytes:
    topics = commit_topics(OffsetCommitRequest, {topic: dict.fromkeys(numbers, 1)}, committed_metadata=metadata)
    return frame(OffsetCommitRequest(group_id=group_id, topics=topics), 8)


def _fetch_offsets(group_id: str, times: int = 1) -> bytes:
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
    return frame(OffsetFetchRequest(groups=[group] * times, require_stable=False), 8)


def begin_transaction(
    client: Any, name: str, topic: str, count: int, timeout_ms: int = 60_000
) -> dict[str, Any]:
    """Begins a transaction with partitions of a topic; returns its producer."""
    find_coordinator(client, _TRANSACTION_KEY, name)
    init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    producer = call(client, init, 2)
    wanted = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(range(count)))
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name, v3_and_below_topics=[wanted],
        **{f"v3_and_below_{key}": value for key, value in ids.items()},
    )  # fmt: skip
    call(client, added, 3)
    return ids


def offsets_of_many_partitions(target: Target) -> Outcome:
    """Offsets of many partitions with long metadata in several groups, read 300 times by one request, then deleted."""
    with target.connect() as client:
        client.call(create_topics(1, _PARTITIONS, "committed"))
        find_coordinator(client, _GROUP_KEY, "offsets-0")
        frames = [
            commit_frame(f"offsets-{group}", "committed-0", range(_PARTITIONS), "m" * 100 * group)
            for group in range(10)
        ]
        frames += [_fetch_offsets("offsets-1", 300), _fetch_offsets("offsets-2")]
        frames.append(frame(DeleteGroupsRequest(groups_names=[f"offsets-{group}" for group in range(5)]), 1))
        frames.append(frame(DeleteTopicsRequest(topic_names=["committed-0"], timeout_ms=1000), 4))
        frames.append(frame(DeleteGroupsRequest(groups_names=[f"offsets-{group}" for group in range(10)]), 1))
        return call_all(client, *frames)


def transaction_of_many_partitions(target: Target) -> Outcome:
    """A transaction of many partitions, which one request describes 2,000 times, and which then ends."""
    with target.connect() as client:
        client.call(create_topics(1, _PARTITIONS, "transaction"))
        ids = begin_transaction(client, "large-transaction", "transaction-0", _PARTITIONS)
        described = DescribeTransactionsRequest(transactional_ids=["large-transaction"] * 2_000)
        end = EndTxnRequest(transactional_id="large-transaction", committed=True, **ids)
        outcome = call_all(client, frame(described, 0), frame(end, 3), metadata_of(["transaction-0"]))
        time.sleep(1)
        client.call(frame(DeleteTopicsRequest(topic_names=["transaction-0"], timeout_ms=1000), 4))
        return outcome


def many_transactional_ids(target: Target) -> Outcome:
    """20,000 transactional ids of 1,000 characters."""
    with target.connect() as client:
        find_coordinator(client, _TRANSACTION_KEY, "id")
        name = "t" * 1_000
        frames = [
            frame(InitProducerIdRequest(transactional_id=f"{name}{number}", transaction_timeout_ms=60_000), 2)
            for number in range(20_000)
        ]
        return call_all(client, *frames)


def producers_of_one_partition(target: Target) -> Outcome:
    """10,000 batches of different producers in one partition, which one request then describes 2,000 times."""
    with target.connect() as client:
        client.call(create_topics(1, 1, "producers"))
        now_ms = int(time.time() * 1000)
        records = [Record(None, b"v", now_ms)]
        batches = [
            encode_batch(records, producer_id=number, producer_epoch=0, base_sequence=0)
            for number in range(10**9, 10**9 + 10_000)
        ]
        frames = [produce("producers-0", batch) for batch in batches]
        topic = DescribeProducersRequest.TopicRequest(name="producers-0", partition_indexes=[0] * 2_000)
        return call_all(client, *frames, frame(DescribeProducersRequest(topics=[topic]), 0))


def static_members(target: Target, count: int = 1_000) -> Outcome:
    """A group of 1,000 static members that join, leave and join again; the connections end before the responses."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(2_000))
    identity = LeaveGroupRequest.MemberIdentity
    leave = LeaveGroupRequest(
        group_id="static", member_id="",
        members=[identity(member_id="", group_instance_id=f"i{number}") for number in range(count)],
    )  # fmt: skip
    with target.connect() as client:
        find_coordinator(client, _GROUP_KEY, "static")
        for _ in range(2):
            with ExitStack() as held:
                for number in range(count):
                    request = JoinGroupRequest(
                        group_id="static", session_timeout_ms=30_000, rebalance_timeout_ms=1_000, member_id="",
                        group_instance_id=f"i{number}", protocol_type="consumer", protocols=[protocol],
                    )  # fmt: skip
                    member = held.enter_context(contextlib.closing(socket.create_connection(target.address, 60)))
                    member.sendall(frame(request, 5))
                time.sleep(0.5)
            client.call(frame(leave, 3))
    return Outcome()


def zeros_in_each_codec(target: Target) -> Outcome:
    """Batches of one record of zeros that are less than 1 MB compressed, and as large as possible decompressed."""
    refused = 0
    sizes = {1: 900_000_000, 2: 19_000_000, 3: 200_000_000, 4: 1_000_000_000}
    names = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
    with target.connect() as client:
        client.call(create_topics(1, 1, "zeros"))
        for codec, size in sizes.items():
            response = client.call(produce("zeros-0", zeros_batch(names[codec], codec, size)))
            refused += response is None or response[-30:-28] != b"\0\0"
        for _ in range(5):
            client.call(list_offsets_at("zeros-0", 1_001))
    return Outcome(0, refused)


def zeros_batch(name: str, codec: int, size: int) -> bytes:
    """A compressed batch with one record of `size` zeros, which is not allocated as a whole."""
    value_head = _varint(2 * size)
    head = b"\0\0\0\x01" + value_head
    record = _varint(2 * (len(head) + size + 1)) + head
    sink = pyarrow.BufferOutputStream()
    if name == "snappy":
        return one_record_batch(pyarrow.Codec(name).compress(record + bytes(size) + b"\0", asbytes=True), codec)
    with pyarrow.CompressedOutputStream(sink, name) as stream:
        stream.write(record)
        for _ in range(size // 1_000_000):
            stream.write(bytes(1_000_000))
        stream.write(b"\0")
    return one_record_batch(sink.getvalue().to_pybytes(), codec)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def skewed_timestamps(target: Target) -> Outcome:
    """Batches with the smallest and largest timestamps, out of order; then time look-ups in 1,000 partitions."""
    with target.connect() as client:
        client.call(create_topics(1, 1_000, "skewed"))
        now_ms = int(time.time() * 1000)
        frames = []
        for timestamps in ((0, 2**62), (2**63 - 1, 0), (now_ms, 1), (-1, -(2**62))):
            with contextlib.suppress(ValueError, struct.error):
                frames.append(produce("skewed-0", encode_batch([Record(b"k", b"v", each) for each in timestamps])))
        topic = ListOffsetsRequest.ListOffsetsTopic
        partitions = [
            topic.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=number)
            for number in range(1_000)
        ]
        topics = [topic(name="skewed-0", partitions=partitions)]
        looked_up = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=1000)
        return call_all(client, *frames, *[frame(looked_up, 4)] * 20)


def fetch_sessions(target: Target) -> Outcome:
    """Sessions of 2,000 partitions and of one partition in turn, none of which is used again."""
    with target.connect() as client:
        client.call(create_topics(1, 2_000, "sessions"))
        frames = [_new_session("sessions-0", count) for _ in range(40) for count in (2_000, 1)]
        return call_all(client, *frames)


def _new_session(topic: str, partitions: int) -> bytes:
    wanted = FetchRequest.FetchTopic
    parts = [
        wanted.FetchPartition(
            partition=number, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000
        )
        for number in range(partitions)
    ]
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=10_000, isolation_level=0, session_id=0, session_epoch=0,
        topics=[wanted(topic=topic, partitions=parts)], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return frame(request, 11)


def configs_of_many_topics(target: Target) -> Outcome:
    """1,000 topics are created, and all their settings described with documentation, several times."""
    with target.connect() as client:
        client.call(create_topics(1_000, 1, "config"))
        resource = DescribeConfigsRequest.DescribeConfigsResource
        resources = [
            resource(resource_type=2, resource_name=f"config-{number}", configuration_keys=None)
            for number in range(1_000)
        ]
        request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
        return call_all(client, *[frame(request, 3)] * 3)


def resets_during_responses(target: Target, count: int = 200) -> Outcome:
    """Connections that request all topics and all records, read some bytes and are reset."""
    request = metadata_of([f"reset-{number}" for number in range(2_000)]) + fetch("bulk-0", 50_000_000) * 5
    for _ in range(count):
        with contextlib.suppress(OSError), target.connect(receive_bytes=4096) as client:
            client.send(request)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return Outcome()


def topics_in_turn(target: Target, rounds: int = 12) -> Outcome:
    """Four clients that create, enlarge and delete 50 topics each, 12 times."""

    def run(name: str) -> None:
        with target.connect() as client:
            for number in range(rounds):
                topics = [f"{name}-{number}-{each}" for each in range(50)]
                grown = [CreatePartitionsRequest.CreatePartitionsTopic(name=each, count=40) for each in topics]
                client.call(create_topics(50, 4, f"{name}-{number}"))
                client.call(frame(CreatePartitionsRequest(topics=grown, timeout_ms=1000, validate_only=False), 1))
                client.call(frame(DeleteTopicsRequest(topic_names=topics, timeout_ms=1000), 4))

    threads = [threading.Thread(target=run, args=(f"turn-{number}",), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return Outcome()


STATE_ATTACKS: dict[str, tuple[Callable[[Target], Outcome], str]] = {
    each.__name__: (each, text)
    for each, text in (
        (offsets_of_many_partitions, "offsets of 5,000 partitions in 10 groups, read 300 times, deleted"),
        (transaction_of_many_partitions, "a transaction of 5,000 partitions, described 2,000 times"),
        (many_transactional_ids, "20,000 transactional ids of 1,000 characters"),
        (producers_of_one_partition, "10,000 producers of one partition, described 2,000 times"),
        (static_members, "1,000 static members that join and leave"),
        (zeros_in_each_codec, "up to 1 GB of zeros in a record, in each codec"),
        (skewed_timestamps, "extreme timestamps, time look-ups in 1,000 partitions"),
        (fetch_sessions, "80 new fetch sessions of 2,000 partitions and of one"),
        (configs_of_many_topics, "all settings of 1,000 topics"),
        (resets_during_responses, "200 connections that are reset during responses"),
        (topics_in_turn, "50 topics created, enlarged to 40 partitions and deleted 12 times by each of four clients"),
    )
}
"""Attack and its description, by name."""
