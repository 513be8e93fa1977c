"""Produce requests of one partition that a connection repeats with other records.

Of such requests only the partition and the records differ, so the rest is compared with the bytes of an earlier one.
The records have any size.
"""

from __future__ import annotations

import uuid
from struct import Struct, error
from typing import NamedTuple

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import new_tuple
from spark_groupsource.storage.partition import AppendResult
from spark_groupsource.wire.byte_pattern import pattern_of
from spark_groupsource.wire.decoder import read_unsigned_varint
from spark_groupsource.wire.frames import EncodedResponse, response_body
from spark_groupsource.wire.messages import ProduceRequest, ProduceResponse

_FLEXIBLE_SINCE = 9
_NUMBER = Struct(">i")
_OFFSET_BYTES = 8
_PARTITION_AND_ERROR = Struct(">ih")
_PREPARED_BYTES = 2_500
"""Approximate memory of a prepared request, without its topic."""

_ProducedTopic = ProduceResponse.TopicProduceResponse
_ProducedPartition = _ProducedTopic.PartitionProduceResponse


class ProducePattern:
    """The bytes around partition and records of a Produce request.

    Args: `head`, the bytes before the number of the partition; `tail`, those after the records; `is_compact`, whether
    the length of the records is a varint.
    """

    def __init__(self, head: bytes, tail: bytes, is_compact: bool) -> None:
        layout = Struct(f">{len(head)}si")
        self._unpack, self._records_at = layout.unpack_from, layout.size
        self._head, self._tail, self._is_compact = head, tail, is_compact

    def match(self, body: memoryview) -> tuple[int, int, int] | None:
        """Returns the partition, and where its records begin and end; None if another byte differs."""
        try:
            head, partition = self._unpack(body)
            if head != self._head:
                return None
            if self._is_compact:
                size, start = read_unsigned_varint(body, self._records_at)
                end = start + size - 1
            else:
                start = self._records_at + _NUMBER.size
                end = start + _NUMBER.unpack_from(body, self._records_at)[0]
        except (error, IndexError, RemoteProtocolError):
            return None
        is_whole = start < end and end + len(self._tail) == len(body) and body[end:] == self._tail
        return (partition, start, end) if is_whole else None


class PreparedProduce(NamedTuple):
    """A Produce request of one existing topic, without the partition and its records.

    Attributes: `topic_id`, None if the request has the name; `layout`, of the response: `head`, partition, error code,
    base offset, log append time, log start offset unless the version has none, `tail`; `offsets`, how many of the last
    three it has.
    """

    pattern: ProducePattern
    topic: str
    topic_id: uuid.UUID | None
    acks: int
    layout: Struct
    head: bytes
    tail: bytes
    offsets: int
    size_bytes: int

    def response(self, partition: int, done: AppendResult, log_start_offset: int) -> EncodedResponse:
        """Returns the response without an error."""
        offsets = (done.base_offset, done.log_append_time_ms, log_start_offset)[: self.offsets]
        body = self.layout.pack(self.head, partition, 0, *offsets, self.tail)
        return new_tuple(EncodedResponse, ((body,), self.layout.size))


def produce_pattern(request: ProduceRequest, version: int, body: memoryview) -> ProducePattern | None:
    """Returns the pattern of a request of one partition, encoded in `body`; None for an unusual encoding."""
    data = request.topic_data[0].partition_data[0]
    records = data.records or b""
    is_compact = version >= _FLEXIBLE_SINCE
    # after the records: the tagged fields of partition, topic and request
    tail = bytes(3 if is_compact else 0)
    end = len(body) - len(tail)
    start = end - len(records)
    length_bytes = _varint_bytes(len(records) + 1) if is_compact else _NUMBER.size
    pattern = ProducePattern(bytes(body[: max(start - length_bytes - _NUMBER.size, 0)]), tail, is_compact)
    # bytes are compared faster than views
    is_found = pattern.match(body) == (data.index, start, end) and bytes(body[start:end]) == bytes(records)
    return pattern if is_found else None


def _varint_bytes(number: int) -> int:
    return -(-number.bit_length() // 7)


def prepare_produce(request: ProduceRequest, version: int, body: memoryview, topic: str) -> PreparedProduce | None:
    """Returns what is known for the next requests of one partition of `topic`; None if there is no pattern."""
    pattern = produce_pattern(request, version, body)
    answer = pattern_of([_response(request, version, number) for number in (0, -1)], _OFFSET_BYTES)
    if pattern is None or answer is None:
        return None
    before, tail = answer.gaps[0], answer.gaps[-1]
    head = before[: len(before) - _PARTITION_AND_ERROR.size]
    offsets = len(answer.gaps) - 1
    layout = Struct(f">{len(head)}sih{offsets}q{len(tail)}s")
    topic_id = request.topic_data[0].topic_id
    size_bytes = _PREPARED_BYTES + 8 * len(topic)
    return PreparedProduce(pattern, topic, topic_id, request.acks, layout, head, tail, offsets, size_bytes)


def _response(request: ProduceRequest, version: int, number: int) -> bytes:
    """Returns the encoded response for partition 0, with `number` as every offset and timestamp."""
    topic = request.topic_data[0]
    partition = _ProducedPartition(
        index=0, error_code=0, base_offset=number, log_append_time_ms=number, log_start_offset=number,
        record_errors=[], error_message=None,
    )  # fmt: skip
    topics = [_ProducedTopic(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])]
    return response_body(ProduceResponse(responses=topics, throttle_time_ms=0, node_endpoints=[]), version)
