"""Errors of fenced members, with the current generation of their group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode, GenerationMismatchError, GroupSourceError
from spark_groupsource.model import OffsetRange
from spark_groupsource.wire.messages import HeartbeatRequest

if TYPE_CHECKING:
    from spark_groupsource.client.membership.membership_values import Generation
    from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader
    from spark_groupsource.client.membership.shared_membership import SharedMembership
    from spark_groupsource.client.membership.state_machine import Membership

_log = logging.getLogger(__name__)

FIND_TIMEOUT_MS = 2_000
GENERATIONS_AHEAD = 64
"""Largest number of generations that may pass between two heartbeats of a member that is not fenced."""
_UNKNOWN = -1


class CurrentGeneration:
    """The generation of a group for the errors of several members, which is looked up once; see `find_generation`."""

    def __init__(self, cluster: ClusterClient, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._found: int | None = None

    def find(self, newer_than: int) -> int:
        """Returns the generation, -1 when it is unknown."""
        if self._found is None:
            self._found = find_generation(self._cluster, self._group_id, newer_than=newer_than)
        return self._found


def generation_mismatch(
    current: CurrentGeneration, *, group_id: str, member_id: str, generation_id: int, code: int
) -> GenerationMismatchError:
    """Returns the error for a member that received the fencing error `code`.

    Needs up to `FIND_TIMEOUT_MS` to read the group's generation from `__consumer_offsets`: error responses of the
    coordinator do not contain it.
    """
    # a static member is replaced within one generation, so there may be no newer one
    found = current.find(_UNKNOWN if code == ErrorCode.FENCED_INSTANCE_ID else generation_id)
    if code == ErrorCode.ILLEGAL_GENERATION and found <= generation_id:
        # the coordinator has a newer generation that is not in the log yet
        found = _UNKNOWN
    return GenerationMismatchError(
        group_id=group_id,
        member_id=member_id,
        generation_id=generation_id,
        current_generation=found,
        cause=FENCING_ERRORS[code],
    )


def follow_downgrade(
    cluster: ClusterClient, shared: SharedMembership, membership: Membership, sent: Generation, timeout_ms: int
) -> bool:
    """Lets a member continue in the generation that a downgrade of its group gave it.

    Args:
        sent: the generation of a request to which the response is ILLEGAL_GENERATION.

    Returns: False if the member is fenced.
    Raises: BrokerError, NetworkError.
    """
    with shared.changed:
        if not membership.can_be_downgraded(sent):
            return False
        rejected = membership.probe_request()
    found = find_downgraded_generation(cluster, rejected, timeout_ms)
    if found is None:
        return False
    with shared.changed:
        membership.follow_generation(sent, found)
    return True


def find_downgraded_generation(cluster: ClusterClient, rejected: HeartbeatRequest, timeout_ms: int) -> int | None:
    """Returns the generation of a dynamic member whose group was downgraded from Consumer to Classic.

    The coordinator gives all members the epoch of the group as their generation, and waits until each has rejoined or
    is removed, so the partitions are still those of the member. No other rebalance skips a dynamic member without
    removing it, as it does a static one.

    Source: GroupMetadataManager.convertToClassicGroup.

    Args:
        rejected: a Heartbeat to which the response is ILLEGAL_GENERATION, in the last generation that was joined.

    Returns: None if the member is fenced.
    Raises: BrokerError, NetworkError.
    """
    for generation_id in range(rejected.generation_id + 1, rejected.generation_id + GENERATIONS_AHEAD + 1):
        request = HeartbeatRequest(
            group_id=rejected.group_id, generation_id=generation_id, member_id=rejected.member_id
        )
        code = cluster.call_coordinator(rejected.group_id, request, timeout_ms).error_code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return generation_id
        if code != ErrorCode.ILLEGAL_GENERATION:
            return None
    return None


def find_generation(
    cluster: ClusterClient, group_id: str, *, newer_than: int = _UNKNOWN, timeout_ms: int = FIND_TIMEOUT_MS
) -> int:
    """Reads the generation of a group from its last record in `__consumer_offsets`; -1 when it is unknown.

    The coordinator appends a generation with its assignment, or when the group becomes empty, so the log is read again
    until it has a generation above `newer_than`, at most for `timeout_ms`. For error messages only: errors of this
    function itself are logged at debug level.
    """
    # not at the start of every read task
    from spark_groupsource.client.membership.offsets_topic import OffsetsTopicReader

    clock, backoff_ms = cluster.clock, cluster.settings.retry_backoff_ms
    reader = OffsetsTopicReader(cluster, group_id, timeout_ms)
    try:
        partition = reader.find_partition()
        if partition is None:
            return _UNKNOWN
        end = reader.log_end_offset(partition)
        windows = (_last_generation(reader, window, group_id) for window in reader.windows(partition, end))
        generation = next((found for found in windows if found is not None), _UNKNOWN)
        while generation <= newer_than and reader.left_ms > backoff_ms:
            clock.sleep_ms(backoff_ms)
            latest = reader.log_end_offset(partition)
            later = _last_generation(reader, OffsetRange(partition, end, latest), group_id)
            generation, end = generation if later is None else later, latest
        return generation
    except GroupSourceError as error:
        # a member may have no READ permission on the topic; the caller raises the more important error
        _log.debug("[group=%s] Cannot read the current generation: %s", group_id, error)
        return _UNKNOWN


def _last_generation(reader: OffsetsTopicReader, window: OffsetRange, group_id: str) -> int | None:
    """Returns the generation of the group's last record in a range; -1 for a deleted group, None without a record."""
    from spark_groupsource.wire.group_records import GroupKey, decode_group_value

    generation: int | None = None
    for key, value in reader.records(window):
        if key == GroupKey(group_id):
            generation = _UNKNOWN if value is None else decode_group_value(value).generation_id
    return generation
