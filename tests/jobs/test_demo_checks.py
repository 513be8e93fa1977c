"""The demonstration's checks see what they are there to see."""

from __future__ import annotations

import math
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from demo_checks import carrier_means, check_lag, check_means, check_rows, read_outputs

ENDS = {0: 3, 1: 2, 2: 0}


def rows(*positions: tuple[str, int, int]) -> pandas.DataFrame:
    frame = pandas.DataFrame(positions, columns=["application", "partition", "offset"])
    return frame.assign(carrier="UA", arr_delay=1.0)


WHOLE = [("A", 0, 0), ("A", 0, 1), ("A", 0, 2), ("B", 1, 0), ("B", 1, 1)]


def failed(*positions: tuple[str, int, int]) -> list[str]:
    return [check.promise for check in check_rows(rows(*positions), ENDS, 5) if not check.held]


def test_a_whole_output_passes() -> None:
    assert failed(*WHOLE) == []


def test_a_missing_row_is_seen() -> None:
    assert failed(*WHOLE[:-1]) == ["nothing lost"]


def test_a_row_of_the_wrong_place_does_not_make_up_for_a_missing_one() -> None:
    assert failed(*WHOLE[:-1], ("B", 1, 7)) == ["nothing lost"]


def test_a_repeated_row_is_seen() -> None:
    assert failed(*WHOLE, ("B", 0, 2)) == ["nothing read twice"]


def test_an_idle_application_is_seen() -> None:
    assert failed(*(("A", p, o) for _, p, o in WHOLE)) == ["both applications read"]


def test_lag_is_seen_and_an_empty_partition_needs_no_commit() -> None:
    assert check_lag({0: 3, 1: 2}, ENDS).held
    assert not check_lag({0: 3, 1: 1}, ENDS).held
    assert not check_lag({0: 3}, ENDS).held
    assert not check_lag({0: 4, 1: 2}, ENDS).held


@pytest.mark.parametrize(
    "found", [{"UA": (1, 2.0)}, {"UA": (2, 3.0)}, {}, {"UA": (2, 2.0), "AA": (1, 0.0)}, {"UA": (2, math.nan)}]
)
def test_a_wrong_mean_is_seen(found: dict[str, tuple[int, float]]) -> None:
    assert not check_means(found, {"UA": (2, 2.0)}).held


def test_outputs_are_read_beside_sparks_own_bookkeeping(tmp_path: Path) -> None:
    for name in ("A", "B"):
        (tmp_path / name / "_spark_metadata").mkdir(parents=True)
        (tmp_path / name / "_spark_metadata" / "0").write_text("v1")
        table = pyarrow.table(
            {"topic": ["t"], "partition": [0], "offset": [7], "carrier": ["UA"], "arr_delay": [None], "more": [1]}
        )
        pyarrow.parquet.write_table(table, tmp_path / name / "part-0.parquet")
    found = read_outputs({"A": tmp_path / "A", "B": tmp_path / "B"})
    assert sorted(found["application"]) == ["A", "B"]
    assert carrier_means(found)["UA"][0] == 2
