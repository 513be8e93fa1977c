"""Reaction to data loss: an error or a warning, per failOnDataLoss.

Source: the sub-classes of KAFKA_DATA_LOSS in ``kafka-error-conditions.json`` of Spark's connector.
"""

from __future__ import annotations

import logging
from typing import Iterable, Mapping

from spark_groupsource.errors import DataLossError
from spark_groupsource.model import OffsetRange, TopicPartition, bounded_names

_log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]


class DataLossPolicy:
    """Reports data loss of one reader or read task; each method raises DataLossError or logs a warning.

    Args:
        fail: the option failOnDataLoss.
        group_id, member_id: added to messages. Like Spark's source, deleted partitions have another error class where
            the query has a group.
    """

    def __init__(self, *, fail: bool, group_id: str | None = None, member_id: str | None = None) -> None:
        self._fail = fail
        self._group_id = group_id
        reader = f"member {member_id} of group {group_id}" if member_id else f"group {group_id}" if group_id else ""
        self._reader = f" Read by {reader}." if reader else ""
        names = {"group": group_id, "member": member_id}
        entity = " ".join(f"{kind}={name}" for kind, name in names.items() if name)
        self._prefix = f"[{entity}] " if entity else ""

    def deleted(self, positions: Offsets) -> None:
        """Reports partitions that no longer exist; `positions` are the next offsets to read."""
        if positions:
            message = f"{bounded_names(positions)} {_was(positions)} deleted; {_first_position(positions)}."
            self._report(self._deleted_class, message)

    def recreated(self, positions: Offsets) -> None:
        """Reports partitions of a topic that was deleted and created again."""
        if positions:
            event = f"{bounded_names(positions)} {_was(positions)} deleted and recreated"
            message = f"{event}; {_first_position(positions)}."
            self._report(self._deleted_class, message)

    def deleted_before_read(self, expected: OffsetRange) -> None:
        """Reports a partition that no longer exists, found by its read task."""
        p, start, end = expected
        self._report(self._deleted_class, f"{p} was deleted before offsets [{start}, {end}) were read.")

    def recreated_before_read(self, expected: OffsetRange) -> None:
        """Reports a partition of a topic that was deleted and created again, found by its read task."""
        p, start, end = expected
        self._report(self._deleted_class, f"{p} was deleted and recreated before offsets [{start}, {end}) were read.")

    def truncated_before_read(self, expected: OffsetRange, diverging_offset: int) -> None:
        """Reports a range whose records were replaced: the log was truncated and appended to (KIP-320)."""
        p, start, end = expected
        at = f"at offset {diverging_offset}" if diverging_offset >= 0 else "at an unknown offset"
        message = f"{p} was truncated {at} by a new leader before offsets [{start}, {end}) were read."
        self._report("COULD_NOT_READ_OFFSET_RANGE", message)

    def truncated(self, begins: Offsets, ends: Offsets) -> None:
        """Reports logs that end before the offset the query has read to."""
        if begins:
            first = next(iter(begins))
            names = bounded_names(begins)
            message = f"{names} was truncated or recreated: {first} ends at {ends[first]}, not {begins[first]}."
            self._report("PARTITION_OFFSET_CHANGED", message)

    def replaced(self, begins: Offsets, diverging: Offsets) -> None:
        """Reports logs that a new leader has truncated below the offset read, and appended to (KIP-320)."""
        if begins:
            first = next(iter(begins))
            at = f"offset {diverging[first]}" if diverging[first] >= 0 else "an unknown offset"
            message = f"{bounded_names(begins)} was truncated by a new leader: {first} has other records from {at} on; "
            self._report("PARTITION_OFFSET_CHANGED", f"{message}{_first_position(begins)}.")

    def start_deleted(self, expected: OffsetRange, log_start: int) -> None:
        """Reports a range whose first records were deleted."""
        p, start, end = expected
        message = f"{p} begins at offset {log_start} now; [{start}, {end}) was planned and is partly deleted."
        self._report("START_OFFSET_RESET", message)

    def ends_early(self, expected: OffsetRange, log_end: int) -> None:
        """Reports a range whose last records do not exist."""
        p, start, end = expected
        message = f"{p} ends at offset {log_end}; [{start}, {end}) was planned: the log was truncated or recreated."
        self._report("COULD_NOT_READ_OFFSET_RANGE", message)

    def beyond_log_end(self, option: str, p: TopicPartition, requested: int, log_end: int) -> None:
        """Reports a requested end offset that does not exist."""
        self._report("COULD_NOT_READ_OFFSET_RANGE", f"{option} of {p} is {requested}, but the log ends at {log_end}.")

    def added_partition_truncated(self, begins: Offsets) -> None:
        """Reports partitions added to a topic whose first records were deleted before the query found them."""
        if begins:
            listed = bounded_names(f"{p} begins at offset {begin}" for p, begin in sorted(begins.items()))
            message = f"{listed} and not at 0: earlier records of the added partition were deleted."
            self._report("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", message)

    def deleted_before_lookup(self, partitions: Iterable[TopicPartition]) -> None:
        """Reports partitions deleted between their assignment and the lookup of their start offsets."""
        message = f"The start offset of {bounded_names(partitions)} was not found: the partition was deleted."
        self._report("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", message)

    @property
    def _deleted_class(self) -> str:
        return "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT" if self._group_id else "PARTITIONS_DELETED"

    def _report(self, error_class: str, message: str) -> None:
        if self._fail:
            raise DataLossError(error_class, message + self._reader)
        _log.warning(
            "%s[KAFKA_DATA_LOSS.%s] %s%s Continuing with the available records (failOnDataLoss=false).",
            self._prefix,
            error_class,
            message,
            self._reader,
        )


def _was(positions: Offsets) -> str:
    return "was" if len(positions) == 1 else "were"


def _first_position(positions: Offsets) -> str:
    first = next(iter(positions))
    return f"{first} was read to offset {positions[first]}"
