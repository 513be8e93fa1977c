"""Writes the events of groups to the topic `__group_events`.

Events are kept in memory for `_FLUSH_MS` and appended in one batch, so a request of a group does not wait for the disk,
and a directory that cannot be written delays no group: its events are dropped. A crash loses the events in memory. The
end of a rebalance is appended after the request that ends it, unless others were within `_FLUSH_MS`: a client that sees
the new assignment finds its events.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Sequence

from spark_groupsource.broker.coordinators.services import CoordinatorServices
from spark_groupsource.common.coroutines import pause
from spark_groupsource.errors import ApiError, StorageError
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC, EventKind, GroupEvent, encode_event

TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "67108864",
    "segment.bytes": "8388608",
}
"""Seven days, and about 64 MiB. Events of groups are not state: nothing is lost by their deletion."""

_FLUSH_MS = 100
_MAX_BATCH_BYTES = 524_288
_MAX_EVENT_BYTES = 393_216
# until retention applies, clients that rejoin in a loop could write as fast as the disk
_MAX_BYTES_PER_MINUTE = 16_777_216
_MAX_BUFFERED = 20_000
_EVENTS_PER_FLUSH, _FLUSH_PAUSE_MS = 100, 1
_MINUTE_MS = 60_000
_END = EventKind.ASSIGNED


class GroupEventLog:
    """The log of all groups' events. Called by the broker's event loop only."""

    def __init__(self, services: CoordinatorServices) -> None:
        self._services = services
        self._timer = services.timers.timer(lambda: services.start_task(self._flush_some()))
        self._flushing = asyncio.Lock()
        self._buffer: list[GroupEvent] = []
        self._minute_ends_ms = self._left_bytes = self._dropped = 0
        self._flushed_ms = self._due_ms = 0

    def add(self, events: Sequence[GroupEvent]) -> None:
        """Takes events, which are appended within 100 ms, after the end of a rebalance mostly at once."""
        if len(self._buffer) >= _MAX_BUFFERED:
            self._dropped += len(events)
            return
        if self._buffer and self._due_ms <= self._flushed_ms + _FLUSH_MS:  # no event is due earlier
            self._buffer += events
            return
        due_ms = self._services.clock.now_ms()
        if _END in [event.kind for event in events]:
            due_ms = max(due_ms, self._flushed_ms + _FLUSH_MS)
        else:
            due_ms += _FLUSH_MS
        if not self._buffer or due_ms < self._due_ms:
            self._flush_at(due_ms)
        self._buffer += events

    def _flush_at(self, due_ms: int) -> None:
        self._due_ms = due_ms
        self._timer.set(due_ms)

    async def flush(self) -> None:
        """Appends all events in memory."""
        while self._buffer:
            await self._flush_some()
            await pause()

    async def _flush_some(self) -> None:
        """Appends events in memory, a limited number; drops them if that fails, or above the limit per minute."""
        async with self._flushing:
            await self._append_some()

    async def _append_some(self) -> None:
        events, self._buffer = self._buffer[:_EVENTS_PER_FLUSH], self._buffer[_EVENTS_PER_FLUSH:]
        if not events:
            return
        self._flushed_ms = self._services.clock.now_ms()
        if self._buffer:  # thousands of members may join or leave at once
            self._flush_at(self._flushed_ms + _FLUSH_PAUSE_MS)
        self._start_minute()
        records: list[Record] = []
        size = 0
        try:
            for number, event in enumerate(events):
                value = encode_event(event)
                if len(value) > _MAX_EVENT_BYTES:
                    value = encode_event(event._replace(client_id=None, host=None, group_instance_id=None, detail={}))
                if len(value) > self._left_bytes:
                    self._dropped += len(events) - number
                    break
                self._left_bytes -= len(value)
                if records and size + len(value) > _MAX_BATCH_BYTES:
                    await self._append(records)
                    records, size = [], 0
                records.append(Record(event.group.encode(), value, event.at_ms))
                size += len(value) + len(event.group)
            if records:
                await self._append(records)
        except (ApiError, StorageError) as error:
            # the next attempt is made in the next minute
            self._left_bytes = 0
            self._services.report(
                f"[topic={GROUP_EVENTS_TOPIC}] Recording events of groups failed: {error} Groups are not affected."
            )

    async def ensure_topic(self) -> None:
        """Creates the topic unless it exists. Raises: ApiError."""
        if GROUP_EVENTS_TOPIC not in self._services.partitions.topics:
            await self._services.ensure_topic(GROUP_EVENTS_TOPIC, 1, TOPIC_SETTINGS)

    def _start_minute(self) -> None:
        now_ms = self._services.clock.now_ms()
        if now_ms < self._minute_ends_ms:
            return
        self._minute_ends_ms, self._left_bytes = now_ms + _MINUTE_MS, _MAX_BYTES_PER_MINUTE
        if self._dropped:
            text = f"[topic={GROUP_EVENTS_TOPIC}] Events that were not recorded: {self._dropped:,}."
            self._services.report(text, logging.WARNING)
            self._dropped = 0

    async def _append(self, records: list[Record]) -> None:
        await self.ensure_topic()
        target = self._services.partitions.partition(GROUP_EVENTS_TOPIC, 0)
        appended = target.append_from_coordinator(encode_batch(records), self._services.clock.timestamp_ms())
        self._services.on_append(target.topic_partition, appended.size)
