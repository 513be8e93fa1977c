"""Stateful processors and Declarative Pipelines that read the source."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from support.clusters import Cluster
from support.query_harness import QueryHarness

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# a pipeline of several runs needs a catalog that outlives its session
HIVE = ("--conf", "spark.sql.catalogImplementation=hive")
PIPELINE = """
name: records
storage: {directory}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATION = """
from pyspark import pipelines
from pyspark.sql import SparkSession

@pipelines.table
def records():
    return SparkSession.active().readStream.format("groupsource").options(**{options}).load().select("offset", "value")
"""


def counter(in_pandas: bool) -> Any:
    """A processor that counts the rows of each key; Spark's workers cannot import a class of this module."""

    class RowCount(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            total = sum(len(each) if in_pandas else 1 for each in rows)
            total += self.count.get()[0] if self.count.exists() else 0
            self.count.update((total,))
            if in_pandas:
                import pandas

                yield pandas.DataFrame({"key": [key[0]], "n": [total]})
            else:
                yield Row(key=key[0], n=total)

        def close(self) -> None:
            """Releases nothing."""

    return RowCount()


@pytest.mark.parametrize("method", ["transformWithState", "transformWithStateInPandas"])
def test_state_continues_after_a_restart(
    spark: Any, embedded: Any, topic: str, group: str, tmp_path: Path, method: str
) -> None:
    harness = QueryHarness(spark, Cluster("embedded", embedded.bootstrap_servers), topic, group, tmp_path)
    grouped = harness.stream().groupBy("partition")
    if not hasattr(grouped, method):
        pytest.skip(f"this Spark has no {method}")
    if method == "transformWithStateInPandas":
        pytest.importorskip("pandas")
    processor = counter(method == "transformWithStateInPandas")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        for total in (5, 10):
            harness.produce(20)
            counted: list[tuple[Any, ...]] = []
            frame = getattr(grouped, method)(processor, "key int, n long", "Update", "None")
            writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.foreachBatch(lambda rows, _, found=counted: found.extend(map(tuple, rows.collect())))
            harness.queries.append(query.start())
            harness.queries[-1].processAllAvailable()
            harness.queries[-1].stop()
            assert sorted(counted) == [(partition, total) for partition in range(4)]
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        harness.close()


def test_a_streaming_table_of_a_pipeline_has_each_record_once(
    embedded: Any, topic: str, group: str, tmp_path: Path
) -> None:
    command = Path(sys.executable).with_name("spark-pipelines")
    missing = [name for name in ("pyspark.pipelines", "grpc", "grpc_status", "yaml") if find_spec(name) is None]
    if missing or not command.exists():
        pytest.skip(f"Declarative Pipelines need {', '.join(missing) or 'spark-pipelines'}")
    harness = QueryHarness(None, Cluster("embedded", embedded.bootstrap_servers), topic, group, tmp_path)
    options = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    options |= {"startingOffsets": "earliest", "members": "2"}
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "records.py").write_text(TRANSFORMATION.format(options=options))
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(directory=tmp_path.as_uri()))
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    for total in (40, 80):
        harness.produce(40)
        run = subprocess.run(
            [str(command), "run", *HIVE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
        )
        assert run.returncode == 0, run.stdout + run.stderr
        files = sorted(map(str, (tmp_path / "spark-warehouse" / "records").glob("*.parquet")))
        values = pyarrow.dataset.dataset(files).to_table()["value"].to_pylist()
        assert sorted(map(int, values)) == list(range(total)) and harness.committed() == total
    harness.close()
