"""Cases of docs/protocol.md show what their text says; notebook cells run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from spark_groupsource.notebook.group_scenario import EntryKind, GroupScenario

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))
import protocol_cases  # noqa: E402
from protocol_pages import CASES, protocol_page  # noqa: E402

# the states of each case in order (S stable, P preparing, C completing, E empty, D dead), with the generation after a
# rebalance, and the time in ms of the last entry
FACTS = {
    "first_member": ("E0 P0 C1 S1", 9_000),
    "offsets": ("E0 P0 C1 S1 P1 C2 S2", 3_150),
    "second_member": ("P1 C2 S2", 3_520),
    "third_application": ("P1 C2 S2", 13_000),
    "third_member": ("P1 C2 P2 C3 S3", 100),
    "lost_join_of_follower": ("P1 C2 S2", 30_000),
    "lost_join_of_leader": ("P1 C2 S2", 30_000),
    "lost_sync": ("P1 C2 S2", 30_000),
    "dies_while_preparing": ("P1 C2 S2", 48_000),
    "dies_while_completing": ("P1 C2 P2 C3 S3", 45_000),
    "dies_while_stable": ("P1 C2 S2", 45_000),
    "freezes": ("P1 C2 S2 P2 C3 S3", 60_000),
    "misses_join_timeout": ("P1 C2 S2 P2", 300_000),
    "misses_sync_timeout": ("P1 C2 S2 P2 C3 S3", 300_000),
    "leave": ("P1 C2 S2 E3", 3_000),
    "static_member": ("", 12_000),
    "leader_changes_subscription": ("P1 C2 S2", 3_000),
    "partitions_grow": ("P1 C2 S2", 3_000),
    "coordinator_moves": ("P1 D S1 P1 C2 S2", 3_100),
    "dead": ("E2 D E0 P0", 604_800_000),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
def test_case_has_the_states_of_its_text(case: Callable[[GroupScenario], None]) -> None:
    group = GroupScenario()
    case(group)
    states = [entry.text for entry in group.entries if entry.kind is EntryKind.STATE]
    short = [state[0] + state.partition("generation ")[2] for state in states]
    assert (" ".join(short), group.entries[-1].time_ms) == FACTS[case.__name__]


def test_errors_that_the_texts_name_are_in_their_cases() -> None:
    for case in CASES:
        group = GroupScenario()
        case(group)
        named = {name for name in ERRORS if name in str(case.__doc__)}
        assert {name for name in named if f"error_code={name}" not in group.listing()} == set(), case.__name__


ERRORS = (
    "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "NOT_COORDINATOR",
)


def test_every_case_is_on_the_page_once() -> None:
    functions = [
        value
        for value in vars(protocol_cases).values()
        if callable(value) and getattr(value, "__module__", "") == protocol_cases.__name__
    ]
    assert set(functions) == set(CASES) and len(CASES) == len(FACTS)
    assert protocol_page().count("sequenceDiagram") == len(CASES)


def test_cells_of_the_notebook_run_alone() -> None:
    cells = json.loads((DOCS / "group-protocol.ipynb").read_text())["cells"]
    imports, *codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for case, code in zip(CASES, codes, strict=True):
        names: dict[str, Any] = {}
        exec(imports, names)
        exec(code, names)
        expected = GroupScenario()
        case(expected)
        assert code.endswith("\ngroup") and names["group"].markdown() == expected.markdown()
