"""Memory of a write task, for any skew and record size."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support.topics import create_topic

# of the worker process, with Python, PySpark, PyArrow, NumPy and Spark's Arrow batches
LIMIT_MB = 256
# Spark's defaults of maxRecordsPerBatch and maxBytesPerBatch of spark.sql.execution.arrow
BATCH_ROWS, BATCH_BYTES = 10_000, 64 << 20
JVM = """
import sys
import numpy as np, pyarrow as pa

record_bytes, keys, total_bytes = map(int, sys.argv[1:])
rng = np.random.default_rng(1)
# Spark compares the size of a batch before it adds a row
rows = min(%d, %d // record_bytes + 1)
fields = {"value": pa.binary()} | ({"key": pa.string()} if keys else {})
with pa.ipc.new_stream(sys.stdout.buffer, pa.schema(fields)) as stream:
    for _ in range(max(1, total_bytes // (rows * record_bytes))):
        data = rng.bytes(rows * record_bytes)
        offsets = np.arange(rows + 1, dtype=np.int32) * record_bytes
        columns = {"value": pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])}
        if keys:
            columns["key"] = pa.array(rng.integers(0, keys, rows)).cast(pa.string())
        stream.write_batch(pa.RecordBatch.from_pydict(columns, pa.schema(fields)))
""" % (BATCH_ROWS, BATCH_BYTES)
WORKER = """
import sys
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from spark_groupsource.source.options.sink_options import parse_sink_options
from spark_groupsource.source.sink.output_task import write_records

bootstrap, topic, codec, max_request_bytes = sys.argv[1:]
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
options["kafka.max.request.size"] = max_request_bytes
batches = ArrowStreamSerializer().load_stream(sys.stdin.buffer)
output = write_records(parse_sink_options(options, "batch"), batches)
# ru_maxrss of a process is at least that of its parent
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(output.record_count, int(peak) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record_bytes", "keys", "total_mb", "partitions", "codec"),
    [
        (9_000_000, 0, 220, 3, "none"),
        pytest.param(*(9_000_000, 1, 220, 3, "gzip"), marks=pytest.mark.soak),
        pytest.param(*(9_000_000, 1, 220, 3, "snappy"), marks=pytest.mark.soak),
        pytest.param(*(9_000_000, 0, 220, 64, "lz4"), marks=pytest.mark.soak),
        (9_000_000, 1, 220, 3, "zstd"),
        pytest.param(*(1_000_000, 0, 200, 3, "none"), marks=pytest.mark.soak),
        pytest.param(*(1_000_000, 1, 200, 3, "lz4"), marks=pytest.mark.soak),
        pytest.param(*(100, 1, 50, 64, "none"), marks=pytest.mark.soak),
        (100, 1_000_000, 50, 500, "none"),
        (1, 1_000, 1, 64, "zstd"),
    ],
)
def test_memory_of_a_task_is_bounded(
    embedded: Any, topic: str, record_bytes: int, keys: int, total_mb: int, partitions: int, codec: str
) -> None:
    # the broker of the tests keeps no more than the last of them
    config = {"retention.bytes": "1000000", "max.message.bytes": "10000000"}
    create_topic(embedded.bootstrap_servers, topic, partitions, config)
    data = [sys.executable, "-c", JVM, *map(str, (record_bytes, keys, total_mb * 1_000_000))]
    max_request_bytes = str(max(1_048_576, record_bytes + 1_000))
    worker = [sys.executable, "-c", WORKER, embedded.bootstrap_servers, topic, codec, max_request_bytes]
    with subprocess.Popen(data, stdout=subprocess.PIPE) as jvm:
        run = subprocess.run(worker, stdin=jvm.stdout, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-2_000:]
    count, peak_mb = map(int, run.stdout.split())
    assert count >= total_mb * 1_000_000 // record_bytes * 0.6
    assert peak_mb < LIMIT_MB, peak_mb
