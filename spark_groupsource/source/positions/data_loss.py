"""Reaction to data loss: an error or a warning, per failOnDataLoss.

A message says what was observed, then which reader and checkpoint observed it, then what to do; what gives up records
is last. Source of the classes: the sub-classes of KAFKA_DATA_LOSS in ``kafka-error-conditions.json`` of Spark's
connector.
"""

from __future__ import annotations

import logging
from typing import Callable, Iterable, Mapping

from spark_groupsource.errors import DataLossError
from spark_groupsource.model import OffsetRange, TopicPartition, bounded_names, by_topic

_log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]

ACCEPT_LOSS = "Only if the lost records are not needed, set failOnDataLoss to false to continue with those that exist."
_READ_AGAIN = "Call load() again to read the records that exist now."
_SCOPE_CHARS = 200


class DataLossPolicy:
    """Reports data loss of one reader or read task; each method raises DataLossError or logs a warning.

    Args:
        fail: the option failOnDataLoss.
        group_id, member_id: added to messages. Like Spark's source, deleted partitions have another error class where
            the query has a group.
        is_batch: whether it is a batch read, which has no checkpoint.
        checkpoint: directory of the checkpoint; None if the reader does not know it.
        clusters: returns the id of the cluster in the checkpoint and that of the brokers; empty if unknown.
    """

    def __init__(
        self,
        *,
        fail: bool,
        group_id: str | None = None,
        member_id: str | None = None,
        is_batch: bool = False,
        checkpoint: str | None = None,
        clusters: Callable[[], tuple[str, str]] = lambda: ("", ""),
    ) -> None:
        self._fail = fail
        self._group_id = group_id
        self._is_batch = is_batch
        self._clusters = clusters
        member = f"member {member_id} of group {group_id}" if member_id else f"group {group_id}" if group_id else ""
        reader = " with checkpoint ".join(filter(None, (member or checkpoint and "a query", checkpoint)))
        self._reader = f" Read by {reader}." if reader else ""
        names = {"group": group_id, "member": member_id}
        entity = " ".join(f"{kind}={name}" for kind, name in names.items() if name)
        self._prefix = f"[{entity}] " if entity else ""

    def deleted(self, positions: Offsets) -> None:
        """Reports partitions that no longer exist; `positions` are the next offsets to read."""
        if positions:
            message = f"{bounded_names(positions)} {_was(positions)} deleted; {_first_position(positions)}."
            self._report(self._deleted_class, message, f"Correct the subscription. {self._new_checkpoint}")

    def recreated(self, positions: Offsets) -> None:
        """Reports partitions of a topic that was deleted and created again, or is the topic of another cluster."""
        if positions:
            event = f"{_was(positions)} deleted and recreated"
            if self._is_other_cluster:
                event = "is another topic" if len(positions) == 1 else "are other topics"
            message = f"{bounded_names(positions)} {event}; {_first_position(positions)}."
            self._report(self._deleted_class, message, self._new_checkpoint)

    def deleted_before_read(self, expected: OffsetRange) -> None:
        """Reports a partition that no longer exists, found by its read task."""
        p, start, end = expected
        message = f"{p} was deleted before offsets [{start}, {end}) were read."
        self._report(self._deleted_class, message, f"Correct the subscription. {self._new_checkpoint}")

    def recreated_before_read(self, expected: OffsetRange) -> None:
        """Reports a partition of a topic that was deleted and created again, found by its read task."""
        p, start, end = expected
        message = f"{p} was deleted and recreated before offsets [{start}, {end}) were read."
        self._report(self._deleted_class, message, self._new_checkpoint)

    def truncated_before_read(self, expected: OffsetRange, diverging_offset: int) -> None:
        """Reports a range whose records were replaced: the log was truncated and appended to (KIP-320)."""
        p, start, end = expected
        at = f"at offset {diverging_offset}" if diverging_offset >= 0 else "at an unknown offset"
        message = f"{p} was truncated {at} by a new leader before offsets [{start}, {end}) were read."
        self._report("COULD_NOT_READ_OFFSET_RANGE", message, self._continue_at({p: diverging_offset}))

    def truncated(self, begins: Offsets, ends: Offsets) -> None:
        """Reports logs that end before the offset the query has read to."""
        if begins:
            first = next(iter(begins))
            names = bounded_names(begins)
            message = f"{names} was truncated or recreated: {first} ends at {ends[first]}, not {begins[first]}."
            self._report("PARTITION_OFFSET_CHANGED", message, self._continue_at({p: ends[p] for p in begins}))

    def replaced(self, begins: Offsets, diverging: Offsets) -> None:
        """Reports logs that a new leader has truncated below the offset read, and appended to (KIP-320)."""
        if begins:
            first = next(iter(begins))
            at = f"offset {diverging[first]}" if diverging[first] >= 0 else "an unknown offset"
            event = f"{bounded_names(begins)} was truncated by a new leader: {first} has other records from {at} on"
            message = f"{event}; {_first_position(begins)}."
            self._report("PARTITION_OFFSET_CHANGED", message, self._continue_at({p: diverging[p] for p in begins}))

    def start_deleted(self, expected: OffsetRange, log_start: int) -> None:
        """Reports a range whose first records were deleted."""
        p, start, end = expected
        message = f"{p} begins at offset {log_start} now; [{start}, {end}) was planned and is partly deleted."
        self._report("START_OFFSET_RESET", message, self._continue_at_log_start([p]))

    def ends_early(self, expected: OffsetRange, log_end: int) -> None:
        """Reports a range whose last records do not exist."""
        p, start, end = expected
        message = f"{p} ends at offset {log_end}; [{start}, {end}) was planned: the log was truncated or recreated."
        # the group has committed the start of the batch
        remedy = self._new_checkpoint if start <= log_end else self._continue_at({p: log_end})
        self._report("COULD_NOT_READ_OFFSET_RANGE", message, remedy)

    def beyond_log_end(self, option: str, p: TopicPartition, requested: int, log_end: int) -> None:
        """Reports a requested end offset that does not exist."""
        message = f"{option} of {p} is {requested}, but the log ends at {log_end}."
        remedy = f"Set {option} of {p} to {log_end} at most, or to -1 for the log end offset."
        self._report("COULD_NOT_READ_OFFSET_RANGE", message, remedy)

    def added_partition_truncated(self, begins: Offsets) -> None:
        """Reports partitions added to a topic whose first records were deleted before the query found them."""
        if begins:
            listed = bounded_names(f"{p} begins at offset {begin}" for p, begin in sorted(begins.items()))
            message = f"{listed} and not at 0: earlier records of the added partition were deleted."
            remedy = self._continue_at_log_start(begins)
            self._report("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", message, remedy)

    def deleted_before_lookup(self, partitions: Iterable[TopicPartition]) -> None:
        """Reports partitions deleted between their assignment and the lookup of their start offsets."""
        message = f"The start offset of {bounded_names(partitions)} was not found: the partition was deleted."
        remedy = "Start the query again with the partitions that exist, or correct the subscription."
        self._report("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", message, remedy)

    @property
    def _deleted_class(self) -> str:
        return "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT" if self._group_id else "PARTITIONS_DELETED"

    @property
    def _is_other_cluster(self) -> bool:
        stored, present = self._clusters()
        return bool(stored and present and stored != present)

    @property
    def _new_checkpoint(self) -> str:
        if self._is_batch:
            return _READ_AGAIN
        start = "the committed offsets of the group, else at startingOffsets" if self._group_id else "startingOffsets"
        return f"Start the query with a new checkpointLocation: it continues at {start}."

    def _continue_at_log_start(self, partitions: Iterable[TopicPartition]) -> str:
        """Returns how to continue where the log begins now; a committed offset ahead of the checkpoint is followed."""
        if self._is_batch or not self._group_id:
            return self._without_group
        scope = " ".join(f"--topic {t}:{','.join(map(str, numbers))}" for t, numbers in by_topic(partitions).items())
        return f"Commit the log start offset, from which the query continues: {self._reset(scope, '--to-earliest')}"

    def _continue_at(self, offsets: Offsets) -> str:
        """Returns how to continue at earlier offsets; a negative one is unknown."""
        if self._is_batch or not self._group_id:
            return self._without_group
        text = "Start the query with a new checkpointLocation, after a commit of offsets that exist: "
        (p, offset), *others = offsets.items()
        if others or offset < 0:
            return text + self._reset("--topic TOPIC:PARTITION", "--to-offset OFFSET")
        return text + self._reset(f"--topic {p.topic}:{p.partition}", f"--to-offset {offset}")

    @property
    def _without_group(self) -> str:
        if self._is_batch:
            return _READ_AGAIN
        return "Start the query with a new checkpointLocation and startingOffsets that exist."

    def _reset(self, scope: str, target: str) -> str:
        """Returns the command that commits offsets of these partitions alone."""
        return f"groupsource groups reset-offsets --group {self._group_id} {_shortened(scope)} {target} --execute."

    def _report(self, error_class: str, message: str, remedy: str) -> None:
        if self._is_other_cluster:
            stored, present = self._clusters()
            message = f"The checkpoint is of cluster {stored}, and the brokers are of cluster {present}: {message}"
            remedy = f"Set kafka.bootstrap.servers to the cluster of the checkpoint. Else: {remedy}"
        if self._fail:
            raise DataLossError(error_class, message + self._reader, f"{remedy} {ACCEPT_LOSS}")
        _log.warning(
            "%s[KAFKA_DATA_LOSS.%s] %s%s Continuing with the available records (failOnDataLoss=false).",
            self._prefix,
            error_class,
            message,
            self._reader,
        )


def _shortened(scope: str) -> str:
    return scope if len(scope) <= _SCOPE_CHARS else "--topic TOPIC:PARTITIONS"


def _was(positions: Offsets) -> str:
    return "was" if len(positions) == 1 else "were"


def _first_position(positions: Offsets) -> str:
    first = next(iter(positions))
    return f"{first} was read to offset {positions[first]}"
