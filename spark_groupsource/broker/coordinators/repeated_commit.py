"""Commits that a connection repeats, prepared without their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from spark_groupsource.group import CommitForm
from spark_groupsource.storage.catalog import TopicEntry
from spark_groupsource.wire.byte_pattern import BytePattern
from spark_groupsource.wire.frames import EncodedResponse
from spark_groupsource.wire.messages import ApiMessage


@dataclass(slots=True)
class PreparedCommit:
    """A commit of existing partitions.

    Attributes: `pattern`, finds the offsets in a request; `topics`, the entries of `names` at the time of preparation;
    `encoded`, the response of `form`; `complete`, adds topic ids to another response; `shard`, the partition of
    `__consumer_offsets`, of `shard_count`.
    """

    pattern: BytePattern
    form: CommitForm
    names: list[str]
    topics: list[TopicEntry | None]
    encoded: EncodedResponse
    complete: Callable[[Any], ApiMessage]
    shard: int
    shard_count: int
    size_bytes: int
