"""Random record batches as producers write them, and damaged ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spark_groupsource.records.compression import CODECS, compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import Record, encode_batch, with_body
from spark_groupsource.records.header import iter_batches

NOW = 1_700_000_000_000
STEPS_MS = (0, 1, 3, 90, 9_000, -2, -700)


def random_batch(rng: random.Random, steps_ms: Sequence[int] = STEPS_MS) -> bytes:
    """A batch as producers write it, with sizes, timestamps and offsets on both sides of the varint bounds."""
    count = rng.choice((1, 2, 7, 63, 64, 65, 90, 200, 300))
    size, spread = rng.choice((0, 1, 20, 50, 57, 100, 1_000)), rng.choice((0, 0, 0, 1, 40))
    key_size = rng.choice((None, None, 0, 8, 70))
    step_ms = rng.choice(steps_ms)
    gap_at = rng.randrange(count) if rng.random() < 0.1 else count
    records = []
    for number in range(count):
        value = rng.randbytes(size + rng.randint(0, spread)) if rng.random() < 0.999 else None
        key = None if key_size is None or rng.random() < 0.002 else rng.randbytes(key_size)
        headers = (("h", rng.choice((None, b"v"))),) * 2 if rng.random() < 0.001 else ()
        jitter_ms = rng.choice(steps_ms) if rng.random() < 0.05 else 0
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
