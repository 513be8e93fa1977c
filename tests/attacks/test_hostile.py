"""A short run of `hostile.py`, its course and its page."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import hostile
from attacks.attacked_brokers import AttackedBroker
from attacks.client_attacks import Outcome, Target
from attacks.hostile_report import ATTACKS_TABLE, BOUNDS_TABLE, FUZZ, IDLE, BoundCost, Row, write_attacks, write_bounds
from attacks.neighbors import KINDS, Reading
from support.startup import python_path

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_neighbors_are_served_during_attacks() -> None:
    command = [sys.executable, str(TESTS / "attacks" / "hostile.py"), "--minutes", "0", "--limit-ms", "5000"]
    command += ["--only", "long_names", "tls_wrong_records"]
    environment = {**os.environ, "PYTHONPATH": python_path(TESTS, TESTS.parent / "jobs")}
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    runs = {row[1].strip(): row[2].strip() for row in (line.split("|") for line in run.stdout.splitlines()) if row[2:]}
    assert (runs["long_names"], runs["tls_wrong_records"], runs["fuzz"]) == ("1", "1", "2")


READING = Reading(dict.fromkeys(KINDS, 7.0), 1, 80.0, [])


class FakeNeighbors:
    """Neighbors of a broker: wrong responses when it does not run or serves no new clients."""

    brokers: list[FakeBroker] = []

    def __init__(self, address: str, process_id: int | None) -> None:
        self.broker = self.brokers[-1]

    def reading(self) -> Reading:
        return READING if self.broker.runs and self.broker.serves else READING._replace(failures=["commit: lost"])

    def restart(self, timeout_s: float) -> bool:
        return self.broker.serves

    def stop(self) -> None:
        pass


class FakeBroker:
    """Its attacks stop it or its service."""

    def __init__(self) -> None:
        self.runs = self.serves = True
        FakeNeighbors.brokers.append(self)


def _run(monkeypatch, tmp_path: Path, attacks: dict[str, str], replaceable: bool = True) -> hostile.Run:
    """Runs attacks, each of which sets an attribute of the broker to False or raises an error."""

    def attack(attribute: str):
        def function(target: Target) -> Outcome:
            if attribute == "error":
                raise KeyError(attribute)
            if attribute:
                setattr(FakeNeighbors.brokers[-1], attribute, False)
            return Outcome(0, 1)

        return function

    def start(stack):
        broker = FakeBroker()
        return Target("h:1", None), lambda: broker.runs

    monkeypatch.setattr(hostile, "Neighbors", FakeNeighbors)
    monkeypatch.setattr(hostile, "ATTACKS", {name: attack(attribute) for name, attribute in attacks.items()})
    monkeypatch.setattr(hostile, "_fuzz", lambda seed: attack(""))
    monkeypatch.setattr(hostile, "_idle", attack(""))
    monkeypatch.setattr(hostile, "_RECOVERY_S", 0.0)
    monkeypatch.setattr(hostile, "_SETTLE_S", 0.0)
    FakeNeighbors.brokers.clear()
    options = argparse.Namespace(
        seed=1, only=list(attacks), without=[], minutes=0.0, pause_s=0.0, limit_ms=None, limit_mb=None
    )
    run = hostile.Run(options, tmp_path)
    run.run(AttackedBroker(start, replaceable))
    return run


def test_an_attack_that_stops_the_broker_is_noted_and_the_others_run_on_another_one(monkeypatch, tmp_path):
    attacks = {"tags_4mb": "runs", "metadata_4mb": "serves", "many_groups": "", "half_sent_frames": "error"}
    run = _run(monkeypatch, tmp_path, attacks)
    assert all(row.runs for row in run.rows.values()) and len(FakeNeighbors.brokers) == 3
    assert run.rows["tags_4mb"].note == "stopped the broker"
    assert run.rows["metadata_4mb"].note == "no new client for 0 s"
    assert not run.rows["many_groups"].note and not run.rows[FUZZ].note
    assert "half_sent_frames: the attack failed: KeyError: 'error'" in run.problems
    assert run.rows["tags_4mb"].cells == " 7 ms; stopped the broker | 80 MB | 1 |"


def test_a_broker_that_was_started_before_is_not_replaced(monkeypatch, tmp_path):
    run = _run(monkeypatch, tmp_path, {"tags_4mb": "runs", "metadata_4mb": "runs"}, replaceable=False)
    assert sorted(row.runs for row in run.rows.values()) == [0, 0, 1, 1] and len(FakeNeighbors.brokers) == 1


def _comments(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def _table(page: str, name: str) -> tuple[str, str]:
    """A table of the page, and the page without it."""
    begin, end = _comments(name)
    assert page.count(begin) == page.count(end) == 1
    before, _, rest = page.partition(begin)
    table, _, after = rest.partition(end)
    return table, before + begin + end + after


def test_only_the_tables_of_the_page_are_replaced(tmp_path):
    page = tmp_path / "security.md"
    before = (TESTS.parent / "docs" / "security.md").read_text()
    page.write_text(before)
    rows = {IDLE: Row(), "tags_4mb": Row(), "many_groups": Row()}
    rows[IDLE].add(READING, 0)
    rows["tags_4mb"].add(READING, 2)
    write_attacks(page, rows, {}, keeps_others=False)
    attacks, rest = _table(page.read_text(), ATTACKS_TABLE)
    assert rest == _table(before, ATTACKS_TABLE)[1]
    assert attacks.startswith("\n| attack |")
    assert "| no attack | 7 ms | 80 MB | 0 | not measured |  |  |\n" in attacks
    assert attacks.endswith("| 2 | not measured |  |  |\n\nNot measured: 9,000 groups of one member.\n\n")
    write_bounds(page, [BoundCost("new", 60, 90, 85)], ["new"])
    bounds, rest = _table(page.read_text(), BOUNDS_TABLE)
    assert _table(rest, ATTACKS_TABLE)[1] == _table(_table(before, BOUNDS_TABLE)[1], ATTACKS_TABLE)[1]
    assert bounds.endswith("|---|--:|--:|--:|\n| new | 60 MB | 90 MB | 85 MB |\n\n")


def test_the_rows_of_attacks_that_were_not_chosen_stay(monkeypatch, tmp_path):
    page = tmp_path / "security.md"
    measured = (TESTS.parent / "docs" / "security.md").read_text()
    before = "".join(line for line in measured.splitlines(keepends=True) if "2,500 connections with TLS" not in line)
    page.write_text(before)

    def measure(options, is_kafka, runs):
        runs.append(hostile.Run(options, tmp_path))
        runs[-1].rows = {name: Row() for name in (IDLE, FUZZ, "tags_4mb", "topics_in_turn", "tls_connections")}
        for row in list(runs[-1].rows.values())[: -1 if is_kafka else None]:
            row.add(READING, 2)

    monkeypatch.setattr(hostile, "_measure", measure)
    monkeypatch.setattr(os, "nice", lambda value: None)
    chosen = ["tags_4mb", "topics_in_turn", "tls_connections"]
    hostile.main(["--document", str(page), "--minutes", "0", "--seed", "2", "--bounds", "--only", *chosen])
    assert _table(page.read_text(), ATTACKS_TABLE)[1] == _table(before, ATTACKS_TABLE)[1]
    changed = set(page.read_text().splitlines()) - set(before.splitlines())
    cells = "7 ms | 80 MB | 2 |"
    assert {line.split("|", 2)[2].strip() for line in changed} == {f"{cells} {cells}", f"{cells} not measured |  |  |"}
    assert len(changed) == 3 and "| no attack | 7 ms" not in page.read_text()
    # in the order of a whole run
    lines = page.read_text().splitlines()
    assert lines.index("| no attack, between the others | 3 ms | 76 MB | 0 | 10 ms | 381 MB | 0 |") < min(
        lines.index(line) for line in changed
    )


def test_the_rows_of_bounds_that_were_not_measured_stay(tmp_path):
    page = tmp_path / "security.md"
    begin, end = _comments(BOUNDS_TABLE)
    page.write_text(
        f"# Title\n\n{begin}\n| bound | before |\n|---|--:|\n| first | 1 MB |\n| old | 2 MB |\n\n{end}\nText.\n"
    )
    write_bounds(page, [BoundCost("second", 60, 90, 85)], ["second", "third", "first"])
    expected = f"|---|--:|--:|--:|\n| second | 60 MB | 90 MB | 85 MB |\n| first | 1 MB |\n\n{end}\nText.\n"
    assert page.read_text().endswith(expected)


def test_the_page_is_written_when_the_run_is_interrupted(monkeypatch, tmp_path):
    page = tmp_path / "security.md"
    (attacks_begin, attacks_end), (bounds_begin, bounds_end) = _comments(ATTACKS_TABLE), _comments(BOUNDS_TABLE)
    head = f"# Title\n\nBy hand, seed 1.\n\n{attacks_begin}"
    tail = f"{attacks_end}\n{bounds_begin}\nold bounds\n\n{bounds_end}\n## Next\n\ntext\n"
    page.write_text(f"{head}\nold attacks\n\n{tail}")

    def measure(options, is_kafka, runs):
        runs.append(hostile.Run(options, tmp_path))
        if is_kafka:
            raise KeyboardInterrupt
        runs[-1].rows[IDLE] = Row()
        runs[-1].rows[IDLE].add(READING, 0)

    monkeypatch.setattr(hostile, "_measure", measure)
    monkeypatch.setattr(os, "nice", lambda value: None)
    with pytest.raises(KeyboardInterrupt):
        hostile.main(["--document", str(page), "--minutes", "0", "--seed", "2", "--bounds"])
    text = page.read_text()
    assert "| no attack | 7 ms | 80 MB | 0 | not measured |  |  |" in text and "old attacks" not in text
    # no bound was measured: that table stays, and all that is written by hand
    assert text.startswith(head) and text.endswith(tail)
