"""Lag and history as a notebook shows them; chart of the lag."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.topics import create_topic

import spark_groupsource as gs
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.results import Result
from spark_groupsource.notebook.group_results import HistoryResult, LagResult

MEMBER = "app-a-0-5f3c9d2e-1111-4222-8333-444455556666"
GROUP = "delays"


def lag_row(partition: int, lag: int | None, **more: Any) -> dict[str, Any]:
    end = 1_500_000
    current = None if lag is None else end - lag
    row = {"group": "delays", "topic": "flights", "partition": partition, "current_offset": current, "lag": lag}
    owner = {"client_id": "app-a-0", "consumer_id": MEMBER}
    measures = {"lag_ms": 3_500, "lag_bytes": 20_000, "catch_up_ms": 7_200_000}
    return {**row, "log_end_offset": end, **owner, **measures, **more}


def lag(*rows: dict[str, Any]) -> LagResult:
    return LagResult.of_group(GROUP, Result(TABLES["lag"], rows))


def test_lag_shows_few_columns_with_separators_and_a_duration() -> None:
    found = lag(lag_row(0, 1_234_567), lag_row(1, None, lag_ms=None))
    head, first, second, rest = repr(found).splitlines()
    assert head.split() == ["topic", "partition", "client_id", "current_offset", "log_end_offset", "lag", "behind"]
    assert re.split(r"  +", first) == ["flights", "0", "app-a-0", "265,433", "1,500,000", "1,234,567", "3.5 s"]
    assert second.split()[-1] == "-" and rest == "7 more columns: .all()"
    # numbers end in the same column
    assert first.index("265,433") + 7 == head.index("current_offset") + len("current_offset")


def test_all_shows_every_column_and_ids_are_short_in_a_notebook_only() -> None:
    found = lag(lag_row(0, 5)).all()
    assert isinstance(found, LagResult) and "more columns" not in repr(found)
    head = repr(found).splitlines()[0].split()
    assert len(head) == len(TABLES["lag"].columns) and {"catch_up", "log_end_lag", "behind"} <= set(head)
    assert MEMBER in repr(found) and "20,000" in repr(found) and "2 h" in repr(found)
    page = found._repr_html_()
    assert f'title="{MEMBER}">app-a-0-5f3c9d2e…</td>' in page and "consumer_id" in page
    # what is not shortened has no title
    assert page.count("title=") == 1


def test_rows_and_data_frames_have_every_column_with_raw_numbers() -> None:
    pytest.importorskip("pandas")
    found = lag(lag_row(0, 1_234_567))
    assert next(iter(found))["lag_ms"] == 3_500
    assert list(found.pandas().columns) == found.arrow().column_names == [c.name for c in TABLES["lag"].columns]
    assert found.pandas()["lag"].tolist() == [1_234_567] and found.arrow()["catch_up_ms"].to_pylist() == [7_200_000]


def test_long_texts_are_cut_and_whole_at_the_pointer() -> None:
    page = lag(lag_row(0, 1, topic="t" * 100 + "<b>"))._repr_html_()
    assert "t" * 80 + "... (23 more characters)</td>" in page and f'title="{"t" * 100}&lt;b&gt;"' in page


def test_history_shows_cause_phases_and_effect() -> None:
    at = datetime(2026, 1, 31, 10, tzinfo=timezone.utc)
    row = {
        "group": "delays", "generation": 12_345, "cause": "JOINED", "client_id": "app-b-0", "join_ms": 1_250,
        "sync_ms": 40, "members": 4, "partitions_moved": 3, "unowned_seconds": 1_234.56, "repeated_records": 1_000,
        "slowest_member": MEMBER, "completed_at": int(at.timestamp()) * 1_000_000,
    }  # fmt: skip
    found = HistoryResult.of_group(GROUP, Result(TABLES["rebalances"], [row])).last(1)
    head, line, rest = repr(found).splitlines()
    assert head.split()[:6] == ["completed_at", "generation", "cause", "client_id", "join", "sync"]
    # a generation is a number, not an amount
    assert re.split(r"  +", line)[:3] == ["2026-01-31 10:00:00.000Z", "12345", "JOINED"]
    assert "1.25 s" in line and "1,234.6" in line and rest.endswith("more columns: .all()")
    assert "1,000" in repr(found.all()) and 'title="' in found.all()._repr_html_()
    drawn = found.chart().svg()
    assert repr(found.chart()) == "Group delays: duration of 1 rebalances" and "12345 · JOINED · app-b-0" in drawn
    # records were repeated
    assert "1.29 s, 3 partitions moved, 1,000 records repeated" in drawn and "#e53935" in drawn
    # times and durations stay in one line
    assert found._repr_html_().count("white-space:nowrap") == 2 * len(head.split())


def test_chart_of_the_lag_has_a_bar_for_each_partition(tmp_path: Path) -> None:
    rows = [lag_row(n, 100 * n, client_id=None if n == 3 else f"<{n}>") for n in range(4)]
    chart = lag(*rows, lag_row(9, None)).chart()
    assert repr(chart) == "Group delays: lag 600 offsets in 4 partitions"
    drawn = ElementTree.fromstring(chart.svg())
    bars = [element for element in drawn.iter() if element.tag.endswith("rect")][1:]
    assert [float(bar.attrib["width"]) for bar in bars] == [420.0, 280.0, 140.0, 1.0]
    assert [bar.attrib["fill"] for bar in bars].count("#e53935") == 1
    texts = ["".join(element.itertext()) for element in drawn.iter() if element.tag.endswith("title")]
    assert texts[1] == f"flights-3: 300, 3.5 s behind, owner {MEMBER}"
    assert "flights-2 · &lt;2&gt;" in chart.svg("dark") and "currentColor" in chart._repr_html_()
    chart.save(tmp_path / "lag.svg")
    assert (tmp_path / "lag.svg").read_text() == chart.svg()
    for call in (lambda: chart.svg("blue"), lambda: chart.save(tmp_path / "lag.gif")):
        with pytest.raises(ConfigurationError, match="light, dark, notebook|end with .svg"):
            call()


def test_chart_of_many_partitions_is_bounded() -> None:
    chart = lag(*(lag_row(n, n) for n in range(1_000))).chart()
    assert "and 960 partitions with less lag" in chart.svg() and len(chart.svg()) < 40_000
    assert "lag 0 offsets in 0 partitions" in lag().chart().svg()


def test_results_of_a_group_draw_it(embedded: Any, topic: str, group: str) -> None:
    create_topic(embedded.bootstrap_servers, topic, 1)
    with gs.connect(embedded) as cluster:
        # private: the interface of notebooks commits nothing
        cluster._client.commit(group, {TopicPartition(topic, 0): OffsetAndMetadata(0)})
        found = cluster.group(group)
        assert repr(found.lag().chart()).startswith(f"Group {group}: lag 0 offsets in 1 partition")
        assert repr(found.lag(by="offsets").chart()) == repr(found.lag().chart())
        assert repr(found.history().chart()) == f"Group {group}: duration of 0 rebalances"
