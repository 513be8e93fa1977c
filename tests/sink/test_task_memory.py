"""Memory of a write task, for any skew and record size."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support.topics import create_topic

# of the worker process, with Python, PyArrow and NumPy
LIMIT_MB = 256
BATCH_BYTES = 8 << 20
PROGRAM = """
import sys
import numpy as np, pyarrow as pa
from spark_groupsource.source.options.sink_options import parse_sink_options
from spark_groupsource.source.sink.output_task import write_records

bootstrap, topic, record_bytes, keys, total_bytes, codec = sys.argv[1:]
record_bytes, keys = int(record_bytes), int(keys)
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
rows = max(1, min(10_000, %d // record_bytes))


def batches():
    rng = np.random.default_rng(1)
    for _ in range(max(1, int(total_bytes) // (rows * record_bytes))):
        data = rng.integers(0, 200, rows * record_bytes, np.uint8)
        offsets = np.arange(rows + 1, dtype=np.int32) * record_bytes
        value = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        columns = {"value": value}
        if keys:
            columns["key"] = pa.array(rng.integers(0, keys, rows)).cast(pa.string())
        yield pa.RecordBatch.from_pydict(columns)


output = write_records(parse_sink_options(options, "batch"), batches())
# ru_maxrss of a process is at least that of its parent
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(output.record_count, int(peak) // 1024)
""" % BATCH_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record_bytes", "keys", "total_mb", "partitions", "codec"),
    [
        (1_000_000, 0, 100, 3, "none"),
        (1_000_000, 1, 100, 3, "lz4"),
        (100, 1, 50, 64, "none"),
        (100, 1_000_000, 50, 500, "none"),
        (1, 1_000, 1, 64, "zstd"),
    ],
)
def test_memory_of_a_task_is_bounded(
    embedded: Any, topic: str, record_bytes: int, keys: int, total_mb: int, partitions: int, codec: str
) -> None:
    # the broker of the tests keeps no more than the last of them
    create_topic(embedded.bootstrap_servers, topic, partitions, {"retention.bytes": "1000000"})
    arguments = [embedded.bootstrap_servers, topic, record_bytes, keys, total_mb * 1_000_000, codec]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr[-2_000:]
    count, peak_mb = map(int, run.stdout.split())
    assert count >= total_mb * 1_000_000 // record_bytes * 0.9
    assert peak_mb < LIMIT_MB, peak_mb
