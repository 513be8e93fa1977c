"""The checks of the demo detect lost, repeated and uncommitted records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
import pytest
from demo_checks import carrier_means, check_lag, check_means, check_rows, read_output

if TYPE_CHECKING:
    import pandas
else:
    pandas = pytest.importorskip("pandas")

ENDS = {0: 3, 1: 2, 2: 0}


def rows(*positions: tuple[str, int, int]) -> pandas.DataFrame:
    frame = pandas.DataFrame(positions, columns=["application", "partition", "offset"])
    return frame.assign(carrier="UA", arr_delay=1.0)


COMPLETE = [("A", 0, 0), ("A", 0, 1), ("A", 0, 2), ("B", 1, 0), ("B", 1, 1)]


def failed(*positions: tuple[str, int, int]) -> list[str]:
    return [check.name for check in check_rows(rows(*positions), ENDS, 5) if not check.passed]


def test_complete_output_passes() -> None:
    assert failed(*COMPLETE) == []


def test_missing_row_is_detected() -> None:
    assert failed(*COMPLETE[:-1]) == ["no record lost"]


def test_row_with_a_wrong_offset_does_not_replace_a_missing_row() -> None:
    assert failed(*COMPLETE[:-1], ("B", 1, 7)) == ["no record lost"]


def test_repeated_row_is_detected() -> None:
    assert failed(*COMPLETE, ("B", 0, 2)) == ["no record delivered twice"]


def test_idle_application_is_detected() -> None:
    assert failed(*(("A", p, o) for _, p, o in COMPLETE)) == ["A and B delivered"]


def test_lag_is_detected_and_an_empty_partition_needs_no_commit() -> None:
    assert check_lag({0: 3, 1: 2}, ENDS).passed
    assert not check_lag({0: 3, 1: 1}, ENDS).passed
    assert not check_lag({0: 3}, ENDS).passed
    assert not check_lag({0: 4, 1: 2}, ENDS).passed


@pytest.mark.parametrize(
    "found", [{"UA": (1, 2.0)}, {"UA": (2, 3.0)}, {}, {"UA": (2, 2.0), "AA": (1, 0.0)}, {"UA": (2, math.nan)}]
)
def test_wrong_mean_is_detected(found: dict[str, tuple[int, float]]) -> None:
    assert not check_means(found, {"UA": (2, 2.0)}).passed


def test_an_output_is_read_without_the_metadata_of_spark(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "_spark_metadata" / "0").write_text("v1")
    for name in ("A", "B"):
        columns = {"source_partition": [0], "source_offset": [7], "partition": [3], "offset": [9], "more": [1]}
        application = {"application": [f"flight delays {name}"]}
        table = pyarrow.table({**application, "carrier": ["UA"], "arr_delay": [None], **columns})
        pyarrow.parquet.write_table(table, tmp_path / f"part-{name}.parquet")
    found = read_output(tmp_path)
    assert sorted(found["application"]) == ["A", "B"]
    assert set(zip(found["partition"], found["offset"])) == {(0, 7)}
    assert carrier_means(found)["UA"][0] == 2
