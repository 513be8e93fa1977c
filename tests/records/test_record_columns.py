"""Batches encoded from columns are those of the encoder of records."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_groupsource.records.columns.record_columns import RecordColumns
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.key_partitions import partitions_of_keys
from spark_groupsource.records.partitioner import partition_of_key

PRODUCER = {"codec": 0, "producer_id": 5, "producer_epoch": 1, "base_sequence": 7}


@pytest.mark.parametrize("count", [1, 64, 65, 8_193])
@pytest.mark.parametrize("has_keys", [False, True])
def test_batch_is_that_of_the_records(count: int, has_keys: bool) -> None:
    rng = random.Random(count)
    values = [rng.randbytes(rng.choice((0, 1, 60, 63, 64, 70, 200))) for _ in range(count)]
    keys = [rng.randbytes(rng.choice((0, 1, 63, 64))) for _ in range(count)] if has_keys else None
    columns = RecordColumns(None if keys is None else pa.array(keys, pa.binary()), pa.array(values, pa.binary()), 1_234)
    records = [Record(None if keys is None else keys[n], value, 1_234) for n, value in enumerate(values)]
    assert columns.encode(**PRODUCER) == encode_batch(records, **PRODUCER)
    parts = list(columns.chunks(10_000))
    assert sum(map(len, parts)) == count and all(len(p.encode(**PRODUCER)) < 10_100 for p in parts)
    assert parts[-1].encode(**PRODUCER) == encode_batch(records[count - len(parts[-1]) :], **PRODUCER)


@pytest.mark.parametrize("longest", [0, 1, 3, 4, 40, 300])
def test_partitions_are_those_of_single_keys(longest: int) -> None:
    rng = random.Random(longest)
    keys = [rng.randbytes(rng.randint(0, longest)) for _ in range(300)]
    lengths = np.array([len(key) for key in keys])
    data = np.frombuffer(b"".join(keys), np.uint8)
    found = partitions_of_keys(data, np.cumsum(lengths) - lengths, lengths, 7)
    assert found.tolist() == [partition_of_key(key, 7) for key in keys]
