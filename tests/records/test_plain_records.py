"""Fast validation of uncompressed records, compared with the complete validation."""

from __future__ import annotations

import random

import pytest

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records.compression import CODECS, compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import Record, encode_batch, with_body
from spark_groupsource.records.header import iter_batches
from spark_groupsource.records.plain_records import check_plain_records
from spark_groupsource.records.validation import RecordRules, summarize_plain_records, summarize_records
from spark_groupsource.storage.steps import run_steps

NOW = 1_700_000_000_000
STEPS_MS = (0, 1, 3, 90, 9_000, -2, -700)
RULES = RecordRules(False, -(2**63), 2**63 - 1, 1 << 26, 1 << 28)


def random_batch(rng: random.Random) -> bytes:
    """A batch as producers write it, with sizes, timestamps and offsets on both sides of the varint bounds."""
    count = rng.choice((1, 2, 7, 63, 64, 65, 90, 200, 300))
    size, spread = rng.choice((0, 1, 20, 50, 57, 100, 1_000)), rng.choice((0, 0, 0, 1, 40))
    key_size = rng.choice((None, None, 0, 8, 70))
    step_ms = rng.choice(STEPS_MS)
    gap_at = rng.randrange(count) if rng.random() < 0.1 else count
    records = []
    for number in range(count):
        value = rng.randbytes(size + rng.randint(0, spread)) if rng.random() < 0.999 else None
        key = None if key_size is None or rng.random() < 0.002 else rng.randbytes(key_size)
        headers = (("h", rng.choice((None, b"v"))),) * 2 if rng.random() < 0.001 else ()
        jitter_ms = rng.choice(STEPS_MS) if rng.random() < 0.05 else 0
        records.append(Record(key, value, NOW + number * step_ms + jitter_ms, headers, number + (number >= gap_at)))
    return encode_batch(records, codec=rng.randrange(len(CODECS)))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The batch with some changed bytes in its decompressed records, or in their number."""
    (header,) = iter_batches(data)
    payload = bytearray(records_payload(data, header))
    kind = rng.randrange(5)
    if kind == 0:
        count = max(1, header.record_count + rng.choice((-1, 1)))
        header = header._replace(record_count=count, last_offset_delta=count - 1)
    elif kind == 1:
        payload = payload[: -rng.randint(1, 3)] or payload
    elif kind == 2:
        payload += rng.choice((b"\0", b"\x0c\0\0\0\1\1\0"))
    else:
        stride = len(payload) // header.record_count
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(header.record_count) * stride + rng.randrange(9)
            payload[min(at, len(payload) - 1)] = rng.choice((0, 1, 2, 127, 128, 129, 255, rng.randrange(256)))
    return with_body(header, compress(header.codec, bytes(payload)))


def both(data: bytes, rules: RecordRules):
    """The summary of plain records, and that of the complete check; each is None without one."""
    (header,) = iter_batches(data)
    plain = summarize_plain_records(memoryview(data), header, rules.needs_key, rules.earliest_ms, rules.latest_ms)
    try:
        complete = run_steps(summarize_records(data, header, rules))
    except CorruptRecordError:
        complete = None
    return plain, complete


def content(summary):
    return summary.max_timestamp, summary.is_contiguous, summary.missing_keys, summary.invalid_timestamps


@pytest.mark.parametrize("seed", range(8))
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
