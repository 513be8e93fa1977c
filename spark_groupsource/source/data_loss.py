"""What is told when promised records are gone: an error under the name Spark's own Kafka source gives it, or a warning.

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
    """Tells losses of one reader or task.

    Args:
        fail: the option failOnDataLoss.
        group_id: named in messages, as is `member_id`; Spark's source too has another name for deleted partitions where
            a group is named.
    """

    def __init__(self, *, fail: bool, group_id: str | None = None, member_id: str | None = None) -> None:
        self._fail = fail
        self._group_id = group_id
        reader = f"member {member_id} of group {group_id}" if member_id else f"group {group_id}" if group_id else ""
        self._by = f" Read by {reader}." if reader else ""

    def deleted(self, positions: Offsets) -> None:
        """Partitions that are gone; `positions` is how far each was read."""
        if positions:
            self._tell(self._deleted, f"{bounded_names(positions)} was deleted; {_reached(positions)}.")

    def made_anew(self, positions: Offsets) -> None:
        """The same where a topic of that name is there again."""
        if positions:
            self._tell(self._deleted, f"{bounded_names(positions)} was deleted and made anew; {_reached(positions)}.")

    def deleted_unread(self, wanted: OffsetRange) -> None:
        """A task found its partition gone."""
        tp, start, end = wanted
        self._tell(self._deleted, f"{tp} was deleted before offsets [{start}, {end}) were read.")

    def cut(self, begins: Offsets, ends: Offsets) -> None:
        """Logs that end before what was read of them."""
        if begins:
            first = next(iter(begins))
            told = f"{bounded_names(begins)} was cut or made anew: {first} ends at {ends[first]}, not {begins[first]}."
            self._tell("PARTITION_OFFSET_CHANGED", told)

    def aged_out(self, wanted: OffsetRange, log_start: int) -> None:
        """A range whose first records are gone."""
        tp, start, end = wanted
        told = f"{tp} begins at offset {log_start} now; [{start}, {end}) was planned and is partly aged out."
        self._tell("START_OFFSET_RESET", told)

    def ends_early(self, wanted: OffsetRange, log_end: int) -> None:
        """A range whose last records are gone."""
        tp, start, end = wanted
        told = f"{tp} ends at offset {log_end}; [{start}, {end}) was planned: the log was cut or made anew."
        self._tell("COULD_NOT_READ_OFFSET_RANGE", told)

    def beyond_the_log(self, option: str, tp: TopicPartition, wished: int, log_end: int) -> None:
        """A wished end that is not there."""
        self._tell("COULD_NOT_READ_OFFSET_RANGE", f"{option} of {tp} is {wished}, but the log ends at {log_end}.")

    def added_late(self, begins: Offsets) -> None:
        """Partitions found later that have lost records before they were read at all."""
        if begins:
            listed = ", ".join(f"{p} begins at offset {begin}" for p, begin in sorted(begins.items())[:10])
            told = f"{listed} and not at 0: what the added partition held before that is gone."
            self._tell("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", told)

    def gone_before_found(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions deleted between their assignment and the look-up of where they begin."""
        told = f"where {bounded_names(partitions)} begins cannot be found out: it was deleted meanwhile."
        self._tell("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", told)

    @property
    def _deleted(self) -> str:
        return "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT" if self._group_id else "PARTITIONS_DELETED"

    def _tell(self, error_class: str, message: str) -> None:
        if self._fail:
            raise DataLossError(error_class, message + self._by)
        _log.warning(
            "[KAFKA_DATA_LOSS.%s] %s%s Going on with what is there (failOnDataLoss=false).",
            error_class,
            message,
            self._by,
        )


def _reached(positions: Offsets) -> str:
    first = next(iter(positions))
    return f"{first} was read to offset {positions[first]}"
