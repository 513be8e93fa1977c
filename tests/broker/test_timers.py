"""Typed timers of several components in one heap."""

from __future__ import annotations

import pytest

from spark_groupsource.broker.group import JoinTimer, SessionTimer, SyncTimer
from spark_groupsource.common.timers import Timers


def test_timers_of_all_queues_expire_in_deadline_order():
    timers, expired = Timers(), []
    first, second = timers.queue(lambda key: expired.append(("first", key))), timers.queue(expired.append)
    single = timers.timer(lambda: expired.append("single"))
    first.set("a", 30)
    second.set("b", 10)
    single.set(20)
    first.set("c", 10)
    assert (timers.lower_bound_ms(), timers.next_deadline_ms()) == (10, 10)
    timers.run_expired(lambda: 20)
    assert expired == ["b", ("first", "c"), "single"]
    assert timers.next_deadline_ms() == 30


def test_equal_keys_of_two_queues_are_different_timers():
    timers, expired = Timers(), []
    first, second = timers.queue(lambda key: expired.append(1)), timers.queue(lambda key: expired.append(2))
    first.set("a", 10)
    second.set("a", 20)
    first.cancel("a")
    assert (first.is_set("a"), second.is_set("a"), timers.next_deadline_ms()) == (False, True, 20)
    timers.run_expired(lambda: 20)
    assert (expired, second.is_set("a"), timers.next_deadline_ms()) == ([2], False, None)


def test_a_callback_can_set_and_cancel_timers_of_other_queues():
    timers, expired = Timers(), []
    other = timers.queue(expired.append)

    def change() -> None:
        other.cancel("cancelled")
        other.set("set", 5)
        other.set("moved", 50)

    single = timers.timer(change)
    single.set(10)
    other.set("cancelled", 10)
    other.set("moved", 10)
    timers.run_expired(lambda: 10)
    assert (expired, timers.next_deadline_ms()) == (["set"], 50)
    single.set(60)
    single.cancel()
    timers.run_expired(lambda: 100)
    assert expired == ["set", "moved"]


def test_an_error_of_a_callback_loses_no_other_timer():
    timers, expired = Timers(), []
    timers.timer(lambda: pytest.fail("a bug")).set(10)
    timers.queue(expired.append).set("a", 10)
    with pytest.raises(pytest.fail.Exception):
        timers.run_expired(lambda: 10)
    timers.run_expired(lambda: 10)
    assert (expired, timers.next_deadline_ms()) == (["a"], None)


def test_group_timers_of_different_kinds_are_different_keys():
    keys = [JoinTimer("g"), SyncTimer("g"), SessionTimer("g", "join"), SessionTimer("g", "sync"), SessionTimer("g", "")]
    assert len({*keys, *map(tuple, keys)}) == len(keys)
    assert SessionTimer("g", "m") == SessionTimer("g", "".join(("", "m"))) != SessionTimer("m", "g")


def test_many_expired_timers_run_in_slices():
    timers, expired, now = Timers(), [], 1_000

    def expire(key):
        nonlocal now
        now += 4
        expired.append(key)

    queue = timers.queue(expire)
    for number in range(10):
        queue.set(number, number)
    timers.run_expired(lambda: now, slice_ms=10)
    assert expired == [0, 1, 2] and timers.next_deadline_ms() == 3
    while timers.next_deadline_ms() is not None:
        timers.run_expired(lambda: now, slice_ms=10)
    assert expired == list(range(10))
