"""Tokens of requests whose response is sent in another way."""

from __future__ import annotations

from typing import NamedTuple

from spark_groupsource.group import GroupRequest
from spark_groupsource.wire.messages import ApiMessage


class FanOut:
    """A request that was split over several shards, and the responses so far."""

    def __init__(self, token: object, request: GroupRequest, api_version: int, partitions: list[int]) -> None:
        self.token = token
        self.request = request
        self.api_version = api_version
        self.responses: dict[int, ApiMessage | None] = dict.fromkeys(partitions)


class ShardToken(NamedTuple):
    """Token of one shard's part of a request that was split."""

    fan_out: FanOut
    partition: int


class PartToken(NamedTuple):
    """Token of one part of a request that is handled in steps."""

    responses: list[ApiMessage]
