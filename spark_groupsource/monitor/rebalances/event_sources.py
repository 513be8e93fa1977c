"""Readers of group events: topic, metadata of commits, file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.monitor.offsets.offsets_log import Corruption, fetch_batches, unread_ranges
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.decode import StoredRecord, decode_records
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC, GroupEvent, decode_event, event_of_form

_log = logging.getLogger(__name__)


class GroupEventReader:
    """Reads what the embedded coordinator has recorded of the selected groups since the previous call.

    The coordinator writes events about 100 ms later. Other brokers do not record them.
    """

    def __init__(self, cluster: ClusterClient, groups: NameSelection | None = None) -> None:
        self._cluster = cluster
        self._groups = groups
        self._ends: dict[TopicPartition, int] = {}
        self._found: dict[str, list[GroupEvent]] = {}

    def read(self) -> dict[str, list[GroupEvent]]:
        """Returns all events of each group that has some, in order. Raises: BrokerError, NetworkError."""
        view = self._cluster.metadata([GROUP_EVENTS_TOPIC], refresh=True)
        partitions = list(view.partitions_of(GROUP_EVENTS_TOPIC))
        for part in unread_ranges(self._cluster, partitions, self._ends) if partitions else ():
            self._read(part)
        return self._found

    def _read(self, part: OffsetRange) -> None:
        for batch in fetch_batches(self._cluster, part):
            if isinstance(batch, Corruption) or batch.header.is_control:
                continue
            for record in decode_records(batch.buffer, batch.header):
                if record.offset < part.start:
                    continue
                self._add(record)
                # after a failed read, the next one continues here
                self._ends[part.topic_partition] = record.offset + 1

    def _add(self, record: StoredRecord) -> None:
        group = (record.key or b"").decode(errors="replace")
        if record.value is None or not (self._groups is None or self._groups.matches(group)):
            return
        try:
            self._found.setdefault(group, []).append(decode_event(record.value))
        except CorruptRecordError as error:
            _log.warning("[topic=%s] %s", GROUP_EVENTS_TOPIC, error)


def group_events(cluster: ClusterClient, groups: NameSelection | None = None) -> dict[str, list[GroupEvent]]:
    """Returns the events of the selected groups, as `GroupEventReader`. Raises: BrokerError, NetworkError."""
    return GroupEventReader(cluster, groups).read()


def file_events(path: str | Path) -> list[GroupEvent]:
    """Returns the events of a file of option rebalanceLog, in order.

    Raises: OSError; CorruptRecordError for a line that is not of this format.
    """
    found: list[GroupEvent] = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields: dict[str, Any] = json.loads(line)
                found += [event_of_form(form) for form in fields.get("events", ())]
            except (ValueError, AttributeError) as error:
                raise CorruptRecordError(f"Line {number} of {path} is not a line of rebalanceLog: {error}.") from error
    return found
