"""Deterministic threads, locks and time.

One thread runs at a time, and the seeded randomness chooses the next one.

Time passes only while every thread waits. The code under test runs unchanged: `replaced_threads` replaces the module
`threading` and the event loop in its modules.
"""

from __future__ import annotations

import asyncio
import threading as real
from collections import deque
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from importlib import import_module
from random import Random
from typing import Any, Callable, Iterator

from spark_groupsource.common.clock import Instant

_EPOCH_MS = 1_700_000_000_000
_MODULES = (
    "client.membership.shared_membership",
    "client.membership.member_loop",
    "client.membership.blocking_calls",
    "client.membership.member_commits",
    "client.membership.task_heartbeat",
    "client.network.connection_pool",
    "client.cluster.routing",
    "source.session",
    "source.locked_calls",
)


class Killed(BaseException):
    """The process of the thread was killed, or the simulation has ended."""


class Stalled(AssertionError):
    """Every thread waits without a timeout."""


class Process:
    """A process of the simulated machines; a killed one never runs again."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.is_killed = False
        self.paused_until_ms = 0
        self.epoch_offset_ms = 0
        self.threads: list[VirtualThread] = []

    def kill(self) -> None:
        self.is_killed = True
        for thread in self.threads:
            self.kernel.wake(thread)

    def start(self, name: str, target: Callable[[], None]) -> VirtualThread:
        return self.kernel.start(self, name, target)


class Worker:
    """A thread of the operating system, which runs one virtual thread after the other; `baton` lets it run."""

    def __init__(self) -> None:
        self.baton = real.Lock()
        self.baton.acquire()
        # None ends it
        self.run: Callable[[], None] | None = None
        self.os_thread = real.Thread(target=self._run, daemon=True)
        self.os_thread.start()

    def _run(self) -> None:
        while True:
            self.baton.acquire()
            run, self.run = self.run, None
            if run is None:
                return
            run()


class VirtualThread:
    """One thread; `worker` lets it run."""

    def __init__(self, process: Process, name: str, target: Callable[[], None], worker: Worker) -> None:
        self.process = process
        self.name = name
        self.target = target
        self.worker = worker
        self.is_ready = False
        self.is_running = False
        self.is_ended = False
        self.waits = 0
        self.ended: deque[VirtualThread] = deque()


class Kernel:
    """Threads, calls at a time, and the clock."""

    def __init__(self, random: Random, *, preemption: float = 0.0) -> None:
        self.random = random
        self.now_ms = 1_000
        self.current: VirtualThread = None  # type: ignore[assignment]
        self.failure: BaseException | None = None
        self.is_stopped = False
        self._preemption = preemption
        self.may_yield = preemption > 0
        self._ready: list[VirtualThread] = []
        self._alive: list[VirtualThread] = []
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._calls = 0
        self._finished = real.Semaphore(0)
        # those that run no virtual thread
        self._idle: list[Worker] = []

    # -- clock and calls, as `SimulationClock` -----------------------------------------------------------------------

    @property
    def timestamp_ms(self) -> int:
        return _EPOCH_MS + self.now_ms

    def instant(self) -> Instant:
        return Instant(self.now_ms, _EPOCH_MS + self.now_ms)

    def call_at(self, at_ms: int, what: Callable[..., None], *args: Any) -> None:
        """Schedules a call; calls of the same time run in order of scheduling."""
        self._calls += 1
        heappush(self._queue, (max(at_ms, self.now_ms), self._calls, what, args))

    def call_in(self, delay_ms: int, what: Callable[..., None], *args: Any) -> None:
        self.call_at(self.now_ms + delay_ms, what, *args)

    # -- threads -----------------------------------------------------------------------------------------------------

    def run(self, process: Process, main: Callable[[], None]) -> None:
        """Runs `main` and what it starts until it returns; raises the first error of any thread."""

        def first() -> None:
            main()
            self.is_stopped = True

        thread = self.start(process, "main", first)
        self._ready.remove(thread)
        thread.is_ready = False
        self._pass(thread)
        self._finished.acquire()
        for worker in self._idle:
            worker.baton.release()
        for worker in self._idle:
            worker.os_thread.join()
        if self.failure is not None:
            raise self.failure

    def start(self, process: Process, name: str, target: Callable[[], None]) -> VirtualThread:
        worker = self._idle.pop() if self._idle else Worker()
        thread = VirtualThread(process, name, target, worker)
        worker.run = partial(self._main, thread)
        process.threads.append(thread)
        self._alive.append(thread)
        self.wake(thread)
        return thread

    def _main(self, thread: VirtualThread) -> None:
        try:
            if not self.is_stopped and not thread.process.is_killed:
                thread.target()
        except Killed:
            pass
        except BaseException as error:
            self.fail(error)
        thread.is_ended, thread.is_running = True, False
        self._alive.remove(thread)
        thread.process.threads.remove(thread)
        for waiting in thread.ended:
            self.wake(waiting)
        self._idle.append(thread.worker)
        if not self._alive:
            self._finished.release()
            return
        self._pass(self._next())

    def fail(self, error: BaseException) -> None:
        """Ends the simulation with an error."""
        self.failure = self.failure or error
        self.is_stopped = True

    def wake(self, thread: VirtualThread) -> None:
        if not (thread.is_ready or thread.is_running or thread.is_ended):
            thread.is_ready = True
            thread.waits += 1
            self._ready.append(thread)

    def _pass(self, thread: VirtualThread) -> None:
        self.current, thread.is_running = thread, True
        thread.worker.baton.release()

    def _next(self) -> VirtualThread:
        """Returns the thread to run next; time passes until there is one."""
        ready = self._ready
        try:
            while not self.is_stopped:
                if ready:
                    index = self.random.randrange(len(ready)) if len(ready) > 1 else 0
                    ready[index], ready[-1] = ready[-1], ready[index]
                    thread = ready.pop()
                    thread.is_ready = False
                    until_ms = thread.process.paused_until_ms
                    if until_ms > self.now_ms and not thread.process.is_killed:
                        self.call_at(until_ms, self._resume, thread, thread.waits)
                        continue
                    return thread
                if not self._queue:
                    raise Stalled("every thread waits without a timeout")
                self.now_ms, _, what, args = heappop(self._queue)
                what(*args)
        except BaseException as error:
            self.fail(error)
        return self._alive[0]

    def _resume(self, thread: VirtualThread, waits: int) -> None:
        if thread.waits == waits:
            self.wake(thread)

    def block(self) -> None:
        """Lets other threads run until this one is woken.

        Raises: Killed.
        """
        self.check()
        thread = self.current
        thread.is_running = False
        chosen = self._next()
        if chosen is thread:
            thread.is_running = True
        else:
            self._pass(chosen)
            thread.worker.baton.acquire()
        self.check()

    def check(self) -> None:
        if self.is_stopped or self.current.process.is_killed:
            raise Killed

    def wait(self, queue: deque[VirtualThread], timeout_ms: float | None) -> bool:
        """Waits in `queue` until `notify`; returns False after the timeout."""
        thread = self.current
        queue.append(thread)
        waits = thread.waits
        if timeout_ms is not None:
            self.call_at(self.now_ms + max(round(timeout_ms), 0), self._resume, thread, waits)
        try:
            self.block()
        finally:
            is_notified = thread not in queue
            if not is_notified:
                queue.remove(thread)
        return is_notified

    def notify(self, queue: deque[VirtualThread]) -> None:
        while queue:
            self.wake(queue.popleft())

    def sleep_ms(self, duration_ms: float) -> None:
        thread = self.current
        self.call_at(self.now_ms + round(duration_ms), self._resume, thread, thread.waits)
        self.block()

    def sleep_until(self, is_due: Callable[[], bool], interval_ms: int) -> None:
        """Sleeps until a check at each interval succeeds, which must use no lock: no thread runs for it."""
        thread, waits = self.current, self.current.waits

        def check() -> None:
            if thread.waits == waits and is_due():
                self.wake(thread)
            elif thread.waits == waits:
                self.call_in(interval_ms, check)

        self.call_in(interval_ms, check)
        self.block()

    def yield_sometimes(self) -> None:
        """Lets another thread run, with the probability of this run."""
        self.check()
        if self.may_yield and self._ready and self.random.random() < self._preemption:
            self.call_in(0, self._resume, self.current, self.current.waits)
            self.block()


class VirtualClock:
    """`Clock` of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._kernel = process.kernel

    def now_ms(self) -> int:
        return self._kernel.now_ms

    def timestamp_ms(self) -> int:
        return self._kernel.timestamp_ms + self._process.epoch_offset_ms

    def instant(self) -> Instant:
        return Instant(self.now_ms(), self.timestamp_ms())

    def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms > 0:
            self._kernel.sleep_ms(duration_ms)
        else:
            self._kernel.yield_sometimes()


