"""The limit by bytes where sizes are as uneven as can be: what is counted, what is guessed; on both clusters."""

from __future__ import annotations

import pytest
from parity.drive import Stream
from support.topics import create_topic, produce

pytestmark = pytest.mark.usefixtures("in_process")

LIMIT = 300_000
SMALL, LARGE = 100, 20_000


def batches(cluster, topic, sizes):
    """Bytes of values of each batch, for records of such sizes in one partition."""
    create_topic(cluster.bootstrap_servers, topic, 1)
    rows = [(0, None, bytes(size)) for size in sizes]
    assert produce(cluster.bootstrap_servers, topic, rows, batch_size=16_384) == len(sizes)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": str(LIMIT)}
    found = []
    with Stream(cluster, options) as query:
        while rows := query.turn():
            found.append(sum(len(row["value"]) for row in rows))
        assert [len(row["value"]) for row in query.rows] == list(sizes)
    return found


@pytest.mark.parametrize(
    "sizes, most, longest",
    [
        # what is guessed is right: a batch is as large as it may be
        ([SMALL] * 9000, LIMIT, 4),
        # records that become large, at once, within a batch or several batches later
        ([SMALL] * 1000 + [LARGE] * 60, LIMIT + 70_000, 8),
        ([SMALL] * 2200 + [LARGE] * 60, LIMIT + 70_000, 10),
        # and small again
        ([LARGE] * 60 + [SMALL] * 4000, LIMIT, 9),
        # each second one large: every stretch looks like every other
        ([SMALL, LARGE] * 60, LIMIT + LARGE, 6),
    ],
    ids=["even", "growing", "growing later", "shrinking", "mixed"],
)
def test_sizes_that_change_are_seen(cluster, topic, sizes, most, longest):
    found = batches(cluster, topic, sizes)
    assert max(found) <= most and len(found) <= longest, found


def test_large_records_between_two_looks_are_not_seen(cluster, topic):
    """The bound that is documented: a stretch shorter than a fourth of a batch may exceed the limit by its own size."""
    found = batches(cluster, topic, [SMALL] * 1100 + [LARGE] * 20 + [SMALL] * 3000)
    assert max(found) <= LIMIT + 20 * LARGE, found
