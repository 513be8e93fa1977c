"""Which version of an API two sides speak.

Knows the answer to ApiVersions; sends nothing.

Source: KIP-35 (ApiVersions), KIP-511 (an answer to a version the broker does not know is version 0).
"""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.errors import BrokerError, ErrorCode, UnsupportedVersionError
from spark_groupsource.wire.apis import Api
from spark_groupsource.wire.messages import Message

VersionRanges = Mapping[int, tuple[int, int]]
"""api key -> lowest and highest version"""


def negotiate(api: Api, broker_ranges: VersionRanges, *, cap: int | None = None, floor: int = 0) -> int:
    """The highest version of `api` that the broker and this package share.

    Args:
        broker_ranges: what the broker advertised; see `broker_ranges_of`.
        cap: highest version the caller wants; None for no bound.
        floor: lowest version that can say what the caller has to say (5 for a JoinGroup of a static member).

    Raises: UnsupportedVersionError naming both ranges when they do not meet.
    """
    if api.key not in broker_ranges:
        raise UnsupportedVersionError(f"the broker does not serve {api.name} (API {api.key}); use a broker that does")
    broker_low, broker_high = broker_ranges[api.key]
    low = max(api.min_version, floor)
    high = api.max_version if cap is None else min(api.max_version, cap)
    version = min(high, broker_high)
    if version < max(low, broker_low):
        raise UnsupportedVersionError(
            f"{api.name}: the broker serves versions {broker_low} to {broker_high}, needed is one of {low} to {high}; "
            "use a newer broker" + (", or leave out the setting that needs the newer version" if floor else "")
        )
    return version


def broker_ranges_of(response: Message) -> dict[int, tuple[int, int]]:
    """What an ApiVersionsResponse advertises: api key -> (lowest, highest version).

    UNSUPPORTED_VERSION is no failure here: such an answer still names the versions of ApiVersions itself, or
    nothing at all; the caller then asks again with `fallback_version`.

    Raises: BrokerError for every other error code.
    """
    if response.error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
        raise BrokerError(response.error_code, "ApiVersions")
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}


def fallback_version(api: Api, response: Message) -> int | None:
    """The version at which to send ApiVersions again, or None when `response` is already a full answer.

    A broker older than the version asked for answers UNSUPPORTED_VERSION in the form of version 0, and since
    KIP-511 says there which versions it has.
    """
    if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
        return None
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    return negotiate(api, ranges) if api.key in ranges else 0