# -- replacements of the standard library ------------------------------------------------------------------------------

_kernel: Kernel = None  # type: ignore[assignment]


class Lock:
    """`threading.Lock`, and `threading.RLock` if `is_reentrant`."""

    is_reentrant = False

    def __init__(self) -> None:
        self._owner: VirtualThread | None = None
        self._count = 0
        self._waiting: deque[VirtualThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = _kernel
        kernel.yield_sometimes()
        thread = kernel.current
        if self._owner is thread and self.is_reentrant:
            self._count += 1
            return True
        end_ms = kernel.now_ms + timeout * 1000
        while self._owner is not None:
            if not blocking:
                return False
            left_ms = None if timeout < 0 else end_ms - kernel.now_ms
            if left_ms is not None and left_ms <= 0:
                return False
            kernel.wait(self._waiting, left_ms)
        self._owner, self._count = thread, 1
        return True

    def release(self) -> None:
        if self._owner is not _kernel.current:
            return  # the thread was killed while it waited
        self._count -= 1
        if not self._count:
            self._owner = None
            _kernel.notify(self._waiting)

    def __enter__(self) -> bool:
        # the frequent case of `acquire`, for speed
        kernel = _kernel
        if kernel is None:
            return True  # a coroutine of a former run is collected
        if self._owner is None and not kernel.may_yield:
            kernel.check()
            self._owner, self._count = kernel.current, 1
            return True
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        if _kernel is None:
            return
        if self._count == 1 and not self._waiting and self._owner is _kernel.current:
            self._owner, self._count = None, 0
        else:
            self.release()


class RLock(Lock):
    is_reentrant = True


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: deque[VirtualThread] = deque()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        is_notified = _kernel.wait(self._waiting, None if timeout is None else timeout * 1000)
        self._lock.acquire()
        return is_notified

    def notify_all(self) -> None:
        _kernel.notify(self._waiting)


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[VirtualThread] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        _kernel.notify(self._waiting)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            _kernel.wait(self._waiting, None if timeout is None else timeout * 1000)
        return self._is_set


class Thread:
    """`threading.Thread`: runs in the process of its creator."""

    def __init__(self, target: Callable[[], None], name: str = "", daemon: bool = True) -> None:
        self._target, self._name = target, name
        self._started: VirtualThread | None = None

    @property
    def ident(self) -> int | None:
        return None if self._started is None else id(self._started)

    def start(self) -> None:
        self._started = _kernel.current.process.start(self._name, self._target)

    def join(self, timeout: float | None = None) -> None:
        thread = self._started
        if thread is not None and not thread.is_ended:
            _kernel.wait(thread.ended, None if timeout is None else timeout * 1000)


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop of asyncio in virtual time.

    The methods with an underscore are what `BaseEventLoop` requires of a loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kernel = _kernel
        self._selector = self
        self._waiting: deque[VirtualThread] = deque()
        # times of timers are rounded to milliseconds
        self._clock_resolution = 0.0005

    def time(self) -> float:
        return self._kernel.now_ms / 1000

    def select(self, timeout: float | None) -> list[Any]:
        if timeout == 0:
            self._kernel.yield_sometimes()
        else:
            self._kernel.wait(self._waiting, None if timeout is None else timeout * 1000)
        return []

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        self._kernel.notify(self._waiting)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks of a killed process never end."""

    def __del__(self) -> None:
        """A killed process does not close it."""


class _Threading:
    Lock, RLock, Condition, Event, Thread = Lock, RLock, Condition, Event, Thread


@contextmanager
def replaced_threads(kernel: Kernel) -> Iterator[None]:
    """Replaces threads and locks in the modules under test while the block runs."""
    global _kernel
    former, _kernel = _kernel, kernel
    saved = []
    for name in _MODULES:
        module = import_module(f"spark_groupsource.{name}")
        replacements: dict[str, object] = {"threading": _Threading}
        if name.endswith("member_loop"):
            replacements["new_event_loop"] = VirtualLoop
        for attribute, value in replacements.items():
            saved.append((module, attribute, getattr(module, attribute)))
            setattr(module, attribute, value)
    try:
        yield
    finally:
        _kernel = former
        for module, attribute, value in saved:
            setattr(module, attribute, value)
