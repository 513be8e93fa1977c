"""docs/tour.ipynb runs from the first cell to the last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.startup import python_path

ROOT = Path(__file__).resolve().parents[2]
# of the test and of a cell: kernels start slowly on a busy machine
_TOUR_S, _CELL_S = 900, 400

# the last rebalance has ended in the picture, too, and the lag is drawn over the whole time
PICTURE = """
def has_owners():
    return all(periods[-1].owner for periods in gs.timeline(group).timeline.partitions.values())

wait_for(has_owners)
chart = gs.timeline(group)
drawn = chart.timeline
assert drawn.markers[-1].cause == "LEFT" and chart.unowned_seconds > 0, drawn.markers
assert len(drawn.lag) > 10 and drawn.lag[-1][1] == 0, drawn.lag
"""


@pytest.mark.timeout(_TOUR_S)
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    tour: Any = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    assert all(cell.outputs == [] for cell in tour.cells if cell.cell_type == "code")
    at = next(number for number, cell in enumerate(tour.cells) if "chart.rebalance(" in cell.source)
    tour.cells.insert(at, nbformat.v4.new_code_cell(PICTURE))
    folder = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(tour, timeout=_CELL_S, startup_timeout=_CELL_S, resources=folder)
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        # Spark waits 10 s for a new Python worker, which no setting changes
        if "Python worker failed to connect back" not in str(error):
            raise
        client.execute()
    shown = [repr(cell.outputs) for cell in tour.cells if cell.cell_type == "code"]
    assert sum("<table" in text for text in shown) >= 8
    title = r"Group delays: (\d+) rebalances, [\d,.]+ partition-seconds without an owner"
    counts = [int(found[1]) for text in shown if (found := re.search(title, text))]
    # the first query joins; the second one joins and leaves; two members of a query may share a generation or not
    assert any(3 <= count <= 6 for count in counts)
