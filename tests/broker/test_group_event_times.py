"""Times at which the events of groups are appended."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource.broker.coordinators.group_event_log import GroupEventLog
from spark_groupsource.common.coroutines import begin
from spark_groupsource.records.encode import Record
from spark_groupsource.wire.group_events import EventKind, GroupEvent

START = GroupEvent(0, "g", EventKind.REBALANCE_STARTED)
END = GroupEvent(0, "g", EventKind.ASSIGNED)


class _Timer:
    deadline_ms = 0

    def set(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms


def test_the_end_of_a_rebalance_delays_no_other_event(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, clock, appended = _Timer(), SimpleNamespace(time_ms=1_000), list[Record]()
    services: Any = SimpleNamespace(
        timers=SimpleNamespace(timer=lambda callback: timer), clock=SimpleNamespace(now_ms=lambda: clock.time_ms)
    )
    log = GroupEventLog(services)
    # the only way to see the records without a broker
    async def append(records: list[Record]) -> None:
        appended.extend(records)

    monkeypatch.setattr(log, "_append", append)

    def expire() -> None:
        clock.time_ms = timer.deadline_ms
        with suppress(StopIteration):
            begin(log.flush(), 0)

    log.add([START])
    assert timer.deadline_ms == 1_100
    log.add([END])
    assert timer.deadline_ms == 1_000, "the end of the first rebalance is appended at once"
    expire()
    assert len(appended) == 2
    clock.time_ms = 1_010
    log.add([START])
    log.add([END])
    assert timer.deadline_ms == 1_100, "others were appended 10 ms before"
    log.add([START] * 250)
    expire()
    assert len(appended) == 102 and timer.deadline_ms == 1_101
    log.add([END])
    assert timer.deadline_ms == 1_101, "events above the limit of a step are appended next"
