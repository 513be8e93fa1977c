"""Negotiation of API versions."""

from __future__ import annotations

import pytest

from spark_groupsource.errors import BrokerError, UnsupportedVersionError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.messages import ApiVersionsResponse
from spark_groupsource.wire.versions import broker_ranges_of, fallback_version, negotiate

JOIN_GROUP, API_VERSIONS = APIS[ApiKey.JOIN_GROUP], APIS[ApiKey.API_VERSIONS]


def response(error_code=0, **ranges):
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=int(key[1:]), min_version=low, max_version=high)
            for key, (low, high) in ranges.items()
        ],
    )


@pytest.mark.parametrize(
    "broker, cap, floor, version",
    [
        ((0, 9), None, 0, 9),
        ((0, 5), None, 0, 5),
        ((2, 99), None, 0, 9),
        ((0, 9), 7, 0, 7),
        ((0, 9), 99, 0, 9),
        ((0, 5), None, 5, 5),
        ((0, 0), None, 0, 0),
    ],
)
def test_the_highest_common_version_is_negotiated(broker, cap, floor, version):
    assert negotiate(JOIN_GROUP, {11: broker}, cap=cap, floor=floor) == version


@pytest.mark.parametrize(
    "ranges, cap, floor, reason",
    [
        ({}, None, 0, "JoinGroup failed: the broker does not support API 11"),
        ({11: (10, 12)}, None, 0, "supports versions 10 to 12, required is 0 to 9"),
        ({11: (0, 4)}, None, 5, "required is 5 to 9.*remove kafka.group.instance.id"),
        ({11: (6, 9)}, 5, 0, "required is 0 to 5"),
    ],
)
def test_negotiation_fails_without_a_common_version(ranges, cap, floor, reason):
    with pytest.raises(UnsupportedVersionError, match=reason):
        negotiate(JOIN_GROUP, ranges, cap=cap, floor=floor)


def test_ranges_of_a_response():
    assert broker_ranges_of(response(_11=(0, 9), _18=(0, 4))) == {11: (0, 9), 18: (0, 4)}


def test_error_codes_other_than_unsupported_version_raise():
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        broker_ranges_of(response(31))
    assert broker_ranges_of(response(35, _18=(0, 3))) == {18: (0, 3)}


def test_fallback_version_of_a_response():
    assert fallback_version(API_VERSIONS, response(_18=(0, 4))) is None
    assert fallback_version(API_VERSIONS, response(35, _18=(0, 3))) == 3
    assert fallback_version(API_VERSIONS, response(35)) == 0
