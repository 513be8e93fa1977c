"""Handler of commits that a client repeats with other offsets.

The offsets are read from the bytes of the request; whatever else the commit needs was prepared from an earlier one. An
error, and a commit of partitions without offsets, is left to the handler of all commits.
"""

from __future__ import annotations

from functools import partial
from typing import Callable

from spark_groupsource.broker.api.group_parts import with_topics
from spark_groupsource.broker.api.groups import (
    TOPIC_ID_VERSION,
    resolve_commit_topics,
    split_by_existence,
    with_topic_ids,
)
from spark_groupsource.broker.coordinators.commit_batch import commit_form
from spark_groupsource.broker.coordinators.repeated_commit import PreparedCommit
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import DELAYED, ApiRequestContext, ResponseAction
from spark_groupsource.group import accepted_commit_response, coordinator_partition
from spark_groupsource.wire.byte_pattern import request_pattern
from spark_groupsource.wire.frames import EncodedResponse, response_body
from spark_groupsource.wire.messages import OffsetCommitRequest, OffsetCommitResponse

_Topic = OffsetCommitRequest.OffsetCommitRequestTopic
_NO_RETENTION = -1
_OFFSET_BYTES = 8
_COMMIT_BYTES, _PARTITION_BYTES = 3_500, 700
"""Approximate memory of a prepared commit and of its partitions, without names and records."""


def repeated_commit(
    broker: Broker, context: ApiRequestContext, body: memoryview, decode: Callable[[], OffsetCommitRequest]
) -> ResponseAction | None:
    """Commits offsets; None: see `groups.offset_commit`."""
    coordinator, client = broker.group_coordinator, (context.connection_id, context.api_version)
    found = coordinator.repeated_commits.find(client, body, partial(_prepare, broker, context, body, decode))
    if found is None:
        return None
    prepared, offsets = found
    if broker.partitions.entries(prepared.names) != prepared.topics:
        coordinator.repeated_commits.drop(client)
        return None
    return DELAYED if coordinator.repeat_commit(context, prepared, offsets) else None


def _prepare(
    broker: Broker, context: ApiRequestContext, body: memoryview, decode: Callable[[], OffsetCommitRequest]
) -> PreparedCommit | None:
    request, by_id, version = decode(), context.api_version >= TOPIC_ID_VERSION, context.api_version
    topics, unknown = resolve_commit_topics(broker, request.topics) if by_id else (list(request.topics), [])
    _, missing = split_by_existence(broker, topics, _Topic)
    shard_count = broker.group_coordinator.shards.partition_count
    is_expiring = request.retention_time_ms != _NO_RETENTION and 2 <= version <= 4
    if unknown or missing or is_expiring or not shard_count or not all(topic.partitions for topic in topics):
        return None
    rows = [row for topic in request.topics for row in topic.partitions]
    pattern = request_pattern(request, version, body, rows, "committed_offset", _OFFSET_BYTES)
    form = commit_form(with_topics(request, topics))
    if pattern is None or form is None:
        return None

    def complete(response: OffsetCommitResponse) -> OffsetCommitResponse:
        if by_id:
            response.topics = with_topic_ids(broker, response.topics)
        return response

    response = complete(accepted_commit_response(form.request))
    answer = response_body(response, version)
    encoded = EncodedResponse([answer], len(answer))
    shard = coordinator_partition(request.group_id, shard_count)
    names = list(dict(form.columns.partitions))
    # texts of the decoded request have up to four bytes per character
    size_bytes = _COMMIT_BYTES + len(rows) * _PARTITION_BYTES + 6 * len(body) + 2 * form.records.size
    return PreparedCommit(
        pattern, form, names, broker.partitions.entries(names), encoded, complete, shard, shard_count, size_bytes
    )  # fmt: skip
