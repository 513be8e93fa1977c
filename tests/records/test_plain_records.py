"""Fast validation of uncompressed records, compared with the complete validation."""

from __future__ import annotations

import random

import pytest
from support.random_batches import NOW, damaged, random_batch

from spark_groupsource.common.coroutines import run_at_once, run_parts
from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import Record, encode_batch, with_body
from spark_groupsource.records.header import iter_batches
from spark_groupsource.records.plain_records import check_plain_records
from spark_groupsource.records.validation import RecordRules, summarize_plain_records, summarize_records

RULES = RecordRules(False, -(2**63), 2**63 - 1, 1 << 26, 1 << 28)


def both(data: bytes, rules: RecordRules):
    """The summary of plain records, and that of the complete check; each is None without one."""
    (header,) = iter_batches(data)
    plain = summarize_plain_records(memoryview(data), header, rules.needs_key, rules.earliest_ms, rules.latest_ms)
    try:
        complete = run_at_once(run_parts(summarize_records(data, header, rules)))
    except CorruptRecordError:
        complete = None
    return plain, complete


def content(summary):
    return summary.max_timestamp, summary.is_contiguous, summary.missing_keys, summary.invalid_timestamps


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_a_summary_is_that_of_the_complete_check(seed):
    rng = random.Random(seed)
    found = 0
    for _ in range(30):
        data = random_batch(rng)
        rules = RULES._replace(needs_key=rng.random() < 0.2)
        if rng.random() < 0.3:
            rules = rules._replace(earliest_ms=NOW - rng.choice((0, 100)), latest_ms=NOW + rng.choice((0, 100, 10_000)))
        for each in (data, *(damaged(rng, data) for _ in range(4))):
            plain, complete = both(each, rules)
            if plain is not None:
                assert complete is not None and content(plain) == content(complete)
                found += 1
    assert found >= 15


def sized(count, size, step_ms=0, key=None, codec=0, headers=()):
    records = [Record(key, bytes(size), NOW + number * step_ms, headers) for number in range(count)]
    return encode_batch(records, codec=codec)


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
@pytest.mark.parametrize(
    "shape",
    [
        {"count": 1, "size": 100},
        {"count": 10, "size": 100, "headers": (("a", b"b"), ("c", None))},
        {"count": 150, "size": 100, "step_ms": 1},
        {"count": 150, "size": 100, "step_ms": 100, "key": b"12345678"},
        {"count": 20_000, "size": 10},
        {"count": 1, "size": 1_000_000},
    ],
    ids=str,
)
def test_records_of_usual_producers_are_plain(shape, codec):
    plain, complete = both(sized(**shape, codec=codec), RULES)
    assert plain is not None and content(plain) == content(complete)


def test_every_change_of_one_byte_is_noticed_as_by_the_complete_check():
    data = sized(70, 3, step_ms=1)
    (header,) = iter_batches(data)
    payload = bytes(records_payload(data, header))
    for at in (*range(40), *range(len(payload) - 40, len(payload))):
        for value in {0, 1, payload[at] ^ 1, payload[at] ^ 128, 255}:
            changed = payload[:at] + bytes([value]) + payload[at + 1 :]
            plain, complete = both(with_body(header, changed), RULES)
            assert plain is None or content(plain) == content(complete)


def test_records_of_any_sizes_are_left_to_array_operations_if_they_are_many():
    records = [Record(None, bytes(number * 7919 % 100), NOW) for number in range(5_000)]
    data = encode_batch(records)
    (header,) = iter_batches(data)
    assert check_plain_records(bytes(records_payload(data, header)), header.record_count) is None
