"""Tokens of requests whose response is sent in another way."""

from __future__ import annotations

from typing import NamedTuple

from spark_groupsource.broker.coordinators.repeated_commit import PreparedCommit
from spark_groupsource.group import GroupRequest
from spark_groupsource.wire.frames import AnyResponse
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


class RepeatedToken(NamedTuple):
    """Token of a repeated commit, whose response is known unless the append fails."""

    token: int
    prepared: PreparedCommit

    def response(self, found: ApiMessage) -> AnyResponse:
        """Returns what is sent for a response of the coordinator."""
        prepared = self.prepared
        return prepared.encoded if found is prepared.form.response else prepared.complete(found)
