"""Stateful processors that read the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from support.clusters import Cluster
from support.query_harness import QueryHarness

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


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
