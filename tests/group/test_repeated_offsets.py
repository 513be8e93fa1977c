"""Offsets of repeated commits, which are created when they are read."""

from __future__ import annotations

import random

import pytest

from spark_groupsource.group import repeated_offsets
from spark_groupsource.group.group_store import GroupStore
from spark_groupsource.group.repeated_offsets import CommitColumns, RepeatedOffsets, commit_columns
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue, encode_key, encode_offset_value

PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))


def columns(count: int = 3, metadata: str = "") -> CommitColumns:
    return commit_columns(PARTITIONS[:count], (4,) * count, (metadata,) * count)


def values(offsets, timestamp_ms: int, metadata: str = "") -> dict[TopicPartition, OffsetValue]:
    found = [OffsetValue(offset, 4, metadata, timestamp_ms) for offset in offsets]
    return dict(zip(PARTITIONS, found))


def store_of(*group_ids: str) -> GroupStore:
    store = GroupStore()
    for group_id in group_ids:
        store.replay_commit(group_id, list(values((1, 2, 3), 0).items()))
    return store


def test_the_offsets_of_a_commit_are_a_sequence():
    commit = RepeatedOffsets(columns(), (5, 6, 7), 9)
    assert len(commit) == 3
    assert dict(commit) == values((5, 6, 7), 9)
    assert commit[1] == (PARTITIONS[1], OffsetValue(6, 4, "", 9)) and type(commit[1][1]) is OffsetValue
    assert commit[1:] == list(commit)[1:]


def test_the_last_of_several_commits_is_read():
    store, same = store_of("g"), columns()
    size = store.size_bytes
    for number in range(5):
        assert store.has_columns("g", same)
        store.replay_repeated("g", RepeatedOffsets(same, (number, number, number), number))
    assert store.offsets_of("g") == values((4, 4, 4), 4)
    store.replay_repeated("g", RepeatedOffsets(same, (7, 8, 9), 1))
    assert store.offsets == {"g": values((7, 8, 9), 1)}
    assert store.size_bytes == size


def test_a_commit_of_other_partitions_keeps_the_offsets_of_the_others():
    store = store_of("g")
    store.replay_repeated("g", RepeatedOffsets(columns(3), (5, 6, 7), 9))
    store.replay_repeated("g", RepeatedOffsets(columns(2), (8, 8), 9))
    assert store.offsets_of("g") == values((8, 8, 7), 9)


@pytest.mark.parametrize("is_repeated", [True, False])
def test_other_partitions_or_metadata_are_not_those_of_the_group(is_repeated):
    store = store_of("g")
    if is_repeated:
        store.replay_repeated("g", RepeatedOffsets(columns(2), (5, 6), 9))
    assert store.has_columns("g", columns()) and store.has_columns("g", columns(1))
    assert not store.has_columns("g", columns(metadata="m"))
    assert not store.has_columns("unknown", columns())
    store.replay(encode_key(OffsetKey("g", "t", 1)), None)
    assert not store.has_columns("g", columns()) and store.has_columns("g", columns(1))


def test_stores_are_compared_by_the_offsets_that_are_read():
    first, second = store_of("g"), store_of("g")
    first.replay_repeated("g", RepeatedOffsets(columns(), (5, 6, 7), 9))
    assert first != second
    second.replay_repeated("g", RepeatedOffsets(columns(), (5, 6, 7), 9))
    assert first == second


def test_few_commits_wait_until_they_are_read(monkeypatch):
    # private: the limit bounds the memory
    monkeypatch.setattr(repeated_offsets, "_MAX_BYTES", 3 * columns().size_bytes)
    groups = [f"g{number}" for number in range(10)]
    store, same = store_of(*groups), columns()
    for number in range(3):
        for group_id in groups:
            store.replay_repeated(group_id, RepeatedOffsets(same, (number, number, number), number))
            assert len(store._repeated) <= 3  # private: the number of waiting commits
    assert store.offsets == {group_id: values((2, 2, 2), 2) for group_id in groups}
    assert not len(store._repeated)


def test_the_memory_of_texts_counts():
    assert columns(3, "m" * 1_000).size_bytes >= columns(3).size_bytes + 3_000
    store, same = store_of("g"), columns(1, "m" * 200_000)
    store.replay_commit("g", list(RepeatedOffsets(same, (1,), 1)))
    store.replay_repeated("g", RepeatedOffsets(same, (2,), 2))
    assert not len(store._repeated)  # private: the number of waiting commits
    assert store.offsets_of("g")[PARTITIONS[0]].offset == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_store_with_repeated_commits_is_that_of_the_records(seed):
    rng = random.Random(seed)
    groups, forms = ["a", "b"], [columns(3), columns(2), columns(3, "m")]
    repeated, plain = store_of(*groups), store_of(*groups)
    for step in range(300):
        group_id, form = rng.choice(groups), rng.choice(forms)
        commit = RepeatedOffsets(form, tuple(rng.choices(range(9), k=len(form.partitions))), step)
        kind = rng.random()
        if kind < 0.6:
            has_columns = repeated.has_columns(group_id, form)
            assert has_columns == plain.has_columns(group_id, form)
            (repeated.replay_repeated if has_columns else repeated.replay_commit)(group_id, commit)
            plain.replay_commit(group_id, list(commit))
        elif kind < 0.9:
            partition, value = commit[0]
            key = encode_key(OffsetKey(group_id, *partition))
            for store in (repeated, plain):
                store.replay(key, encode_offset_value(value) if kind < 0.75 else None)
        elif kind < 0.95:
            for store in (repeated, plain):
                store.pending.put(step, OffsetKey(group_id, "t", 0), commit[0][1])
                store.end_transaction(step, True)
        else:
            assert repeated.offsets_of(group_id) == plain.offsets_of(group_id)
        assert repeated.size_bytes == plain.size_bytes
        assert set(repeated.group_ids()) == set(plain.group_ids())
    assert repeated == plain
