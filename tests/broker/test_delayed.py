"""Deadlines and parked fetches, without a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.broker.fetch.purgatory import DelayedFetchPurgatory
from spark_groupsource.deadlines import DeadlineHeap
from spark_groupsource.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def drain(heap, now_ms):
    found = []
    while (key := heap.pop_expired(now_ms)) is not None:
        found.append(key)
    return found


def test_keys_come_out_in_the_order_of_their_deadlines():
    heap = DeadlineHeap()
    for key, deadline_ms in (("c", 30), ("a", 10), ("b", 20)):
        heap.set(key, deadline_ms)
    assert heap.next_deadline_ms() == 10
    assert drain(heap, 9) == []
    assert drain(heap, 20) == ["a", "b"]
    assert (heap.next_deadline_ms(), len(heap), "c" in heap) == (30, 1, True)


def test_a_key_that_is_set_again_moves():
    heap = DeadlineHeap()
    heap.set("a", 10)
    heap.set("a", 30)
    heap.set("b", 20)
    assert (drain(heap, 25), drain(heap, 30)) == (["b"], ["a"])
    heap.set("a", 50)
    heap.set("a", 40)
    assert (heap.next_deadline_ms(), drain(heap, 40), len(heap)) == (40, ["a"], 0)


def test_a_cancelled_key_does_not_come():
    heap = DeadlineHeap()
    heap.set("a", 10)
    heap.cancel("a")
    heap.cancel("never there")
    assert (heap.next_deadline_ms(), drain(heap, 100)) == (None, [])


def test_what_one_expiry_cancels_does_not_expire():
    heap = DeadlineHeap()
    heap.set("a", 10)
    heap.set("b", 10)
    assert heap.pop_expired(10) == "a"
    heap.cancel("b")
    assert heap.pop_expired(10) is None


def test_a_later_deadline_costs_no_entry_and_an_earlier_one_counts_at_once():
    heap = DeadlineHeap()
    for deadline_ms in (10, 20, 30):
        heap.set("session", deadline_ms)
    assert (len(heap._heap), heap.lower_bound_ms(), heap.next_deadline_ms()) == (1, 10, 30)
    heap.set("session", 5)
    assert (heap.lower_bound_ms(), drain(heap, 5), heap.next_deadline_ms()) == (5, ["session"], None)
    heap.set("session", 40)
    assert (drain(heap, 39), drain(heap, 40)) == ([], ["session"])


def test_a_deadline_that_moves_for_ever_takes_no_memory():
    heap = DeadlineHeap()
    for deadline_ms in range(10_000):
        heap.set("session", deadline_ms)
    assert len(heap._heap) < 200
    assert drain(heap, 20_000) == ["session"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.sampled_from(["set", "cancel", "expire"]))))
def test_the_heap_does_what_a_dictionary_does(steps):
    heap, plain = DeadlineHeap(), {}
    for key, number, step in steps:
        if step == "set":
            heap.set(key, number)
            plain[key] = number
            assert heap.lower_bound_ms() <= min(plain.values())
        elif step == "cancel":
            heap.cancel(key)
            plain.pop(key, None)
        else:
            due = {key for key, deadline_ms in plain.items() if deadline_ms <= number}
            assert set(drain(heap, number)) == due
            plain = {key: deadline_ms for key, deadline_ms in plain.items() if key not in due}
        assert heap.next_deadline_ms() == min(plain.values(), default=None)


def test_a_fetch_waits_for_the_bytes_it_lacks():
    parked = DelayedFetchPurgatory()
    parked.watch("f", [A, B], 100)
    assert parked.record_append(A, 60) == []
    assert parked.record_append(TopicPartition("c", 0), 1000) == []
    assert parked.record_append(B, 40) == ["f"]
    assert (len(parked), parked.record_append(A, 1000), parked.remove("f")) == (0, [], False)


def test_appends_serve_the_oldest_first_and_every_one_that_has_enough():
    parked = DelayedFetchPurgatory()
    for token, missing in (("f", 10), ("g", 10_000), ("h", 1)):
        parked.watch(token, [A], missing)
    assert parked.record_append(A, 10) == ["f", "h"]
    assert parked.remove_watchers(A) == ["g"]
    assert parked.remove_watchers(A) == []


def test_a_fetch_that_is_removed_is_not_credited():
    parked = DelayedFetchPurgatory()
    parked.watch("f", [A, B], 1)
    assert parked.remove("f")
    assert (parked.record_append(A, 5), parked.remove_watchers(B), parked._watchers) == ([], [], {})
