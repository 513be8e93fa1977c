"""Deadline heap and purgatory of delayed fetches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.broker.fetch.purgatory import DelayedFetchPurgatory
from spark_groupsource.common.deadlines import DeadlineHeap
from spark_groupsource.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def drain(heap, now_ms):
    found = []
    while (key := heap.pop_expired(now_ms)) is not None:
        found.append(key)
    return found


def test_keys_expire_in_deadline_order():
    heap = DeadlineHeap()
    for key, deadline_ms in (("c", 30), ("a", 10), ("b", 20)):
        heap.set(key, deadline_ms)
    assert heap.next_deadline_ms() == 10
    assert drain(heap, 9) == []
    assert drain(heap, 20) == ["a", "b"]
    assert (heap.next_deadline_ms(), len(heap), "c" in heap) == (30, 1, True)


def test_setting_a_key_again_moves_its_deadline():
    heap = DeadlineHeap()
    heap.set("a", 10)
    heap.set("a", 30)
    heap.set("b", 20)
    assert (drain(heap, 25), drain(heap, 30)) == (["b"], ["a"])
    heap.set("a", 50)
    heap.set("a", 40)
    assert (heap.next_deadline_ms(), drain(heap, 40), len(heap)) == (40, ["a"], 0)


def test_a_cancelled_key_does_not_expire():
    heap = DeadlineHeap()
    heap.set("a", 10)
    heap.cancel("a")
    heap.cancel("never there")
    assert (heap.next_deadline_ms(), drain(heap, 100)) == (None, [])


def test_a_key_cancelled_by_an_earlier_expiry_does_not_expire():
    heap = DeadlineHeap()
    heap.set("a", 10)
    heap.set("b", 10)
    assert heap.pop_expired(10) == "a"
    heap.cancel("b")
    assert heap.pop_expired(10) is None


def test_a_later_deadline_reuses_the_entry_and_an_earlier_one_applies_at_once():
    heap = DeadlineHeap()
    for deadline_ms in (10, 20, 30):
        heap.set("session", deadline_ms)
    # the private list is the memory that the heap uses
    assert (len(heap._heap), heap.lower_bound_ms(), heap.next_deadline_ms()) == (1, 10, 30)
    heap.set("session", 5)
    assert (heap.lower_bound_ms(), drain(heap, 5), heap.next_deadline_ms()) == (5, ["session"], None)
    heap.set("session", 40)
    assert (drain(heap, 39), drain(heap, 40)) == ([], ["session"])


def test_moving_a_deadline_repeatedly_uses_bounded_memory():
    heap = DeadlineHeap()
    for deadline_ms in range(10_000):
        heap.set("session", deadline_ms)
    assert len(heap._heap) < 200  # the private list is the memory that the heap uses
    assert drain(heap, 20_000) == ["session"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.sampled_from(["set", "cancel", "expire"]))))
def test_the_heap_agrees_with_a_dictionary(steps):
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


def test_a_fetch_completes_with_its_missing_bytes():
    purgatory = DelayedFetchPurgatory()
    purgatory.watch("f", [A, B], 100)
    assert purgatory.record_append(A, 60) == []
    assert purgatory.record_append(TopicPartition("c", 0), 1000) == []
    assert purgatory.record_append(B, 40) == ["f"]
    assert (len(purgatory), purgatory.record_append(A, 1000), purgatory.remove("f")) == (0, [], False)


def test_an_append_completes_all_satisfied_fetches_oldest_first():
    purgatory = DelayedFetchPurgatory()
    for token, missing in (("f", 10), ("g", 10_000), ("h", 1)):
        purgatory.watch(token, [A], missing)
    assert purgatory.record_append(A, 10) == ["f", "h"]
    assert purgatory.remove_watchers(A) == ["g"]
    assert purgatory.remove_watchers(A) == []


def test_a_removed_fetch_does_not_complete():
    purgatory = DelayedFetchPurgatory()
    purgatory.watch("f", [A, B], 1)
    assert purgatory.remove("f")
    # the private index must not keep partitions without watchers
    assert (purgatory.record_append(A, 5), purgatory.remove_watchers(B), purgatory._watchers) == ([], [], {})
