"""Requests whose responses are small.

They are handled while the memory of all responses is used, so that a client that reads its responses does not wait for
clients that do not.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable, Mapping

from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import SMALL_RESPONSE_BYTES
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import ApiMessage, MetadataRequest, OffsetFetchRequest

_OFFSET_BYTES, _PARTITION_BYTES = 64, 64
_GROUPS_SINCE = 8

# a request of these may have a response that is much larger than itself
LARGE_RESPONSES = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
    }
)


def _offset_fetch_bytes(broker: Broker, api_version: int, request: OffsetFetchRequest) -> int:
    size = 0
    for group in request.groups if api_version >= _GROUPS_SINCE else [request]:
        stored = broker.group_coordinator.committed_offsets(group.group_id)
        size += len(stored) * _OFFSET_BYTES
        if size > SMALL_RESPONSE_BYTES:
            break
        size += sum(len(value.metadata) for value in stored.values())
    return size


def _metadata_bytes(broker: Broker, api_version: int, request: MetadataRequest) -> int:
    topics = broker.partitions.topics
    if request.topics is None or (api_version == 0 and not request.topics):
        return len(broker.partitions) * _PARTITION_BYTES
    size = 0
    for topic in request.topics:
        if topic.name is None:  # has an id
            return len(broker.partitions) * _PARTITION_BYTES
        size += topics[topic.name].partition_count * _PARTITION_BYTES if topic.name in topics else 0
    return size


_BYTES_OF_API: Mapping[int, Callable[[Broker, int, Any], int]] = MappingProxyType(
    {int(ApiKey.OFFSET_FETCH): _offset_fetch_bytes, int(ApiKey.METADATA): _metadata_bytes}
)
PREDICTABLE_RESPONSES = frozenset(_BYTES_OF_API)
"""APIs of `LARGE_RESPONSES` whose requests show the size of their responses."""


def has_small_response(broker: Broker, api_key: int, api_version: int, request: ApiMessage) -> bool:
    """Returns whether the response to a request of one of `PREDICTABLE_RESPONSES` is small."""
    return _BYTES_OF_API[api_key](broker, api_version, request) <= SMALL_RESPONSE_BYTES
