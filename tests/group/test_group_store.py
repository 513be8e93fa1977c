"""Committed offsets of a store: commits as a whole and their records."""

from __future__ import annotations

import random

import pytest

from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import OffsetKey, OffsetValue, encode_key, encode_offset_value


@pytest.mark.parametrize("seed", range(5))
def test_a_commit_is_replayed_as_its_records(seed):
    rng = random.Random(seed)
    whole, single = GroupStore(), GroupStore()
    for step in range(300):
        group_id, kind = rng.choice("ab"), rng.random()
        metadata = rng.choice(["", "m", "mm"])
        offsets = {
            TopicPartition("t", number): OffsetValue(rng.randrange(9), 4, metadata, step)
            for number in rng.sample(range(3), rng.randint(1, 3))
        }
        keys = {encode_key(OffsetKey(group_id, *partition)): value for partition, value in offsets.items()}
        if kind < 0.6:
            whole.replay_commit(group_id, list(offsets.items()))
            for key, value in keys.items():
                single.replay(key, encode_offset_value(value))
        else:
            for store in (whole, single):
                for partition, value in offsets.items():
                    if kind < 0.8:
                        store.pending.put(step, OffsetKey(group_id, *partition), value)
                    else:
                        store.replay(encode_key(OffsetKey(group_id, *partition)), None)
        is_committed = rng.random() < 0.5
        for store in (whole, single):
            store.end_transaction(step - 3, is_committed)
        assert whole == single
