"""Replay of a coordinator's log with pauses and of every record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from spark_groupsource.broker.coordinators import log_replay
from spark_groupsource.broker.coordinators.log_replay import LogReplay
from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.broker.storage.segment_scan import StoredBatch
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.records.decode import CONTROL_ABORT, CONTROL_COMMIT, control_type, decode_records
from spark_groupsource.records.encode import Record, control_key, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue, encode_key, encode_offset_value

Lengths = Callable[[list[Any]], list[int]]


def random_log(rng: random.Random, batches: int) -> list[StoredBatch]:
    """Commits, tombstones, transactional commits and markers of a few groups and producers."""
    data = bytearray()
    offset = 0
    for _ in range(batches):
        producer_id = rng.choice((-1, -1, 7, 8))
        is_control = producer_id >= 0 and rng.random() < 0.3
        if is_control:
            records = [Record(control_key(rng.choice((CONTROL_ABORT, CONTROL_COMMIT))), b"\0\0\0\0\0\0", 1_000)]
        else:
            records = [
                Record(
                    encode_key(OffsetKey(f"g{rng.randrange(3)}", "t", rng.randrange(60))),
                    None if rng.random() < 0.1 else encode_offset_value(OffsetValue(offset, metadata=f"{offset}")),
                    1_000,
                )
                for offset in range(offset, offset + rng.choice((1, 1, 40)))
            ]
        data += encode_batch(
            [record._replace(offset_delta=number) for number, record in enumerate(records)],
            base_offset=offset,
            producer_id=producer_id,
            transactional=producer_id >= 0,
            control=is_control,
        )
        offset += len(records)
    buffer = bytes(data)
    return [StoredBatch(header, buffer, header.position) for header in iter_batches(buffer)]


def apply_ordered(store: GroupStore, stored: StoredBatch) -> Iterator[None]:
    header = stored.header
    if header.is_control:
        store.end_transaction(header.producer_id, control_type(stored.buffer, header) == CONTROL_COMMIT)
        return
    for record in decode_records(stored.buffer, header):
        assert record.key is not None
        if header.is_transactional:
            store.replay_transactional(header.producer_id, record.key, record.value)
        else:
            store.replay(record.key, record.value)
        yield


def from_offset(log: list[StoredBatch]) -> Callable[[int], Iterator[StoredBatch]]:
    return lambda offset: (stored for stored in log if stored.header.base_offset >= offset)


@pytest.fixture
def at_pauses(monkeypatch: pytest.MonkeyPatch) -> Lengths:
    """A function that returns the lengths of a list at the start and at each pause of a replay."""

    def lengths(applied: list[Any]) -> list[int]:
        found = [0]

        async def pause() -> bool:
            found.append(len(applied))
            return True

        monkeypatch.setattr(log_replay, "pause", pause)
        return found

    return lengths


def replayed(log: list[StoredBatch]) -> tuple[GroupStore, GroupStore]:
    """The states of every record in its order and of a replay, after their comparison."""
    expected, found = GroupStore(), GroupStore()
    for stored in log:
        list(apply_ordered(expected, stored))
    run_at_once(LogReplay(from_offset(log), found.replay, partial(apply_ordered, found)).run())
    assert (found.offsets, found.size_bytes) == (expected.offsets, expected.size_bytes)
    return expected, found


@pytest.mark.parametrize("has_pauses", (False, True))
@pytest.mark.parametrize("batches", (5, 60, 400))
def test_state_is_that_of_every_record_in_its_order(
    batches: int, has_pauses: bool, at_pauses: Lengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = at_pauses([]) if has_pauses else None
    monkeypatch.setattr(log_replay, "_PART_WORK", 50)
    rng = random.Random(batches)
    for _ in range(20 if batches < 400 else 4):
        expected, found = replayed(random_log(rng, batches))
        assert set(found.pending.group_ids()) == set(expected.pending.group_ids())
        for group_id in expected.group_ids():
            assert set(found.partitions_of(group_id)) == set(expected.partitions_of(group_id))
            pending = expected.pending.partitions_of(group_id)
            assert set(found.pending.partitions_of(group_id)) == set(pending)
        for producer_id in (8, 7):
            found.end_transaction(producer_id, True)
            expected.end_transaction(producer_id, True)
        assert found.offsets == expected.offsets
    assert pauses is None or len(pauses) > 10


def test_a_tombstone_before_a_value_removes_the_pending_offset() -> None:
    key, data = encode_key(OffsetKey("g", "t", 0)), bytearray()
    for offset, (value, producer_id) in enumerate(((1, 7), (None, -1), (3, -1))):
        record = Record(key, None if value is None else encode_offset_value(OffsetValue(value)), 1_000)
        data += encode_batch([record], base_offset=offset, producer_id=producer_id, transactional=producer_id >= 0)
    buffer = bytes(data)
    expected, found = replayed([StoredBatch(header, buffer, header.position) for header in iter_batches(buffer)])
    assert set(found.pending.partitions_of("g")) == set(expected.pending.partitions_of("g")) == set()


def test_parts_are_bounded_and_keys_are_applied_once(at_pauses: Lengths) -> None:
    keys = [encode_key(OffsetKey("g", "t", partition)) for partition in range(3_000)]
    batches = []
    for number in range(10):
        records = [Record(key, b"%d" % number, 1_000) for key in keys]
        data = encode_batch(records, base_offset=number * len(keys))
        batches += [StoredBatch(header, data, 0) for header in iter_batches(data)]
    applied: list[tuple[Any, ...]] = []
    pauses = at_pauses(applied)
    run_at_once(LogReplay(from_offset(batches), lambda *record: applied.append(record), lambda stored: iter(())).run())
    assert len(pauses) >= 15
    assert max(after - before for before, after in zip(pauses, pauses[1:])) <= 340
    assert sorted(applied) == sorted((key, b"9") for key in keys)


@pytest.mark.parametrize("producer_id", (-1, 7))
def test_a_batch_of_many_records_is_replayed_in_parts(producer_id: int, at_pauses: Lengths) -> None:
    keys = [encode_key(OffsetKey("g", "t", partition)) for partition in range(12_000)]
    data = encode_batch(
        [Record(key, b"1", 1_000, (), number) for number, key in enumerate(keys)],
        producer_id=producer_id, transactional=producer_id >= 0,
    )  # fmt: skip
    batches = [StoredBatch(header, data, 0) for header in iter_batches(data)]
    applied: list[bytes] = []

    def apply_ordered(stored: StoredBatch) -> Iterator[None]:
        for record in decode_records(stored.buffer, stored.header):
            applied.append(record.key or b"")
            yield

    pauses = at_pauses(applied)
    run_at_once(LogReplay(from_offset(batches), lambda key, value: applied.append(key), apply_ordered).run())
    assert len(pauses) >= 36
    assert max(after - before for before, after in zip(pauses, pauses[1:])) <= 340
    assert applied == keys


def repeated_log(rng: random.Random) -> list[StoredBatch]:
    """Commits of groups that repeat their partitions, and a few of other partitions, metadata and tombstones."""
    data, offset = bytearray(), 0
    for number in range(150):
        group = rng.randrange(3)
        first, count = rng.choice(((0, 20), (0, 20), (0, 20), (0, 9), (5, 20), (0, 70), (30, 3)))
        size = rng.choice((1, 1, 1, 2))
        records = []
        for partition in range(first, first + count):
            value = encode_offset_value(OffsetValue(number, metadata="m" * size))
            is_tombstone = rng.random() < 0.002
            key = encode_key(OffsetKey(f"g{group}", "t", partition))
            records.append(Record(key, None if is_tombstone else value, 1_000, (), len(records)))
        data += encode_batch(records, base_offset=offset, codec=rng.choice((0, 0, 0, 0, 3)))
        offset += len(records)
    buffer = bytes(data)
    return [StoredBatch(header, buffer, header.position) for header in iter_batches(buffer)]


@pytest.mark.slow
def test_state_after_repeated_commits_is_that_of_every_record_in_its_order() -> None:
    rng = random.Random(11)
    for _ in range(20):
        replayed(repeated_log(rng))


def test_keys_of_repeated_commits_are_applied_once(at_pauses: Lengths) -> None:
    keys = [encode_key(OffsetKey("g", "t", partition)) for partition in range(100)]
    batches = []
    for number in range(1_000):
        data = encode_batch([Record(key, b"%03d" % number, 1_000) for key in keys], base_offset=number * len(keys))
        batches += [StoredBatch(header, data, 0) for header in iter_batches(data)]
    applied: list[tuple[Any, ...]] = []
    pauses = at_pauses(applied)
    run_at_once(LogReplay(from_offset(batches), lambda *record: applied.append(record), lambda stored: iter(())).run())
    assert len(pauses) >= 15
    assert applied == [(key, b"999") for key in keys]
