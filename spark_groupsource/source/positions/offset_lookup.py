"""Partitions of the subscription, their log offsets, and the resolution of positions."""

from __future__ import annotations

import logging
from typing import Iterable, Mapping

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.metadata import EARLIEST, LATEST, ClusterMetadata
from spark_groupsource.common.clock import Clock, SystemClock
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode, NetworkError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.source.options.position_spec import PositionSpec
from spark_groupsource.source.options.source_options import SourceOptions

_log = logging.getLogger(__name__)


# the metadata of some brokers lack a topic that was just created
_NEW_TOPIC_ATTEMPTS = 6
_NEW_TOPIC_PAUSE_MS = 200

Offsets = dict[TopicPartition, int]


class OffsetLookup:
    """Lookups of one query, retried according to ``fetchOffset.numRetries`` and ``fetchOffset.retryIntervalMs``."""

    def __init__(self, cluster: ClusterClient, options: SourceOptions, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock or SystemClock()

    def partitions(self) -> list[TopicPartition]:
        """Returns every partition of the subscription, sorted.

        Raises: ConfigurationError that names a topic or partition that does not exist.
        """
        pattern = self._options.subscribe_pattern
        if pattern is not None:
            view = self._cluster.metadata(None, refresh=True)
            return [p for topic in self._matching(view, pattern) for p in view.partitions_of(topic)]
        assigned = self._options.assign or ()
        topics = self._options.subscribe or tuple(dict.fromkeys(p.topic for p in assigned))
        view = self._describe(topics)
        found = [p for topic in sorted(topics) for p in view.partitions_of(topic)]
        if not assigned:
            return found
        missing = sorted(set(assigned) - set(found))
        if missing:
            # one broker may have older metadata
            self._cluster.confirm_leaders(topics)
            missing = self.missing(missing, refresh=False)
        if missing:
            raise ConfigurationError(
                f"Option assign names partitions that do not exist: {bounded_names(missing)}. Correct the option."
            )
        return sorted(assigned)

    def check_dead_letter_topic(self) -> None:
        """Checks that the dead letter topic of the query, if any, exists before a record needs it.

        Raises: as `partitions`.
        """
        topic = self._options.values.dead_letter_topic
        if topic is not None:
            self._describe((topic,), "deadLetterTopic")

    def _matching(self, view: ClusterMetadata, pattern: str) -> list[str]:
        """Returns the topics to which the members of the query subscribe."""
        group = self._options.group
        return view.matching_topics(pattern, exclude_internal=group is None or group.exclude_internal_topics)

    def _describe(self, topics: tuple[str, ...], option: str = "") -> ClusterMetadata:
        for _ in range(_NEW_TOPIC_ATTEMPTS):
            view = self._cluster.metadata(topics, refresh=True)
            if all(topic in view.topics for topic in topics):
                return view
            self._clock.sleep_ms(_NEW_TOPIC_PAUSE_MS)
        topic = next(topic for topic in topics if topic not in view.topics)
        code = view.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            option = option or ("subscribe" if self._options.subscribe else "assign")
            raise ConfigurationError(
                f"Option {option}: topic {topic} does not exist at {self._options.bootstrap_servers}. Create it"
                f"{self._creation_hint(topic)} or correct the name."
            )
        raise BrokerError(code, f"Describing topic {topic}")

    def _creation_hint(self, topic: str) -> str:
        if not self._options.is_embedded:
            return ""
        address = ",".join(map(str, self._cluster.settings.bootstrap))
        return (
            f" (groupsource topics create --bootstrap-server {address} --topic {topic} --partitions 1; a producer or a "
            "streaming query creates it, too)"
        )

    def missing(
        self, partitions: Iterable[TopicPartition], *, attempts: int = 1, refresh: bool = True
    ) -> list[TopicPartition]:
        """Returns those of the partitions that no longer exist, sorted.

        Args:
            attempts: number of responses that must lack a partition: a broker that starts may not know all topics yet.
            refresh: False for cached metadata.
        """
        found = sorted(partitions)
        for attempt in range(attempts):
            if not found:
                break
            if attempt:
                self._clock.sleep_ms(_NEW_TOPIC_PAUSE_MS)
            view = self._cluster.metadata({p.topic for p in found}, refresh=refresh)
            found = [p for p in found if view.lacks(p)]
        return found

    def missing_after(self, error: BrokerError, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns those of the partitions whose deletion made a lookup fail, sorted.

        Raises: `error` if it has another cause; a retriable error if all of them exist again.
        """
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
        found = list(partitions)
        deleted = self.missing(found)
        if not deleted:
            names = bounded_names(sorted(found))
            hint = "A topic was deleted and created again."
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"Offset lookup of {names}", hint) from error
        return deleted

    def topic_ids(self, topics: Iterable[str], *, refresh: bool = False) -> dict[str, str]:
        """Returns topic -> id as text, without deleted topics and without brokers that have no topic ids."""
        names = set(topics)
        return self._cluster.metadata(names, refresh=refresh).topic_ids(names)

    def confirm_leaders(self, topics: Iterable[str]) -> None:
        """Finds the present leaders of topics; see `Router.confirm_leaders`."""
        self._cluster.confirm_leaders(topics)

    def cluster_id(self) -> str:
        """Returns the id of the cluster, from cached metadata; empty if the brokers have none."""
        return self._cluster.metadata(()).cluster_id or ""

    def partition_counts(self) -> dict[str, int]:
        """Returns topic -> number of partitions for every existing topic of the subscription, from cached metadata."""
        pattern = self._options.subscribe_pattern
        topics = self._options.subscribe or {p.topic for p in self._options.assign or ()}
        view = self._cluster.metadata(None if pattern is not None else set(topics))
        chosen = view.topics if pattern is None else self._matching(view, pattern)
        return {topic: len(view.topics[topic].partitions) for topic in chosen}

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Returns the log start offset of each partition."""
        return self._list_offsets({p: EARLIEST for p in partitions})

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Returns the end of each partition: the high watermark, or with read_committed the last stable offset."""
        return self._list_offsets({p: LATEST for p in partitions})

    def log_end_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Returns the end offset of each partition, records of open transactions included."""
        return self._list_offsets({p: LATEST for p in partitions}, read_committed=False)

    def at_time(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Returns the offset of the first record at or after each timestamp, None where there is none."""
        return {p: None if found < 0 else found for p, found in self._list_offsets(timestamps).items()}

    def _list_offsets(
        self, requested: Mapping[TopicPartition, int], *, read_committed: bool | None = None
    ) -> Offsets:
        if not requested:
            return {}
        # the client retries until default.api.timeout.ms; these retries are for a leader or topic that appears later
        for left in range(self._options.fetch_offset_num_retries, -1, -1):
            try:
                found = self._cluster.list_offsets(requested, read_committed=read_committed)
                break
            except NetworkError as error:
                if not left or self._cluster.call_timeout_ms is not None:
                    raise  # `LockedCalls` retries
                # the client has retried for default.api.timeout.ms; each of these attempts takes as long
                servers = self._options.bootstrap_servers
                _log.debug("[bootstrap.servers=%s] Offset lookup failed, retrying: %s", servers, error)
            except BrokerError as error:
                # the client has waited for unknown topics already
                if not left or not error.retriable or error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            self._clock.sleep_ms(self._options.fetch_offset_retry_interval_ms)
        return {p: found[p].offset for p in requested}

    def resolve(
        self,
        spec: PositionSpec,
        partitions: Iterable[TopicPartition],
        committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    ) -> Offsets:
        """Returns the offset that a `PositionSpec` means now for each partition.

        Args:
            committed: the group's commits, used if `spec.uses_group`.

        Raises: ConfigurationError where `spec` has no position for a partition or no record for a time.
        """
        remaining = list(partitions)
        resolved: Offsets = {}
        if spec.uses_group:
            resolved = {p: commit.offset for p, commit in committed.items() if commit is not None and p in remaining}
            remaining = [p for p in remaining if p not in resolved]
            if remaining and spec.default is None:
                raise ConfigurationError(
                    f"Option {spec.option} is group, but group {self._options.group_id} has no committed offset for "
                    f"{bounded_names(remaining)}. Use group-or-earliest or group-or-latest."
                )
        if spec.back_count is not None:
            ends, begins = self.latest(remaining), self.earliest(remaining)
            return resolved | {p: max(begins[p], ends[p] - spec.back_count) for p in remaining}
        timestamps = self._timestamps(spec, remaining)
        if timestamps is not None:
            return resolved | self._resolve_timestamps(spec, timestamps)
        return resolved | self._resolve_offsets(spec, remaining)

    def _timestamps(self, spec: PositionSpec, partitions: list[TopicPartition]) -> Offsets | None:
        if spec.timestamp_ms is not None:
            return {p: spec.timestamp_ms for p in partitions}
        if spec.back_ms is not None:
            # negative timestamps have a special meaning in ListOffsets
            return {p: max(self._clock.timestamp_ms() - spec.back_ms, 0) for p in partitions}
        return {p: _listed(spec, p) for p in partitions} if spec.by_time else None

    def _resolve_timestamps(self, spec: PositionSpec, timestamps: Offsets) -> Offsets:
        found = self.at_time(timestamps)
        missing = [p for p, offset in found.items() if offset is None]
        is_lenient = spec.option.startswith("ending") or spec.back_ms is not None
        if missing and not is_lenient and self._options.starting_offsets_by_timestamp_strategy == "error":
            raise ConfigurationError(
                f"Option {spec.option} has no record at or after the given time in {bounded_names(missing)}. Choose an "
                "earlier time or set startingOffsetsByTimestampStrategy to latest."
            )
        ends = self.latest(missing)
        return {p: ends[p] if offset is None else offset for p, offset in found.items()}

    def _resolve_offsets(self, spec: PositionSpec, partitions: list[TopicPartition]) -> Offsets:
        values = {p: spec.default if spec.default is not None else _listed(spec, p) for p in partitions}
        begins = self.earliest([p for p, value in values.items() if value == EARLIEST])
        ends = self.latest([p for p, value in values.items() if value == LATEST])
        return {p: begins.get(p, ends.get(p, value)) for p, value in values.items()}


def _listed(spec: PositionSpec, topic_partition: TopicPartition) -> int:
    value = spec.listed(topic_partition)
    if value is None:
        raise ConfigurationError(
            f"Option {spec.option} does not list {topic_partition}. It must list every partition that is read."
        )
    return value


def check_listed(spec: PositionSpec, partitions: Iterable[TopicPartition]) -> None:
    """Rejects a list that names a partition outside the subscription.

    Raises: ConfigurationError that names the partitions.
    """
    extra = sorted(set(spec.partitions) - set(partitions))
    if extra:
        raise ConfigurationError(
            f"Option {spec.option} lists partitions that the query does not read: {bounded_names(extra)}. Remove them."
        )
