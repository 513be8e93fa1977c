"""File of option rebalanceLog: one line of JSON for each rebalance."""

from __future__ import annotations

import json
from pathlib import Path

from spark_groupsource.client.membership.group_client import RebalanceEvent
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.group.rebalance_reports import append_event


def test_each_rebalance_is_one_line_with_all_partitions_and_a_bounded_text(tmp_path: Path) -> None:
    gained = tuple(TopicPartition("t", number) for number in range(5_000))
    event = RebalanceEvent("b joined", 1_000, 1_091, 39, 52, 5, gained, (), 4)
    path = tmp_path / "rebalances.jsonl"
    append_event(str(path), "g", event)
    append_event(str(path), "g", event._replace(generation_id=6))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["generation"], second["generation"]) == (5, 6)
    assert first["gained"] == [str(partition) for partition in gained]
    assert first["text"] == (
        "[group=g generation=5] Rebalance (b joined) completed in 91 ms (join 39 ms, sync 52 ms): "
        "+5,000 -0 partitions, 4 members."
    )
