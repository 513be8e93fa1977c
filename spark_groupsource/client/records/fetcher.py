"""Fetcher of planned offset ranges from several partitions and leaders.

It returns blocks of record batches, which the caller decodes. Each leader has at most one outstanding request, which is
sent before the previous response is returned, so that the broker works while the caller decodes. Memory: one response
for each leader, of about 8 MiB, and at most about twice fetch.max.bytes from all leaders together.

A response without records is no evidence that there are none: a broker sends one while a read from tiered storage takes
longer than its maximum wait. Offsets are skipped where a later batch follows, or where the topic is compacted, which
excludes tiered storage.

Source: KIP-74 (bounded responses, an incomplete last batch), KIP-392 (followers), KIP-98 (aborted transactions),
KIP-219 (throttling by quotas), KIP-320 (leader epochs), KIP-405 (tiered storage), KIP-516 (topic ids).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from spark_groupsource.client.cluster.cluster_client import (
    EARLIEST,
    LATEST,
    UNKNOWN_TOPIC_TIMEOUT_MS,
    ClusterClient,
    ClusterMetadata,
)
from spark_groupsource.client.cluster.configs import is_compacted
from spark_groupsource.client.cluster.error_rules import FETCH, Action, is_outage
from spark_groupsource.client.network.broker_connection import BrokerConnection, InFlight
from spark_groupsource.client.network.outage import Outage
from spark_groupsource.client.records.partition_fetch import (
    FetchedBlock,
    FetchSize,
    PartitionData,
    PartitionState,
    fetch_request,
    highest_fetch_version,
    partitions_of,
    record_bytes,
    response_bytes,
)
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address
from spark_groupsource.errors import (
    BrokerError,
    DataLossError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from spark_groupsource.model import Node, OffsetRange, TopicPartition, bounded_names
from spark_groupsource.wire.messages import FetchResponse

__all__ = ["FetchedBlock", "PartitionFetcher"]

_log = logging.getLogger(__name__)

_HINTS: Mapping[int, str] = {
    ErrorCode.CORRUPT_MESSAGE: (
        "The broker's log is damaged there; the log file of the broker names the position. Start after it."
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Grant the user READ on the topic.",
}
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# number of responses without records after which the rest of a readable range of a compacted topic is skipped
_EMPTY_RESPONSES_FOR_GAP = 2
_THROTTLED_BY_CLIENT_SINCE = 8
# of one response; the brokers' windows for quotas have 11 s by default
_LONG_THROTTLE_MS = 5_000


@dataclass
class _Leader:
    """One broker with its pooled connection, outstanding request, and partitions in the order of the next request.

    `throttled_until_ms`: the broker has a quota and processes no request before.
    """

    address: Address
    states: list[PartitionState]
    connection: BrokerConnection | None = None
    sent: InFlight[FetchResponse] | None = None
    throttled_until_ms: int = 0


class PartitionFetcher:
    """Fetches ranges over the connections of one `ClusterClient`; one call of `fetch_blocks` at a time.

    Args:
        topic_ids: topic -> id as text of the topic that is read; where it is missing, that of the first metadata.
        leader_epochs: leader epoch in which each range was in the log. If the leader has changed since, the range is
            validated before it is read (KIP-320).
        outage: how long to wait for leaders without progress; None for default.api.timeout.ms.
        check: called while no record arrives; its exception ends the fetch.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ClientSettings | None = None,
        *,
        topic_ids: Mapping[str, str] | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        outage: Outage | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings or cluster.settings
        self._known_ids = dict(topic_ids or {})
        self._topic_ids = {topic: UUID(text) for topic, text in self._known_ids.items()}
        self._valid_epochs = dict(leader_epochs or {})
        self._leaders: dict[Address, _Leader] = {}
        self._awaiting_leader: list[PartitionState] = []
        self._refresh_metadata = False
        self._refreshed_ms = 0
        self._is_throttling_reported = False
        self._compacted: dict[str, bool] = {}
        # leader -> number of connections that were not opened in time since the last one that was
        self._unopened: dict[Address, int] = {}
        self._outage = outage or Outage.bounded(cluster.clock, self._settings.default_api_timeout_ms)
        self._check = check
        self._sizes: dict[Address, FetchSize] = {}

    def fetch_blocks(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedBlock]:
        """Yields blocks until every range is complete; blocks of a partition are in order of offsets.

        Moved leaders and broken connections are retried. The time for which brokers throttle this client counts in no
        timeout.

        Raises: BrokerError and NetworkError without progress: for as long as an outage may last where a partition has
            no leader or none that can be reached, for default.api.timeout.ms after other errors, or at once if the
            error is not retriable; DataLossError if the brokers have returned no record for this time;
            CorruptRecordError on malformed record batches.
        """
        self._awaiting_leader = [
            PartitionState(
                r.topic_partition,
                r.start,
                r.end,
                self._topic_ids.get(r.topic_partition.topic),
                valid_epoch=self._valid_epochs.get(r.topic_partition, -1),
            )
            for r in ranges
            if r.start < r.end
        ]
        self._cluster.add_known_partitions((r.topic_partition for r in ranges), self._known_ids)
        self._leaders = {}
        self._refresh_metadata = False
        longest_ms = self._settings.default_api_timeout_ms
        retry = self._cluster.retry(longest_ms)
        try:
            while self._awaiting_leader or self._leaders:
                self._outage.begin()
                blocks, failure = self._assign_leaders(self._outage.left_ms(retry.remaining_ms))
                yield from blocks
                has_progress = bool(blocks)
                for leader in list(self._leaders.values()):
                    blocks, problem = self._receive(leader)
                    failure = problem or failure
                    has_progress = has_progress or bool(blocks)
                    # sent before the blocks are returned: the broker prepares the next response meanwhile
                    failure = self._send(leader) or failure
                    yield from blocks
                self._refresh_metadata = self._refresh_metadata or failure is not None
                if has_progress:
                    retry = self._cluster.retry(longest_ms)
                    self._outage.ended()
                    continue
                self._check()
                if failure is not None and is_outage(failure):
                    if self._outage.is_over_limit(failure):
                        raise retry.visible(failure)
                    # no broker could respond meanwhile: the attempts count, the time does not
                    retry.backoff(failure)
                elif failure is not None:
                    retry.backoff_or_raise(failure)
                elif retry.is_expired:
                    raise self._no_record()
                else:
                    retry.extend(self._wait_while_throttled())
        finally:
            for leader in self._leaders.values():
                self._release(leader)
            self._leaders = {}

    # -- leaders -----------------------------------------------------------------------------------------------------

    def _assign_leaders(self, timeout_ms: int) -> tuple[list[FetchedBlock], GroupSourceError | None]:
        """Finds the leaders of partitions without one and sends the next requests.

        Returns the blocks of partitions that were deleted, recreated or truncated, and the last retriable error.
        """
        failure: GroupSourceError | None = None
        blocks: list[FetchedBlock] = []
        awaiting, self._awaiting_leader = self._awaiting_leader, []
        if awaiting and self._is_refresh_early():
            self._awaiting_leader = awaiting
        elif awaiting:
            try:
                view = self._describe({state.topic_partition.topic for state in awaiting}, timeout_ms)
            except NetworkError as error:
                self._awaiting_leader = awaiting
                return [], error
            failure = self._find_leaders(awaiting, view, blocks, timeout_ms)
        for leader in list(self._leaders.values()):
            failure = self._send(leader) or failure
        return blocks, failure

    def _is_refresh_early(self) -> bool:
        """True while other leaders are read and the metadata were requested a moment ago."""
        age_ms = self._cluster.clock.now_ms() - self._refreshed_ms
        return self._refresh_metadata and bool(self._leaders) and age_ms < self._settings.retry_backoff_ms

    def _describe(self, topics: set[str], timeout_ms: int) -> ClusterMetadata:
        refresh = self._refresh_metadata
        view = self._cluster.metadata(topics, refresh=refresh, timeout_ms=timeout_ms)
        if refresh:
            self._refresh_metadata = False
            self._refreshed_ms = self._cluster.clock.now_ms()
        return view

    def _find_leaders(
        self, awaiting: list[PartitionState], view: ClusterMetadata, blocks: list[FetchedBlock], timeout_ms: int
    ) -> GroupSourceError | None:
        """Assigns the partitions to their leaders; adds the blocks of partitions that cannot be read to `blocks`."""
        failure: GroupSourceError | None = None
        found: list[tuple[PartitionState, Node]] = []
        for state in awaiting:
            try:
                self._check_topic_id(state, view)
                leader = view.leader(state.topic_partition)
                # one that is cut off from its controller has an earlier epoch, and rejects the later one
                known = -1 if state.topic_id is None else state.valid_epoch
                state.leader_epoch = max(view.leader_epoch(state.topic_partition), known)
                found.append((state, view.nodes.get(state.replica) or leader))
            except BrokerError as error:
                if error.code in _UNKNOWN and self._is_deleted(state):
                    blocks.append(state.failed(error.code))
                else:
                    failure = error
                    self._retry_leader(state, error)
        try:
            blocks += self._validate([state for state, _ in found], timeout_ms)
        except (BrokerError, NetworkError) as error:
            if isinstance(error, BrokerError) and not error.retriable:
                raise
            self._awaiting_leader += [state for state, _ in found]
            return error
        for state, node in found:
            address = self._cluster.node_address(node)
            self._leaders.setdefault(address, _Leader(address, [])).states.append(state)
        return failure

    @staticmethod
    def _check_topic_id(state: PartitionState, view: ClusterMetadata) -> None:
        """Raises BrokerError if the topic of this name has another id than the topic of the range."""
        topic = view.topics.get(state.topic_partition.topic)
        topic_id: UUID | None = topic.topic_id if topic and topic.topic_id and topic.topic_id.int else None
        if state.topic_id is None:
            state.topic_id = topic_id
        elif topic_id is not None and topic_id != state.topic_id:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, f"Leader lookup of {state.topic_partition}")

    def _validate(self, states: Sequence[PartitionState], timeout_ms: int) -> list[FetchedBlock]:
        """Returns a block for each range whose records are no longer in the log since its leader has changed.

        Raises: BrokerError, NetworkError.
        """
        moved = {r.topic_partition: r.valid_epoch for r in states if 0 <= r.valid_epoch < r.leader_epoch}
        try:
            ends = self._cluster.ends_of_former_epochs(moved, timeout_ms) if moved else {}
        except UnsupportedVersionError as error:
            _log.debug("[partition=%s] Leader epochs are not validated: %s", bounded_names(moved), error)
            ends = {}
        blocks = []
        for state in states:
            state.valid_epoch = max(state.valid_epoch, state.leader_epoch)
            self._valid_epochs[state.topic_partition] = state.valid_epoch
            end = ends.get(state.topic_partition)
            if end is not None and end.end_offset < state.end:
                blocks.append(state.failed(0)._replace(diverging_offset=end.end_offset))
        return blocks

    def _retry_leader(self, state: PartitionState, error: BrokerError) -> None:
        """Looks the leader of a partition up again if the error is retriable."""
        if FETCH.action(error.code) is Action.RAISE:
            raise error
        state.replica = -1
        self._awaiting_leader.append(state)

    def _is_deleted(self, state: PartitionState) -> bool:
        """Returns True if the partition has been unknown for `UNKNOWN_TOPIC_TIMEOUT_MS`."""
        now_ms = self._cluster.clock.now_ms()
        if state.unknown_since_ms is None:
            state.unknown_since_ms = now_ms
        return now_ms - state.unknown_since_ms > UNKNOWN_TOPIC_TIMEOUT_MS

    # -- requests ----------------------------------------------------------------------------------------------------

    def _wait_while_throttled(self) -> int:
        """Waits while every broker throttles this client; returns the time in ms."""
        leaders = list(self._leaders.values())
        if self._awaiting_leader or not leaders or any(leader.sent is not None for leader in leaders):
            return 0
        clock = self._cluster.clock
        wait_ms = max(min(leader.throttled_until_ms for leader in leaders) - clock.now_ms(), 0)
        if wait_ms >= _LONG_THROTTLE_MS and not self._is_throttling_reported:
            self._is_throttling_reported = True
            names = bounded_names(leader.address for leader in leaders)
            _log.warning("[broker=%s] A quota of the broker delays fetches of this task: %d ms.", names, wait_ms)
        clock.sleep_ms(wait_ms)
        return wait_ms

    def _send(self, leader: _Leader) -> GroupSourceError | None:
        """Sends the next request unless one is outstanding or the broker throttles this client.

        Releases a leader without incomplete ranges.
        """
        if leader.sent is not None or self._cluster.clock.now_ms() < leader.throttled_until_ms:
            return None
        leader.states = [state for state in leader.states if not state.is_complete]
        self._end_leases(leader)
        if not leader.states:
            self._leaders.pop(leader.address, None)
            self._release(leader)
            return None
        try:
            if leader.connection is not None and leader.connection.is_expired:
                self._release(leader)
            if leader.connection is None:
                leader.connection = self._cluster.pool.acquire(leader.address)
                # the other leaders wait meanwhile, and a leader that does not respond may have been replaced
                leader.connection.open(self._open_timeout_ms(leader.address))
            leader.sent = leader.connection.send(
                fetch_request(leader.states, self._settings, self._size_of(leader).limit(self._largest_response())),
                self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms,
                max_version=highest_fetch_version(leader.states),
            )
            self._unopened.pop(leader.address, None)
        except NetworkError as error:
            self._disconnect(leader)
            return error
        return None

    def _end_leases(self, leader: _Leader) -> None:
        """Returns partitions to their leaders, which may name a nearer replica, after metadata.max.age.ms.

        Source: Kafka `SubscriptionState.preferredReadReplica`.
        """
        now_ms = self._cluster.clock.now_ms()
        expired = [state for state in leader.states if state.replica >= 0 and now_ms >= state.replica_until_ms]
        for state in expired:
            state.replica = -1
            leader.states.remove(state)
        self._awaiting_leader += expired

    def _open_timeout_ms(self, address: Address) -> int:
        """Doubles with each failure up to request.timeout.ms, as in Kafka's client (KIP-601)."""
        failures = self._unopened[address] = self._unopened.get(address, -1) + 1
        return min(self._settings.connect_timeout_ms << min(failures, 20), self._settings.request_timeout_ms)

    def _receive(self, leader: _Leader) -> tuple[list[FetchedBlock], GroupSourceError | None]:
        """Receives the outstanding response; returns its blocks and the last retriable error."""
        sent, leader.sent = leader.sent, None
        if sent is None or leader.connection is None:
            return [], None
        size, started_ms = self._size_of(leader), self._cluster.clock.now_ms()
        try:
            response = leader.connection.receive(sent)
        except NetworkError as error:
            if isinstance(error, RequestTimeoutError):
                size.failed(self._largest_response())
            self._disconnect(leader)
            return [], error
        size.received(record_bytes(response), self._cluster.clock.now_ms() - started_ms, self._largest_response())
        if sent.version >= _THROTTLED_BY_CLIENT_SINCE:
            # the broker reads the next request only after this time; in earlier versions the response has waited for it
            leader.throttled_until_ms = self._cluster.clock.now_ms() + response.throttle_time_ms
        if response.error_code:
            return [], self._response_failed(leader, response.error_code)
        received = list(partitions_of(response, sent.version, leader.states))
        if not received and response.throttle_time_ms:
            return [], None
        if not received:
            return [], NetworkError(f"Fetch from {leader.address} failed: no requested partition is in the response.")
        blocks: list[FetchedBlock] = []
        failure: GroupSourceError | None = None
        for state, data in received:
            block, problem = self._read_partition(leader, state, data)
            failure = problem or failure
            if block is not None:
                blocks.append(block)
        if not blocks and failure is None and not response.throttle_time_ms:
            # without any records, no partition was left out because of fetch.max.bytes or a quota
            blocks = [block for state, data in received if (block := self._skip_compacted(state, data)) is not None]
        # partitions with records go to the end of the next request, because fetch.max.bytes applies in order
        served = {block.topic_partition for block in blocks}
        leader.states.sort(key=lambda state: state.topic_partition in served)
        return blocks, failure

    def _size_of(self, leader: _Leader) -> FetchSize:
        return self._sizes.setdefault(leader.address, FetchSize(self._settings))

    def _largest_response(self) -> int:
        return response_bytes(self._settings, len(self._leaders))

    def _response_failed(self, leader: _Leader, code: int) -> BrokerError:
        """Looks all leaders of a response up again whose error is that of the whole request.

        Raises: BrokerError if it is not retriable.
        """
        error = BrokerError(code, f"Fetch from {leader.address}")
        states, leader.states = leader.states, []
        for state in states:
            self._retry_leader(state, error)
        return error

    def _read_partition(
        self, leader: _Leader, state: PartitionState, data: PartitionData
    ) -> tuple[FetchedBlock | None, GroupSourceError | None]:
        tp = state.topic_partition
        if not data.error_code and data.preferred_read_replica < 0:
            return state.accept(data), None
        leader.states.remove(state)
        if not data.error_code:
            state.unknown_since_ms = None
            state.replica = data.preferred_read_replica
            state.replica_until_ms = self._cluster.clock.now_ms() + self._settings.metadata_max_age_ms
            self._awaiting_leader.append(state)
            return None, None
        error = BrokerError(
            data.error_code,
            f"Fetch of {tp} at offset {state.position} from {leader.address}",
            _HINTS.get(data.error_code, ""),
        )
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return self._out_of_range(state, error)
            self._retry_leader(state, error)
        except NetworkError as lost:
            self._awaiting_leader.append(state)
            return None, lost
        return None, error

    def _out_of_range(
        self, state: PartitionState, error: BrokerError
    ) -> tuple[FetchedBlock | None, GroupSourceError | None]:
        """Compares an out-of-range response with the bounds of the log at the present leader.

        The response may be from a lagging follower or a former leader; then the fetch is retried.

        Raises: NetworkError if the present leader cannot be found.
        """
        tp, is_follower = state.topic_partition, state.replica >= 0
        state.replica = -1
        if is_follower:
            self._awaiting_leader.append(state)
            return None, None
        self._cluster.confirm_leaders([tp.topic], timeout_ms=self._settings.default_api_timeout_ms)
        try:
            start = self._cluster.list_offsets({tp: EARLIEST})[tp].offset
            end = self._cluster.list_offsets({tp: LATEST}, read_committed=False)[tp].offset
        except BrokerError as problem:
            self._retry_leader(state, problem)
            return None, problem
        if start <= state.position <= end:
            self._awaiting_leader.append(state)
            return None, error
        return state.failed(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start, log_end_offset=end), None

    def _skip_compacted(self, state: PartitionState, data: PartitionData) -> FetchedBlock | None:
        """Completes a readable range without records if the topic is compacted; otherwise its records may follow."""
        readable = data.last_stable_offset if self._settings.read_committed else data.high_watermark
        if data.error_code or readable < state.end:
            return None
        state.empty_responses += 1
        if state.empty_responses < _EMPTY_RESPONSES_FOR_GAP or not self._is_compacted(state.topic_partition.topic):
            return None
        state.position = state.end
        return state.failed(0)._replace(high_watermark=data.high_watermark, last_stable_offset=readable)

    def _is_compacted(self, topic: str) -> bool:
        if topic not in self._compacted:
            try:
                self._compacted[topic] = is_compacted(self._cluster, topic, self._settings.request_timeout_ms)
            except GroupSourceError as error:
                _log.warning("[topic=%s] Cannot determine whether the topic is compacted, retrying: %s", topic, error)
                # a broker with older metadata does not know the topic
                if not isinstance(error, NetworkError) and not (isinstance(error, BrokerError) and error.retriable):
                    self._compacted[topic] = False
        return self._compacted.get(topic, False)

    def _no_record(self) -> DataLossError:
        waiting = [r for leader in self._leaders.values() for r in leader.states] + self._awaiting_leader
        listed = bounded_names(
            f"{r.topic_partition} at offset {r.position} of {r.end} (high watermark {r.high_watermark}, last stable "
            f"offset {r.last_stable_offset})"
            for r in waiting
        )
        return DataLossError(
            "COULD_NOT_READ_OFFSET_RANGE",
            f"No record of {listed} for kafka.default.api.timeout.ms={self._settings.default_api_timeout_ms} (or "
            "kafkaConsumer.pollTimeoutMs): the log ends before the planned range, an open transaction holds back the "
            "last stable offset, or the broker reads slowly.",
            "Restart the query to try again, with a longer timeout if the broker reads from tiered storage.",
        )

    # -- connections -------------------------------------------------------------------------------------------------

    def _disconnect(self, leader: _Leader) -> None:
        """Releases a leader after a lost connection; its partitions look their leaders up again."""
        self._leaders.pop(leader.address, None)
        self._release(leader)
        self._cluster.connection_lost(leader.address)
        states, leader.states = leader.states, []
        for state in states:
            state.replica = -1
        self._awaiting_leader.extend(state for state in states if not state.is_complete)

    def _release(self, leader: _Leader) -> None:
        connection, leader.connection = leader.connection, None
        if connection is None:
            return
        if leader.sent is None:
            self._cluster.pool.release(connection)
        else:
            # the response would be read as that of the next request
            connection.close()
