"""Keys and values of batches, compared with the complete decoding."""

from __future__ import annotations

import random

import pytest
from support.random_batches import NOW, damaged, random_batch

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.records.key_values import KeyValue, key_value_slices, plain_slices


def complete(data: bytes) -> list[KeyValue] | None:
    """What the complete decoding finds, None for a corrupt batch."""
    (header,) = iter_batches(data)
    try:
        return [(record.key, record.value) for record in decode_records(data, header)]
    except CorruptRecordError:
        return None


def decoded(data: bytes) -> list[KeyValue]:
    (header,) = iter_batches(data)
    return [pair for found in key_value_slices(data, header) for pair in found]


def is_plain(data: bytes) -> bool:
    (header,) = iter_batches(data)
    try:
        return bool(list(plain_slices(data, header)))
    except (IndexError, ValueError):
        return False


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_keys_and_values_are_those_of_the_complete_decoding(seed: int) -> None:
    rng = random.Random(seed)
    plain = 0
    for _ in range(40):
        data = random_batch(rng, steps_ms=rng.choice(((0,), (0, 5), (0, 90, -3))))
        for each in (data, *(damaged(rng, data) for _ in range(4))):
            expected = complete(each)
            if expected is None:
                with pytest.raises(CorruptRecordError):
                    decoded(each)
            else:
                assert decoded(each) == expected
                plain += is_plain(each)
    assert plain >= 20


def test_lengths_of_four_bytes_are_not_plain() -> None:
    rng = random.Random(1)
    found = []
    for size in (8_192, 1 << 20, 1 << 21):
        data = encode_batch([Record(b"k", rng.randbytes(size), NOW)])
        found.append(is_plain(data))
        assert decoded(data) == complete(data)
    assert found == [True, False, False]


@pytest.mark.parametrize("gap", (0, 1))
def test_a_large_batch_is_decoded_in_slices(gap: int) -> None:
    """Also with offsets of three bytes, and with offsets that compaction has removed."""
    records = [Record(b"k%d" % (n % 3_000), b"v" * (n % 3), NOW + n % 3, (), n + gap * (n // 5)) for n in range(17_000)]
    data = encode_batch(records)
    (header,) = iter_batches(data)
    slices = list(plain_slices(data, header))
    assert [pair for found in slices for pair in found] == complete(data)
    assert max(map(len, slices)) <= 2_000


def run_of_records(rng: random.Random) -> bytes:
    """A batch whose records have equal sizes, mostly: a run, its end and what follows it."""
    count, odd = rng.randrange(1, 150), rng.randrange(300)
    records = [
        Record(b"key-%03d" % number + b"+" * (number == odd), b"v" * 20, NOW + number % 3, (), number)
        for number in range(count)
    ]
    gap = rng.randrange(300)
    return encode_batch([each._replace(offset_delta=number + (number > gap)) for number, each in enumerate(records)])


@pytest.mark.parametrize("seed", range(3))
def test_runs_of_records_of_equal_sizes_are_those_of_the_complete_decoding(seed: int) -> None:
    rng = random.Random(seed)
    plain = 0
    for _ in range(100):
        data = run_of_records(rng)
        for each in (data, *(damaged(rng, data) for _ in range(4))):
            expected = complete(each)
            if expected is None:
                with pytest.raises(CorruptRecordError):
                    decoded(each)
            else:
                assert decoded(each) == expected
                plain += is_plain(each)
    assert plain >= 60
