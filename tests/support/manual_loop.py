"""Event loop on a manual clock, run step by step."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, Callable

from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.membership.membership_values import Idle
from spark_groupsource.common.clock import ManualClock


class ManualLoop(asyncio.BaseEventLoop):
    """Time passes in `run_until_idle` only, from one timer to the next.

    The methods with an underscore are what `BaseEventLoop` requires of a loop.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._manual_clock = clock
        self._selector = self
        # times of timers are rounded to milliseconds
        self._clock_resolution = 0.0005

    def time(self) -> float:
        return self._manual_clock.now_ms() / 1000

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        """Nothing waits for it."""

    def __del__(self) -> None:
        # the owner of a group client under test does not stop it
        self.close()

    def run_until_idle(self) -> None:
        """Runs the tasks; returns when all of them have ended."""
        while self.run_ready():
            timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            assert timers, "the tasks wait for nothing"
            self._manual_clock.advance_ms(max(round((min(timers) - self.time()) * 1000), 0))

    def run_ready(self) -> bool:
        """Runs what needs no time; returns whether tasks wait."""
        self.call_soon(self.stop)
        self.run_forever()
        while self._ready:  # type: ignore[attr-defined]
            self.call_soon(self.stop)
            self.run_forever()
        return bool(asyncio.all_tasks(self))


class ManualMembers:
    """Runs the members of a group client in steps, without threads.

    Attributes:
        assignor_ms: how long an assignor takes.
    """

    def __init__(self, client: GroupClient, clock: ManualClock) -> None:
        self.assignor_ms = 0
        self.loop = ManualLoop(clock)
        self._client, self._clock = client, clock
        client.loop.start = lambda: None  # type: ignore[method-assign]
        client.loop.calls.start = self._call  # type: ignore[method-assign]
        client.loop.attach(self.loop)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Replaces `BlockingCalls.start`: there are no other threads."""
        future = Future[Any]()

        def call() -> None:
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)

        if getattr(function, "__name__", "") == "_assign" and self.assignor_ms:
            self.loop.call_later(self.assignor_ms / 1000, call)
        else:
            call()
        return future

    def run_once(self) -> None:
        """Executes one action of the first member."""
        members = self._client.loop
        # private: the loop starts no action itself
        members._busy.add(0)
        task = members.tasks[0]
        self.loop.create_task(task.run(task.next_action(self._clock.now_ms())))
        self.loop.run_until_idle()
        members._busy.discard(0)

    def run(self) -> None:
        """Runs the event loop until the members are idle."""
        shared = self._client.shared
        while True:
            shared.wake()
            self.loop.run_until_idle()
            now_ms = self._clock.now_ms()
            if all(isinstance(member.membership.next_action(now_ms), Idle) for member in shared.members):
                return
