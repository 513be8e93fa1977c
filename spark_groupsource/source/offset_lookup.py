"""Asking a cluster which partitions there are and where their logs begin and end, and resolving positions with it."""

from __future__ import annotations

import re
from typing import Callable, Iterable, Mapping, TypeVar
from uuid import UUID

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.cluster.metadata import EARLIEST, LATEST, ClusterMetadata
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata, TopicPartition, bounded_names
from spark_groupsource.source.options import SourceOptions
from spark_groupsource.source.position_spec import PositionSpec

_T = TypeVar("_T")

_NO_ID = str(UUID(int=0))

# a topic created a moment ago may not be known to every broker yet
_NEW_TOPIC_ATTEMPTS = 6
_NEW_TOPIC_PAUSE_MS = 200

Offsets = dict[TopicPartition, int]


class OffsetLookup:
    """Look-ups of one query, tried again as ``fetchOffset.numRetries`` and ``fetchOffset.retryIntervalMs`` say."""

    def __init__(self, cluster: Cluster, options: SourceOptions, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock or SystemClock()

    def partitions(self) -> list[TopicPartition]:
        """Every partition the options ask for, sorted.

        Raises: ConfigurationError naming a topic or partition that does not exist.
        """
        pattern = self._options["subscribePattern"]
        if pattern is not None:
            view = self._cluster.metadata(None, refresh=True)
            matching = (t for t, info in view.topics.items() if not info.is_internal and re.fullmatch(pattern, t))
            return [p for topic in sorted(matching) for p in view.partitions_of(topic)]
        assigned: tuple[TopicPartition, ...] = self._options["assign"] or ()
        topics = self._options["subscribe"] or tuple(dict.fromkeys(p.topic for p in assigned))
        view = self._existing(topics)
        found = [p for topic in sorted(topics) for p in view.partitions_of(topic)]
        if not assigned:
            return found
        missing = sorted(set(assigned) - set(found))
        if missing:
            raise ConfigurationError(f"option assign names {bounded_names(missing)}, which the topic does not have")
        return sorted(assigned)

    def _existing(self, topics: tuple[str, ...]) -> ClusterMetadata:
        for _ in range(_NEW_TOPIC_ATTEMPTS):
            view = self._cluster.metadata(topics, refresh=True)
            if all(topic in view.topics for topic in topics):
                return view
            self._clock.sleep_ms(_NEW_TOPIC_PAUSE_MS)
        topic = next(topic for topic in topics if topic not in view.topics)
        code = view.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigurationError(
                f"topic {topic} does not exist at {self._options.bootstrap_servers}; create it or correct the name"
            )
        raise BrokerError(code, f"topic {topic} cannot be described")

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions that do not exist any more, sorted."""
        asked = sorted(partitions)
        if not asked:
            return []
        view = self._cluster.metadata({p.topic for p in asked}, refresh=True)
        return [p for p in asked if p not in view.partitions_of(p.topic)]

    def topic_ids(self, topics: Iterable[str], *, refresh: bool = False) -> dict[str, str]:
        """Topic -> id, as text; without those that are gone, and of brokers that have no ids."""
        view = self._cluster.metadata(set(topics), refresh=refresh)
        found = {name: str(view.topics[name].topic_id or _NO_ID) for name in set(topics) & set(view.topics)}
        return {name: topic_id for name, topic_id in found.items() if topic_id != _NO_ID}

    def counts(self) -> dict[str, int]:
        """Topic -> how many partitions it has, of every topic the options ask for that exists, as last heard."""
        pattern = self._options["subscribePattern"]
        topics = self._options["subscribe"] or {p.topic for p in self._options["assign"] or ()}
        view = self._cluster.metadata(None if pattern is not None else set(topics))
        chosen = list(view.topics.values())
        if pattern is not None:
            chosen = [info for info in chosen if not info.is_internal and re.fullmatch(pattern, info.name)]
        return {info.name: len(info.partitions) for info in chosen}

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Log start of each partition."""
        return self._offsets({p: EARLIEST for p in partitions})

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Log end of each partition: the last stable offset under read_committed."""
        return self._offsets({p: LATEST for p in partitions})

    def tops(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Log end of each partition, records of open transactions included."""
        asked = {p: LATEST for p in partitions}
        found = self._try(lambda: self._cluster.list_offsets(asked, read_committed=False)) if asked else {}
        return {p: found[p].offset for p in asked}

    def at_time(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Offset of the first record at or after each timestamp, None where there is none."""
        return {p: None if found < 0 else found for p, found in self._offsets(timestamps).items()}

    def _offsets(self, asked: Mapping[TopicPartition, int]) -> Offsets:
        if not asked:
            return {}
        found = self._try(lambda: self._cluster.list_offsets(asked))
        return {p: found[p].offset for p in asked}

    def _try(self, ask: Callable[[], _T]) -> _T:
        # the client itself asks again until default.api.timeout.ms; this is for a leader or topic that comes late
        for _ in range(self._options["fetchOffset.numRetries"]):
            try:
                return ask()
            except BrokerError as error:
                # the client has been patient with topics that nobody knows
                if not error.retriable or error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            self._clock.sleep_ms(self._options["fetchOffset.retryIntervalMs"])
        return ask()

    def resolve(
        self,
        spec: PositionSpec,
        partitions: Iterable[TopicPartition],
        committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    ) -> Offsets:
        """The offset of each partition a `PositionSpec` means now.

        Args:
            committed: the group's commits, needed where `spec.uses_group`.

        Raises: ConfigurationError where the specification says nothing about a partition or time.
        """
        wanted = list(partitions)
        resolved: Offsets = {}
        if spec.uses_group:
            resolved = {p: commit.offset for p, commit in committed.items() if commit is not None and p in wanted}
            wanted = [p for p in wanted if p not in resolved]
            if wanted and spec.default is None:
                raise ConfigurationError(
                    f"{spec.option}=group, but group {self._options.group_id} has no committed offset for "
                    f"{bounded_names(wanted)}; "
                    "use group-or-earliest or group-or-latest"
                )
        if spec.back_count is not None:
            ends, begins = self.latest(wanted), self.earliest(wanted)
            return resolved | {p: max(begins[p], ends[p] - spec.back_count) for p in wanted}
        times = self._times(spec, wanted)
        if times is not None:
            return resolved | self._resolve_times(spec, times)
        return resolved | self._resolve_offsets(spec, wanted)

    def _times(self, spec: PositionSpec, wanted: list[TopicPartition]) -> Offsets | None:
        if spec.timestamp_ms is not None:
            return {p: spec.timestamp_ms for p in wanted}
        if spec.back_ms is not None:
            # negative times are words of the protocol; nothing is older than the epoch
            return {p: max(self._clock.timestamp_ms() - spec.back_ms, 0) for p in wanted}
        return {p: _listed(spec, p) for p in wanted} if spec.by_time else None

    def _resolve_times(self, spec: PositionSpec, times: Offsets) -> Offsets:
        found = self.at_time(times)
        missing = [p for p, offset in found.items() if offset is None]
        lenient = spec.option.startswith("ending") or spec.back_ms is not None
        if missing and not lenient and self._options["startingOffsetsByTimestampStrategy"] == "error":
            raise ConfigurationError(
                f"{spec.option}: no record at or after the given time in {bounded_names(missing)}; choose an earlier "
                "time or set startingOffsetsByTimestampStrategy to latest"
            )
        ends = self.latest(missing)
        return {p: ends[p] if offset is None else offset for p, offset in found.items()}

    def _resolve_offsets(self, spec: PositionSpec, wanted: list[TopicPartition]) -> Offsets:
        values = {p: spec.default if spec.default is not None else _listed(spec, p) for p in wanted}
        begins = self.earliest([p for p, value in values.items() if value == EARLIEST])
        ends = self.latest([p for p, value in values.items() if value == LATEST])
        return {p: begins.get(p, ends.get(p, value)) for p, value in values.items()}


def _listed(spec: PositionSpec, topic_partition: TopicPartition) -> int:
    value = spec.listed(topic_partition)
    if value is None:
        raise ConfigurationError(
            f"{spec.option} says nothing about {topic_partition}; it must list every partition that is read"
        )
    return value


def check_listed(spec: PositionSpec, partitions: Iterable[TopicPartition]) -> None:
    """Refuses a list that names a partition which is not read.

    Raises: ConfigurationError naming it.
    """
    known = set(partitions)
    extra = sorted(set(spec.partitions) - known)
    if extra:
        raise ConfigurationError(f"{spec.option} lists {bounded_names(extra)}, which this query does not read")
