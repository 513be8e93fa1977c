"""Full fetches that a connection repeats, without decoding them.

A client without fetch sessions (KIP-227), such as librdkafka, names all partitions in each request, and most of them
have nothing new. Their entries in the response are kept in encoded form. Each request looks up every partition and
compares its offsets with the position of the client; only partitions with records are read and encoded. Everything
else, for example a fetch that waits for records, an error or another field that differs, is left to `FetchManager`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import error as StructError
from typing import Sequence

from spark_groupsource.broker.fetch.partition_reads import PartitionData, PartitionReads, empty_entry
from spark_groupsource.broker.fetch.sessions import FINAL_EPOCH, NO_SESSION, TOPIC_IDS_SINCE, CachedPartition
from spark_groupsource.broker.leaders import Leader
from spark_groupsource.broker.requests import ZERO_UUID
from spark_groupsource.errors import ApiError
from spark_groupsource.storage.catalog import TopicEntry
from spark_groupsource.storage.log_manager import LogManager
from spark_groupsource.storage.partition import PartitionOffsets, readable_offsets
from spark_groupsource.wire.byte_pattern import BytePattern, field_pattern, request_pattern
from spark_groupsource.wire.compiled_encoder import Encode, UnusualMessage, compiled_element_encoder
from spark_groupsource.wire.frames import EncodedResponse, response_body
from spark_groupsource.wire.messages import FetchRequest, FetchResponse

_READ_COMMITTED = 1
_TopicData = FetchResponse.FetchableTopicResponse
_OFFSET_BYTES, _NUMBER_BYTES = 8, 4
_FETCH_BYTES, _PARTITION_BYTES = 2_500, 500
"""Approximate memory of a prepared fetch and of its partitions, without their parts of the request."""


@dataclass(slots=True)
class PreparedFetch:
    """A full fetch of partitions that exist.

    Attributes: `pattern`, finds the positions in a request; `leader`, of all partitions; `topics`, the entries of
    `names` at the time of preparation; `offsets`, of each partition when its entry was encoded; `entries`, the
    response, an entry without records for each partition, with the bytes up to the next one, which `following` has
    too; `head`, the bytes before them.
    """

    pattern: BytePattern
    leader: Leader
    names: list[str]
    topics: list[TopicEntry | None]
    keys: list[tuple[str, int]]
    requested: list[CachedPartition]
    offsets: list[PartitionOffsets]
    head: bytes
    entries: list[bytes]
    following: list[bytes]
    encode: Encode
    min_bytes: int
    max_bytes: int
    waits: bool
    committed: bool
    size_bytes: int

    def respond(
        self, positions: Sequence[int], partitions: LogManager, reads: PartitionReads, available: int, may_exceed: bool
    ) -> tuple[EncodedResponse, int] | None:
        """Returns the response to a request with these positions, and the bytes of its records.

        None for what `FetchManager.fetch` decides.
        """
        found = partitions.find_all(self.keys)
        offsets = readable_offsets(found)
        if offsets is None:
            return None
        if offsets != self.offsets:
            self._update(offsets)
        limit, size, parts = min(self.max_bytes, available), 0, [self.head, *self.entries]
        pending = [index for index, three in enumerate(offsets) if three[0] != positions[index]]
        if self.waits and (self.min_bytes > 1 or (self.min_bytes > 0 and not pending)):
            return None
        try:
            for index in pending:
                requested, partition = self.requested[index], found[index]
                requested.fetch_offset = positions[index]
                assert partition is not None
                entry = reads.read(partition, requested, limit - size, may_exceed and not size, self.committed)
                size += len(entry.records or b"")
                parts[1 + index] = _encoded(self.encode, entry) + self.following[index]
        except (ApiError, UnusualMessage, StructError):
            return None
        if self.waits and size < self.min_bytes:
            return None
        return EncodedResponse(parts, sum(map(len, parts))), size

    def _update(self, offsets: list[PartitionOffsets]) -> None:
        for index, (known, found) in enumerate(zip(self.offsets, offsets)):
            if known != found:
                entry = empty_entry(self.requested[index].number, *found, self.committed)
                self.entries[index] = _encoded(self.encode, entry) + self.following[index]
        self.offsets = offsets


def _encoded(encode: Encode, entry: PartitionData) -> bytes:
    parts: list[bytes] = []
    encode(entry, parts.append)
    return b"".join(parts)


def prepare_fetch(
    request: FetchRequest, version: int, body: memoryview, leader: Leader, partitions: LogManager, max_bytes: int
) -> PreparedFetch | None:
    """Returns what is known for the next requests with other positions, None if `FetchManager` has to handle them.

    `max_bytes`: the most bytes of a response.

    Raises: ApiError for an unknown topic id.
    """
    by_id = version >= TOPIC_IDS_SINCE
    rows = [(topic, row) for topic in request.topics for row in topic.partitions]
    encode = compiled_element_encoder(FetchResponse, PartitionData, version)
    is_full = request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION
    if not is_full or not rows or encode is None:
        return None
    if any(row.last_fetched_epoch >= 0 or row.current_leader_epoch not in (-1, leader.epoch) for _, row in rows):
        return None
    pattern = request_pattern(request, version, body, [row for _, row in rows], "fetch_offset", _OFFSET_BYTES)
    requested = []
    for topic, row in rows:
        name = partitions.topic_name(topic.topic_id or ZERO_UUID) if by_id else topic.topic
        requested.append(CachedPartition((name, row.partition), name, topic.topic_id if by_id else None, row))
    keys = [(each.topic or "", each.number) for each in requested]
    offsets = readable_offsets(partitions.find_all(keys))
    if pattern is None or offsets is None or len(set(keys)) < len(keys):
        return None
    committed = request.isolation_level == _READ_COMMITTED
    empty = [empty_entry(each.number, *three, committed) for each, three in zip(requested, offsets)]
    shape = _response_pattern(requested, empty, version)
    if shape is None:
        return None
    encoded = [_encoded(encode, entry) for entry in empty]
    # the number of an entry is its first field
    following = [gap[len(entry) - _NUMBER_BYTES :] for entry, gap in zip(encoded, shape.gaps[1:])]
    entries = [entry + rest for entry, rest in zip(encoded, following)]
    names = list(dict(keys))
    size_bytes = _FETCH_BYTES + len(rows) * _PARTITION_BYTES + 2 * len(body)
    return PreparedFetch(
        pattern, leader, names, partitions.entries(names), keys, requested, offsets, shape.gaps[0], entries, following,
        encode, request.min_bytes, min(request.max_bytes, max_bytes), request.max_wait_ms > 0, committed, size_bytes,
    )  # fmt: skip


def _response_pattern(
    requested: Sequence[CachedPartition], entries: Sequence[PartitionData], version: int
) -> BytePattern | None:
    """Returns the bytes of a response around the numbers of its partitions. Changes nothing."""
    topics: list[_TopicData] = []
    last: object = None
    for each, entry in zip(requested, entries):
        if each.topic != last:
            last, listed = each.topic, list[PartitionData]()
            topics.append(_TopicData(topic=each.topic or "", topic_id=each.topic_id, partitions=listed))
        listed.append(entry)
    response = FetchResponse(throttle_time_ms=0, error_code=0, session_id=NO_SESSION, responses=topics)
    return field_pattern(lambda: response_body(response, version), entries, "partition_index", _NUMBER_BYTES)
