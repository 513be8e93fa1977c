"""Topics of the subscriptions of a group's members."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Collection, Iterable

from spark_groupsource.wire.consumer_protocol import decode_subscription

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_VERSION_BYTES = 2
_MAX_COST, _LIST_COST = 20_000, 5  # of a topic: 1; decoding takes about 10 ms
_COMPARED_LISTS = 8
# bounds of the memory of cached subscriptions, which clients choose
_MAX_CACHED_BYTES, _CACHED_SUBSCRIPTIONS = 512, 256


def subscribed_topics(subscriptions: Collection[bytes]) -> frozenset[str] | None:
    """Returns the topics of subscriptions of the consumer protocol, None if they are too many to decode.

    Subscriptions of the same topics differ in owned partitions and user data: a list of topics is decoded once.

    Raises: RemoteProtocolError if a subscription is invalid.
    """
    if len(subscriptions) == 1:
        (subscription,) = subscriptions
        if len(subscription) <= _MAX_CACHED_BYTES:
            return _cached_topics(subscription)
    return _topics_of_all(subscriptions)


def _topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    topics: set[str] = set()
    lists: list[bytes] = []  # encoded, with their number of topics
    cost = 0
    for metadata in subscriptions:
        if any(metadata.startswith(known, _VERSION_BYTES) and _ends_valid(metadata, len(known)) for known in lists):
            continue
        cost += _LIST_COST + max(_topic_count(metadata), 0)
        if cost > _MAX_COST:
            return None
        found, size = _plain_topics(metadata)
        if size:
            lists = [metadata[_VERSION_BYTES : _VERSION_BYTES + size], *lists[: _COMPARED_LISTS - 1]]
            topics.update(found)
        else:
            topics.update(_decoded_topics(metadata))
    return frozenset(topics)


@lru_cache(maxsize=_CACHED_SUBSCRIPTIONS)  # many groups have one member or equal ones, and the same topics
def _cached_topics(subscription: bytes) -> frozenset[str] | None:
    return _topics_of_all((subscription,))


def _topic_count(metadata: bytes) -> int:
    end = _VERSION_BYTES + _INT32.size
    return int(_INT32.unpack_from(metadata, _VERSION_BYTES)[0]) if len(metadata) >= end else 0


def _decoded_topics(metadata: bytes) -> Iterable[str]:
    # as Kafka's coordinator, decodes version 0 of every version: the topics of newer versions are known too
    if len(metadata) >= _VERSION_BYTES and not metadata[0] & 0x80:
        metadata = b"\x00\x00" + metadata[_VERSION_BYTES:]
    return decode_subscription(metadata).topics


def _ends_valid(metadata: bytes, list_bytes: int) -> bool:
    """Whether the version is not negative, and the user data after the list of topics are complete."""
    position = _VERSION_BYTES + list_bytes
    if metadata[0] & 0x80 or len(metadata) < position + _INT32.size:
        return False
    (user_data_bytes,) = _INT32.unpack_from(metadata, position)
    return bool(-1 <= user_data_bytes <= len(metadata) - position - _INT32.size)


def _plain_topics(metadata: bytes) -> tuple[list[str], int]:
    """Returns the topics of a subscription and the bytes of their list, 0 if it is invalid."""
    topics = []
    try:
        (count,) = _INT32.unpack_from(metadata, _VERSION_BYTES)
        position = _VERSION_BYTES + _INT32.size
        for _ in range(count):
            start = position + _INT16.size
            position = start + _INT16.unpack_from(metadata, position)[0]
            if not start <= position <= len(metadata):
                return [], 0
            topics.append(str(metadata[start:position], "utf-8"))
    except (struct.error, UnicodeDecodeError):
        return [], 0
    size = position - _VERSION_BYTES
    return (topics, size) if count >= 0 and _ends_valid(metadata, size) else ([], 0)
