"""`run_available_now` on every Spark, also on those without admission control."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import functions as F
from support.query_harness import QueryHarness
from support.waiting import wait_until

from spark_groupsource import run_available_now
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.spark import admission_control, available_now

END = '{"t": {"0": 1}, "@group": {"acquired": {}, "generation": 1, "reader": "r"}}'


@pytest.mark.parametrize("value", [None, "query", 5])
def test_other_argument_than_a_writer_is_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="Argument writer must be the writer of a stream"):
        run_available_now(value)


class StartingQuery:
    """A query with these statuses, one after the other; the first batch has ended when the last one is read."""

    isActive = True

    def __init__(self, *statuses: tuple[str, bool]) -> None:
        self._statuses = list(statuses)

    @property
    def status(self) -> dict[str, Any]:
        message, is_active = self._statuses.pop(0)
        return {"message": message, "isDataAvailable": False, "isTriggerActive": is_active}

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return None if self._statuses else {"sources": [{"endOffset": END}]}

    recentProgress: tuple[Any, ...] = ()


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([("Initializing StreamExecution", False), ("Initializing sources", False), ("Getting offsets", True)], ["r"]),
        ([("Initializing sources", False), ("Waiting for data to arrive", False), ("Getting offsets", True)], []),
    ],
)
def test_the_ends_of_a_query_are_fixed_that_is_not_initialized_yet(
    statuses: list[tuple[str, bool]], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without records in the first trigger there is nothing to fix."""
    fixed: list[str] = []
    monkeypatch.setattr(available_now, "_POLL_MS", 1)
    monkeypatch.setattr(available_now, "driver_jvm_pid", lambda: 7)
    monkeypatch.setattr(available_now, "control_sockets", lambda driver, name: fixed.append(name) or [])
    available_now._fix_ends(StartingQuery(*statuses))  # private: the query is not one of Spark
    assert fixed == expected


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = QueryHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["of this Spark", "without admission control"])
def way(request, monkeypatch):
    if request.param == "without admission control":
        monkeypatch.setattr(admission_control, "HAS_ADMISSION_CONTROL", False)


@pytest.mark.spark
@pytest.mark.slow
def test_everything_available_is_read_and_committed_while_records_arrive(harness, way, tmp_path):
    harness.produce(1000)
    seen = threading.Event()

    def write(frame, batch_id):
        if frame.count() and not seen.is_set():
            seen.set()
            harness.produce(200)
        rows = frame.selectExpr("cast(value as string) as value")
        rows.write.mode("overwrite").parquet(f"{tmp_path}/rows/{batch_id}")

    writer = harness.stream(maxOffsetsPerTrigger="300").writeStream.foreachBatch(write)
    query = run_available_now(writer.option("checkpointLocation", f"{tmp_path}/cp"))
    assert not query.isActive and query.exception() is None
    found = sorted(int(row.value) for row in harness.spark.read.parquet(f"{tmp_path}/rows/*").collect())
    # records that arrive before the first batch has ended may be read, too
    assert found == list(range(len(found))) and len(found) in (1000, 1200)
    assert harness.committed() == len(found)
    wait_until(lambda: not harness.members(), "the members have left")


# Spark itself has the batch without data where it has admission control
@pytest.mark.parametrize(
    "way", [pytest.param("of this Spark", marks=pytest.mark.soak), "without admission control"], indirect=True
)
@pytest.mark.spark
@pytest.mark.slow
def test_last_window_is_emitted(harness, way, tmp_path):
    """The batch without data that follows closes it, as with trigger(availableNow=True) of Spark's Kafka source."""
    harness.produce(40)
    rows = harness.stream(maxOffsetsPerTrigger="15").select(
        (F.expr("cast(cast(value as string) as int)") * 60).cast("timestamp").alias("at")
    )
    windows = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "5 minutes")).count()
    writer = windows.selectExpr("window.start", "count").writeStream.format("parquet").outputMode("append")
    run_available_now(writer.option("path", f"{tmp_path}/out").option("checkpointLocation", f"{tmp_path}/cp"))
    found = sorted(row["count"] for row in harness.spark.read.parquet(f"{tmp_path}/out").collect())
    assert found == [5] * 7


@pytest.mark.spark
@pytest.mark.slow
def test_query_without_records_ends(harness, way, tmp_path):
    writer = harness.stream().writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/cp")
    query = run_available_now(writer)
    assert not query.isActive and query.exception() is None
