"""Request frames of attacks: large, nested, repeated or incomplete."""

from __future__ import annotations

import struct

import google_crc32c
import pyarrow

from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import (
    CreateTopicsRequest,
    FetchRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    ProduceRequest,
)


def frame(key: int, version: int, body: bytes, *, flexible: bool = False, correlation_id: int = 1) -> bytes:
    """A request with its length and a header without client id."""
    head = struct.pack(">hhih", key, version, correlation_id, -1) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def metadata_of(names: list[str], *, create: bool = False) -> bytes:
    """Metadata version 4 for topics by name."""
    return frame(3, 4, struct.pack(">i", len(names)) + b"".join(map(string, names)) + bytes([create]))


def metadata_of_empty_names(size: int) -> bytes:
    """Metadata version 4 of `size` bytes, all of which are empty names."""
    return frame(3, 4, struct.pack(">i", size // 2) + bytes(size) + b"\0")


def metadata_of_all_topics() -> bytes:
    return frame(3, 4, struct.pack(">i", -1) + b"\0")


def unknown_tags(size: int) -> bytes:
    """Metadata version 9 without topics, and with `size` bytes of unknown empty tagged fields."""
    count = size // 2
    return frame(3, 9, b"\x01\0\0\0" + _varint(count) + b"\x63\0" * count, flexible=True)


def header_tags(size: int) -> bytes:
    """Metadata version 9 with `size` bytes of unknown tagged fields in the request header."""
    count = size // 2
    head = struct.pack(">hhih", 3, 9, 1, -1) + _varint(count) + b"\x63\0" * count
    return struct.pack(">i", len(head) + 5) + head + b"\x01\0\0\0\0"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def describe_broker_configs(node_id: int, times: int) -> bytes:
    """DescribeConfigs version 3 that names one broker many times, with synonyms and documentation."""
    resource = b"\x04" + string(str(node_id)) + struct.pack(">i", -1)
    return frame(32, 3, struct.pack(">i", times) + resource * times + b"\x01\x01")


def describe_group(group_id: str, times: int) -> bytes:
    """DescribeGroups version 4 that names one group many times."""
    return frame(15, 4, struct.pack(">i", times) + string(group_id) * times + b"\0")


def list_offsets_at(topic: str, timestamp_ms: int) -> bytes:
    """ListOffsets version 4 by timestamp."""
    wanted = ListOffsetsRequest.ListOffsetsTopic
    part = wanted.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp_ms)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[wanted(name=topic, partitions=[part])], timeout_ms=1000
    )
    return bytes(encode_request(request, 4, 1, None))


def heartbeat(group_id: str = "neighbor") -> bytes:
    request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id="m", group_instance_id=None)
    return bytes(encode_request(request, 3, 1, None))


def create_topics(count: int, partitions: int, prefix: str = "made") -> bytes:
    """CreateTopics version 4 of `count` topics with `partitions` partitions each."""
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"{prefix}-{number}", num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        for number in range(count)
    ]
    return bytes(encode_request(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False), 4, 1, None))


def produce(topic: str, batch: bytes) -> bytes:
    topic_data = ProduceRequest.TopicProduceData
    data = topic_data(name=topic, partition_data=[topic_data.PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data])
    return bytes(encode_request(request, 8, 1, None))


def produce_to_many(partitions: int) -> bytes:
    """Produce version 8 without records to many partitions of an unknown topic."""
    body = struct.pack(">hhi", -1, -1, 1000) + struct.pack(">i", 1) + string("unknown")
    return frame(0, 8, body + struct.pack(">i", partitions) + struct.pack(">ii", 0, -1) * partitions)


def empty_headers_batch(headers: int = 3_000_000) -> bytes:
    """A zstd batch of one record with `headers` empty headers: some kB that decompress to 6 MB."""
    headers_part = _zigzag(headers) + b"\0\x01" * headers  # empty key, null value
    body = b"\0" + _zigzag(0) + _zigzag(0) + _zigzag(-1) + _zigzag(-1) + headers_part
    return one_record_batch(pyarrow.Codec("zstd").compress(_zigzag(len(body)) + body, asbytes=True), 4)


def one_record_batch(compressed: bytes, codec: int) -> bytes:
    """A batch of one record, which is compressed already."""
    after_crc = struct.pack(">hiqqqhii", codec, 0, 1_000, 1_000, -1, -1, -1, 1) + compressed
    crc = google_crc32c.value(after_crc)
    return struct.pack(">qiibI", 0, len(after_crc) + 9, -1, 2, crc) + after_crc


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def fetch(topic: str, max_bytes: int) -> bytes:
    """Fetch version 11 from offset 0."""
    wanted = FetchRequest.FetchTopic
    part = wanted.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=max_bytes
    )
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[wanted(topic=topic, partitions=[part])], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return bytes(encode_request(request, 11, 1, None))


def fetch_many(partitions: int) -> bytes:
    """Fetch version 11 of many partitions of an unknown topic."""
    head = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1)
    entry = struct.pack(">iiqqi", 0, -1, 0, -1, 1000)
    body = head + struct.pack(">i", 1) + string("unknown") + struct.pack(">i", partitions) + entry * partitions
    return frame(1, 11, body + struct.pack(">i", 0) + string(""))


def join_group(group_id: str, metadata: bytes = b"", *, session_timeout_ms: int = 30_000) -> bytes:
    """JoinGroup version 3, which creates the group and its member at once."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    request = JoinGroupRequest(
        group_id=group_id, session_timeout_ms=session_timeout_ms, rebalance_timeout_ms=30_000, member_id="",
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip
    return bytes(encode_request(request, 3, 1, None))


def init_producer_id() -> bytes:
    return bytes(encode_request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 1, 1, None))


def half_sent(size: int, sent: int) -> bytes:
    """The first `sent` bytes of a Produce frame that announces `size` bytes."""
    return struct.pack(">i", size) + struct.pack(">hhih", 0, 8, 1, -1) + bytes(sent)
