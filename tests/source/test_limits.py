"""maxBytesPerTrigger with uneven record sizes; on both clusters."""

from __future__ import annotations

import pytest
from support.direct_readers import StreamQuery
from support.topics import create_topic, produce

pytestmark = pytest.mark.usefixtures("in_process")

LIMIT = 300_000
SMALL, LARGE = 100, 20_000


def batches(cluster, topic, sizes):
    """Returns the bytes of values of each batch, for records of these sizes in one partition."""
    create_topic(cluster.bootstrap_servers, topic, 1)
    rows = [(0, None, bytes(size)) for size in sizes]
    assert produce(cluster.bootstrap_servers, topic, rows, batch_size=16_384) == len(sizes)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": str(LIMIT)}
    found = []
    with StreamQuery(cluster, options) as query:
        while rows := query.trigger():
            found.append(sum(len(row["value"]) for row in rows))
        assert [len(row["value"]) for row in query.rows] == list(sizes)
    return found


@pytest.mark.parametrize(
    "sizes, max_bytes, max_batches",
    [
        # the estimate is exact, so batches reach the limit
        ([SMALL] * 9000, LIMIT, 4),
        # records become large within a batch, or several batches later
        ([SMALL] * 1000 + [LARGE] * 60, LIMIT + 70_000, 8),
        ([SMALL] * 2200 + [LARGE] * 60, LIMIT + 70_000, 10),
        # records become small
        ([LARGE] * 60 + [SMALL] * 4000, LIMIT, 9),
        # every second record is large, so all samples are alike
        ([SMALL, LARGE] * 60, LIMIT + LARGE, 6),
    ],
    ids=["even", "growing", "growing later", "shrinking", "mixed"],
)
@pytest.mark.slow
def test_changed_record_sizes_are_sampled(cluster, topic, sizes, max_bytes, max_batches):
    found = batches(cluster, topic, sizes)
    assert max(found) <= max_bytes and len(found) <= max_batches, found


def test_large_records_between_two_samples_are_not_counted(cluster, topic):
    """The documented bound: a range shorter than a fourth of a batch may exceed the limit by its own size."""
    found = batches(cluster, topic, [SMALL] * 1100 + [LARGE] * 20 + [SMALL] * 3000)
    assert max(found) <= LIMIT + 20 * LARGE, found


def test_stored_bytes_are_counted(cluster, topic):
    """Compressed values: the limit is reached after many more bytes of values."""
    create_topic(cluster.bootstrap_servers, topic, 1)
    value = bytes(range(250)) * 4
    rows = [(0, None, b"%04d" % n + value) for n in range(2000)]
    produce(cluster.bootstrap_servers, topic, rows, compression_codec="zstd", batch_size=16_384)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": "65536"}
    with StreamQuery(cluster, options) as query:
        query.run()
        assert len(query.rows) == 2000
        assert query.sizes == [2000] or max(query.sizes) > 65_536 // len(value)
