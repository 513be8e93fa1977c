"""Negotiation of API versions.

Source: KIP-35 (ApiVersions), KIP-511 (the response to an unsupported ApiVersions request has version 0).
"""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.errors import BrokerError, ErrorCode, UnsupportedVersionError
from spark_groupsource.wire.apis import Api
from spark_groupsource.wire.messages import ApiVersionsResponse

VersionRanges = Mapping[int, tuple[int, int]]
"""API key -> lowest and highest version"""


def negotiate(api: Api, broker_ranges: VersionRanges, *, cap: int | None = None, floor: int = 0) -> int:
    """Returns the highest version of `api` that the broker and this package support.

    Args:
        broker_ranges: the versions of the broker; see `broker_ranges_of`.
        cap: highest version that the caller supports; None for no limit.
        floor: lowest version with the fields that the caller needs (5 for a JoinGroup of a static member).

    Raises: UnsupportedVersionError if there is no common version.
    """
    if api.key not in broker_ranges:
        raise UnsupportedVersionError(
            f"{api.name} failed: the broker does not support API {int(api.key)}. Use a broker that does."
        )
    broker_low, broker_high = broker_ranges[api.key]
    low = max(api.min_version, floor)
    high = api.max_version if cap is None else min(api.max_version, cap)
    version = min(high, broker_high)
    if version < max(low, broker_low):
        raise UnsupportedVersionError(
            f"{api.name} failed: the broker supports versions {broker_low} to {broker_high}, required is {low} to "
            f"{high}. Use a newer broker" + (f", or remove {_setting(api)}." if floor else ".")
        )
    return version


def _setting(api: Api) -> str:
    is_of_member = api.name in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit")
    return "kafka.group.instance.id" if is_of_member else "the setting that needs the newer version"


def broker_ranges_of(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    """Returns the API versions of a broker.

    A response with UNSUPPORTED_VERSION has the versions of ApiVersions only, or none; the caller retries with
    `fallback_version`.

    Raises: BrokerError for any other error code.
    """
    if response.error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
        raise BrokerError(response.error_code, "ApiVersions request")
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}


def fallback_version(api: Api, response: ApiVersionsResponse) -> int | None:
    """Returns the version at which to send ApiVersions again, or None if `response` is complete.

    A broker that does not support the requested version responds with UNSUPPORTED_VERSION at version 0, and since
    KIP-511 includes the versions of ApiVersions.
    """
    if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
        return None
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    return negotiate(api, ranges) if api.key in ranges else 0
