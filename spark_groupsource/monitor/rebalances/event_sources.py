"""Readers of group events: topic, metadata of commits, file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.monitor.offsets.offsets_log import Corruption, fetch_batches, log_ranges
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.decode import decode_records
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC, GroupEvent, decode_event, event_of_form

_log = logging.getLogger(__name__)


def group_events(cluster: ClusterClient, groups: NameSelection | None = None) -> dict[str, list[GroupEvent]]:
    """Returns the events of the selected groups that the embedded coordinator has recorded, in order.

    The coordinator writes them about 100 ms later. Empty on other brokers, which do not record them.

    Raises: BrokerError, NetworkError.
    """
    found: dict[str, list[GroupEvent]] = {}
    partitions = list(cluster.metadata([GROUP_EVENTS_TOPIC], refresh=True).partitions_of(GROUP_EVENTS_TOPIC))
    for part in log_ranges(cluster, partitions) if partitions else ():
        for batch in fetch_batches(cluster, part):
            if isinstance(batch, Corruption) or batch.header.is_control:
                continue
            for record in decode_records(batch.buffer, batch.header):
                group = (record.key or b"").decode(errors="replace")
                if record.value is None or not (groups is None or groups.matches(group)):
                    continue
                try:
                    found.setdefault(group, []).append(decode_event(record.value))
                except CorruptRecordError as error:
                    _log.warning("[topic=%s] %s", GROUP_EVENTS_TOPIC, error)
    return found


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
