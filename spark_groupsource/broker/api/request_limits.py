"""Largest requests by API: frame bytes and array elements.

Apache Kafka has `socket.request.max.bytes` only, because decoding costs it less: here it takes about 3 microseconds and
160 bytes per element.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping, NamedTuple

from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.wire.api_keys import ApiKey

INLINE_ELEMENTS = 200
"""A request with at most this many elements is decoded and handled when it is received."""
SLICE_ELEMENTS = 1_000
"""A request with at most this many elements is decoded in one time slice, a larger one in the worker thread."""
MAX_CHANGES = 10_000
"""Partitions, settings or ACLs that a request changes: Kafka's `QuorumController.MAX_RECORDS_PER_USER_OP`."""


class RequestLimit(NamedTuple):
    """Largest request of one API. `max_bytes`: None for socket.request.max.bytes."""

    max_bytes: int | None
    max_elements: int


_RECORDS = RequestLimit(None, 40_000)
# a broker has 12,000 partitions by default, and a list of partitions of as many topics has twice as many elements
_LISTS = RequestLimit(8_388_608, 40_000)
# member metadata and assignments are stored in one record of the group
_MEMBERS = RequestLimit(8_388_608, 10_000)
_SINGLE = RequestLimit(262_144, 1_000)
# the offsets of one request are stored in one batch, which has at most 1 MB by default
_OFFSETS = RequestLimit(8_388_608, 10_000)

_SINGLE_APIS = (
    ApiKey.HEARTBEAT,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.LIST_GROUPS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
)

_LIMITS: Mapping[int, RequestLimit] = MappingProxyType(
    {
        **{int(key): _SINGLE for key in _SINGLE_APIS},
        int(ApiKey.PRODUCE): _RECORDS,
        int(ApiKey.OFFSET_COMMIT): _OFFSETS,
        int(ApiKey.TXN_OFFSET_COMMIT): _OFFSETS,
        int(ApiKey.JOIN_GROUP): _MEMBERS,
        int(ApiKey.SYNC_GROUP): _MEMBERS,
        int(ApiKey.LEAVE_GROUP): _MEMBERS,
    }
)


SMALLEST_LIMIT = min(limit.max_bytes for limit in (*_LIMITS.values(), _LISTS) if limit.max_bytes)
"""A request of any API may have so many bytes."""


def request_limit(api_key: int) -> RequestLimit:
    """Returns the largest request of an API; an API without a row takes a list of names, ids or partitions."""
    return _LIMITS.get(api_key, _LISTS)


def check_changes(count: int, unit: str) -> None:
    """Raises: ApiError (POLICY_VIOLATION, as in Kafka) if a request changes more than `MAX_CHANGES`."""
    if count > MAX_CHANGES:
        text = f"A request changes at most {MAX_CHANGES:,} {unit}, got {count:,}. Change the others in further ones."
        raise ApiError(ErrorCode.POLICY_VIOLATION, text)
