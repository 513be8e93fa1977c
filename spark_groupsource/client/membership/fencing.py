"""Errors of fenced members, with the current generation of their group."""

from __future__ import annotations

import logging
from dataclasses import replace

from spark_groupsource.client.cluster.client import EARLIEST, LATEST, Cluster
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode, GenerationMismatchError, GroupSourceError
from spark_groupsource.group.request_splitting import coordinator_partition
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.group_records import GroupKey, decode_group_value, decode_key

_log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
FIND_TIMEOUT_MS = 2_000
# number of records at the end of the log that are read first; each further attempt reads ten times as many
_FIRST_RECORDS = 1_000
_UNKNOWN = -1


def generation_mismatch(
    cluster: Cluster, *, group_id: str, member_id: str, generation_id: int, code: int
) -> GenerationMismatchError:
    """Returns the error for a member that received the fencing error `code`.

    Takes up to `FIND_TIMEOUT_MS` to read the group's generation from `__consumer_offsets`: error responses of the
    coordinator do not contain it.
    """
    # a static member is replaced within one generation, so there may be no newer one
    newer_than = _UNKNOWN if code == ErrorCode.FENCED_INSTANCE_ID else generation_id
    current = find_generation(cluster, group_id, newer_than=newer_than)
    if code == ErrorCode.ILLEGAL_GENERATION and current <= generation_id:
        # the coordinator has a newer generation that is not in the log yet
        current = _UNKNOWN
    return GenerationMismatchError(
        group_id=group_id,
        member_id=member_id,
        generation_id=generation_id,
        current_generation=current,
        cause=FENCING_ERRORS[code],
    )


def find_generation(
    cluster: Cluster, group_id: str, *, newer_than: int = _UNKNOWN, timeout_ms: int = FIND_TIMEOUT_MS
) -> int:
    """Reads the generation of a group from its last record in `__consumer_offsets`; -1 when it is unknown.

    The coordinator appends a generation with its assignment, or when the group becomes empty, so the log is read again
    until it has a generation above `newer_than`, at most for `timeout_ms`. For error messages only: errors of this
    function itself are logged at debug level.
    """
    clock = cluster.clock
    deadline_ms = clock.now_ms() + timeout_ms

    def left_ms() -> int:
        return max(deadline_ms - clock.now_ms(), 1)

    def last_generation(tail: OffsetRange) -> int | None:
        # every request of the fetcher ends at the deadline
        settings = replace(
            cluster.settings,
            isolation_level="read_uncommitted",
            default_api_timeout_ms=left_ms(),
            request_timeout_ms=left_ms(),
            fetch_max_wait_ms=min(100, left_ms()),
        )
        return _last_generation(cluster, settings, tail, group_id)

    try:
        partitions = cluster.metadata([OFFSETS_TOPIC], timeout_ms=left_ms()).partitions_of(OFFSETS_TOPIC)
        if not partitions:
            return _UNKNOWN
        tp = TopicPartition(OFFSETS_TOPIC, coordinator_partition(group_id, len(partitions)))
        start = cluster.list_offsets({tp: EARLIEST}, timeout_ms=left_ms())[tp].offset
        end = cluster.list_offsets({tp: LATEST}, read_committed=False, timeout_ms=left_ms())[tp].offset
        found, count = None, _FIRST_RECORDS
        while found is None and clock.now_ms() < deadline_ms:
            found = last_generation(OffsetRange(tp, max(start, end - count), end))
            if end - count <= start:
                break
            count *= 10
        generation = _UNKNOWN if found is None else found
        backoff_ms = cluster.settings.retry_backoff_ms
        while generation <= newer_than and clock.now_ms() + backoff_ms < deadline_ms:
            clock.sleep_ms(backoff_ms)
            latest = cluster.list_offsets({tp: LATEST}, read_committed=False, timeout_ms=left_ms())[tp].offset
            later = last_generation(OffsetRange(tp, end, latest))
            generation, end = generation if later is None else later, latest
        return generation
    except GroupSourceError as error:
        # a member may have no READ permission on the topic; the caller raises the more important error
        _log.debug("[group=%s] Cannot read the current generation: %s", group_id, error)
        return _UNKNOWN


def _last_generation(cluster: Cluster, settings: ClientSettings, tail: OffsetRange, group_id: str) -> int | None:
    """Returns the generation of the group's last record in a range; -1 for a deleted group, None without a record."""
    generation: int | None = None
    for block in PartitionFetcher(cluster, settings).fetch_blocks([tail]):
        for header in iter_batches(block.data):
            if header.is_control:
                continue
            for record in decode_records(block.data, header):
                if record.key is not None and decode_key(record.key) == GroupKey(group_id):
                    value = record.value
                    generation = _UNKNOWN if value is None else decode_group_value(value).generation_id
    return generation
