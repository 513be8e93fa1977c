"""Event loop of the members of one process and group.

A member without a pending action costs nothing but an entry in a heap. When its time comes, or another thread has
changed it, a task executes the action of its state machine; it ends with the response. So the work of an idle group is
one Heartbeat per member and interval, and heartbeats that are due together go out together on the shared connection.

asyncio runs it, because its futures and tasks are what a rebalance needs: a step may wait for a response, a time, a
thread and other members. What blocks (lookups, opening of connections, assignors) runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import new_event_loop
from typing import Coroutine

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.blocking_calls import BlockingCalls
from spark_groupsource.client.membership.group_connections import GroupConnections
from spark_groupsource.client.membership.member_commits import MemberCommits
from spark_groupsource.client.membership.member_task import MemberTask
from spark_groupsource.client.membership.membership_values import Action, Idle
from spark_groupsource.client.membership.shared_membership import LocalMember, SharedMembership
from spark_groupsource.common.deadlines import DeadlineHeap

_log = logging.getLogger(__name__)

# members whose actions are due within so long act together
_GRANULARITY_MS = 50
# the owner looks at the members at most this often
_NOTIFY_INTERVAL_MS = 10
# how long a member with a new id waits until all members of the process have theirs, so that they join one rebalance
_MEMBER_IDS_WAIT_MS = 1_000
_MEMBER_IDS_CHECK_MS = 20


class MemberLoop:
    """Runs the members of `shared` in one thread, from `start` to `stop`."""

    def __init__(self, cluster: ClusterClient, shared: SharedMembership, commits: MemberCommits) -> None:
        self._clock = cluster.clock
        self._shared = shared
        self._commits = commits
        self.calls = BlockingCalls()
        self.connections = GroupConnections(cluster, shared, self.calls)
        self.tasks = tuple(
            MemberTask(each, cluster, shared, self.connections, self.calls, self._notify, self._await_member_ids)
            for each in shared.members
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._busy: set[int] = set()
        self._due: DeadlineHeap[int] = DeadlineHeap()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_woken = False
        self._notified_ms = 0
        self._notifies = False
        self._ids_known: asyncio.Task[None] | None = None
        # members whose last offsets are to be committed again
        self._repeated: list[LocalMember] = []
        self._repeating: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"members of {shared.settings.group_id}", daemon=True)

    def start(self) -> None:
        """Starts the thread; may be called once."""
        self._thread.start()

    def stop(self, timeout_ms: int) -> None:
        """Ends the thread and its requests; the caller has set `SharedMembership.is_closing`."""
        self._shared.wake()
        if self._thread.ident is not None:
            self._thread.join(max(timeout_ms, 1) / 1000)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = new_event_loop()
        try:
            loop.run_until_complete(self._serve(loop))
        finally:
            loop.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._closing = loop.create_future()
        self.attach(loop)
        await self._closing
        self.connections.close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Executes the actions of the members in an event loop, when that runs."""
        self._loop, self._is_woken = loop, False
        self._shared.wake = self._wake
        self._wake()

    def _wake(self) -> None:
        """For any thread, which may hold `changed`."""
        with self._shared.changed:
            if not self._is_woken and self._loop is not None:
                self._is_woken = True
                self._loop.call_soon_threadsafe(self._check_all)

    def _check_all(self) -> None:
        with self._shared.changed:
            self._is_woken = False
            if self._shared.is_closing:
                self._loop = None
        if self._loop is not None:
            self._check(range(len(self.tasks)))
        elif self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    def _check_due(self) -> None:
        self._timer = None
        now_ms, due = self._clock.now_ms(), []
        while (index := self._due.pop_expired(now_ms)) is not None:
            due.append(index)
        self._check(due)

    def _check(self, indexes: list[int] | range) -> None:
        """Starts the actions that are due, and sets the timer for those that are not."""
        if self._loop is None:
            return
        actions: list[tuple[int, Action]] = []
        with self._shared.changed:
            now_ms = self._clock.now_ms()
            for index in indexes:
                task = self.tasks[index]
                due_ms = self._repeat_due_ms(task, now_ms)
                if index not in self._busy:
                    action = task.next_action(now_ms)
                    if isinstance(action, Idle):
                        due_ms = min(due_ms, action.until_ms)
                    else:
                        actions.append((index, action))
                self._due.set(index, -(-due_ms // _GRANULARITY_MS) * _GRANULARITY_MS)
        for index, action in actions:
            self._busy.add(index)
            self._start(self._execute(index, action))
        if self._repeated and self._repeating is None:
            self._repeating = self._start(self._repeat())
        self._set_timer(now_ms)

    def _repeat_due_ms(self, task: MemberTask, now_ms: int) -> int:
        """Repeats the last commits if that is due, also while JoinGroup waits; returns when to repeat them next."""
        membership = task.membership
        if membership.repeat_due_ms <= now_ms:
            self._repeated.append(task.member)
            membership.repetition.repeated(now_ms)
        return membership.repeat_due_ms

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _set_timer(self, now_ms: int) -> None:
        next_ms = self._due.next_deadline_ms()
        if self._loop is None or (self._timer is not None and next_ms == self._timer_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_ms is not None:
            self._timer = self._loop.call_later(max(next_ms - now_ms, 0) / 1000, self._check_due)
            self._timer_ms = next_ms

    async def _execute(self, index: int, action: Action) -> None:
        await self.tasks[index].run(action)
        self._busy.discard(index)
        self._check([index])

    async def _repeat(self) -> None:
        while self._repeated:
            members, self._repeated = self._repeated, []
            try:
                await self.calls.run(self._commits.repeat, members)
            except Exception:
                # the next repetition follows, and the heartbeats of the members raise what remains wrong
                _log.warning("[group=%s] Repeating commits failed.", self._shared.settings.group_id, exc_info=True)
        self._repeating = None

    # -- for the tasks -----------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        """Lets the owner's thread look at the members, once for many changes."""
        if self._loop is None or self._notifies:
            return
        self._notifies = True
        wait_ms = self._notified_ms + _NOTIFY_INTERVAL_MS - self._clock.now_ms()
        self._loop.call_later(max(wait_ms, 0) / 1000, self._notify_now)

    def _notify_now(self) -> None:
        self._notifies = False
        self._notified_ms = self._clock.now_ms()
        with self._shared.changed:
            self._shared.changed.notify_all()

    async def _await_member_ids(self) -> None:
        """Waits for members of this process that have no member id yet.

        The coordinator waits for every id that it has issued, so members that all have an id before the first of them
        joins are in one rebalance. (An empty group is the exception: it waits group.initial.rebalance.delay.ms.)
        """
        if self._ids_known is None:
            self._ids_known = self._start(self._check_member_ids())
        await asyncio.wait([self._ids_known])

    async def _check_member_ids(self) -> None:
        deadline_ms = self._clock.now_ms() + _MEMBER_IDS_WAIT_MS
        while self._clock.now_ms() < deadline_ms:
            with self._shared.changed:
                if not self._shared.awaits_member_ids():
                    break
            await asyncio.sleep(_MEMBER_IDS_CHECK_MS / 1000)
        self._ids_known = None
