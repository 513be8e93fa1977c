"""Anomalies planted in histories, and correct histories without one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories.checker import find_anomalies, strongly_connected
from histories.history import History, Operation, Outcome, Polled, Sent

A, B = "a-0", "b-0"


def wrote(process: str, *sent: Sent, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation(process, outcome, sent=sent)


def read(process: str, *polled: Polled, is_reassigned: bool = False) -> Operation:
    return Operation(process, polled=polled, is_reassigned=is_reassigned)


PLANTED: dict[str, History] = {
    "inconsistent offset": [
        wrote("p", Sent(A, 1, 0)),
        read("c", Polled(A, 0, 1)),
        read("d", Polled(A, 0, 2)),
    ],
    "duplicate": [wrote("p", Sent(A, 1, 0)), read("c", Polled(A, 0, 1), Polled(A, 5, 1))],
    "lost write": [
        wrote("p", Sent(A, 1, 0)),
        wrote("p", Sent(A, 2, 1)),
        read("c", Polled(A, 1, 2)),
    ],
    "unseen": [wrote("p", Sent(A, 1, 0)), wrote("p", Sent(A, 2, 1)), read("c", Polled(A, 0, 1))],
    "aborted read": [wrote("p", Sent(A, 1), outcome=Outcome.FAILED), read("c", Polled(A, 0, 1))],
    "torn transaction": [
        wrote("p", Sent(A, 1, 0), Sent(B, 2, 0)),
        wrote("q", Sent(B, 3, 2)),
        read("c", Polled(A, 0, 1), Polled(B, 2, 3)),
    ],
    "torn offset": [
        Operation("p", sent=(Sent(A, 1, 0),), group="g", committed=1),
        Operation("p", Outcome.FAILED, sent=(Sent(A, 2, 2),), group="g", committed=2),
        Operation("p", Outcome.UNKNOWN, sent=(Sent(A, 3, 4),), group="g", committed=3, fetched=2),
        read("c", Polled(A, 0, 1)),
    ],
    "nonmonotonic poll": [
        wrote("p", Sent(A, 1, 0), Sent(A, 2, 1)),
        read("c", Polled(A, 0, 1), Polled(A, 1, 2)),
        read("c", Polled(A, 0, 1)),
    ],
    "skipped poll": [
        wrote("p", Sent(A, 1, 0), Sent(A, 2, 1), Sent(A, 3, 2)),
        read("c", Polled(A, 0, 1), Polled(A, 2, 3)),
        read("d", Polled(A, 1, 2)),
    ],
    "nonmonotonic send": [
        wrote("p", Sent(A, 1, 1)),
        wrote("p", Sent(A, 2, 0)),
        read("c", Polled(A, 0, 2), Polled(A, 1, 1)),
    ],
    "cycle": [
        Operation("p", sent=(Sent(A, 1, 0),), polled=(Polled(B, 0, 2),)),
        Operation("q", sent=(Sent(B, 2, 0),), polled=(Polled(A, 0, 1),)),
    ],
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_anomaly_is_found(kind: str) -> None:
    kinds = {anomaly.kind for anomaly in find_anomalies(PLANTED[kind])}
    # a torn transaction has a lost write
    assert kinds == ({kind, "lost write"} if kind == "torn transaction" else {kind})


ALLOWED: dict[str, History] = {
    "a position that moves with the assignment": [
        wrote("p", Sent(A, 1, 0), Sent(A, 2, 1)),
        read("c", Polled(A, 0, 1), Polled(A, 1, 2)),
        read("c", Polled(A, 0, 1), Polled(A, 1, 2), is_reassigned=True),
    ],
    "offsets of transactions whose outcome shows in their values": [
        Operation("p", Outcome.UNKNOWN, sent=(Sent(A, 1, 0),), group="g", committed=1, fetched=-1),
        Operation("p", Outcome.UNKNOWN, sent=(Sent(A, 2, 2),), group="g", committed=2, fetched=1),
        Operation("q", group="g", fetched=1),
        read("c", Polled(A, 0, 1)),
    ],
    "a write without a known outcome that no client sees": [
        wrote("p", Sent(A, 1), outcome=Outcome.UNKNOWN),
        wrote("q", Sent(A, 2, 1)),
        read("c", Polled(A, 1, 2)),
    ],
    "a write without a known outcome that is seen": [
        wrote("p", Sent(A, 1), outcome=Outcome.UNKNOWN),
        read("c", Polled(A, 0, 1)),
    ],
    "markers and aborted records between two polls": [
        wrote("p", Sent(A, 1, 0)),
        wrote("q", Sent(A, 9), outcome=Outcome.FAILED),
        wrote("p", Sent(A, 2, 5)),
        read("c", Polled(A, 0, 1), Polled(A, 5, 2)),
    ],
    "writes of two transactions in different orders": [
        wrote("p", Sent(A, 1, 0), Sent(B, 2, 1)),
        wrote("q", Sent(A, 3, 1), Sent(B, 4, 0)),
        read("c", Polled(A, 0, 1), Polled(A, 1, 3), Polled(B, 0, 4), Polled(B, 1, 2)),
    ],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_kafka_allows_is_no_anomaly(name: str) -> None:
    assert find_anomalies(ALLOWED[name]) == []


def test_what_no_client_read_is_no_anomaly_before_the_end() -> None:
    assert find_anomalies(PLANTED["unseen"], is_complete=False) == []


def correct_history(seed: int) -> History:
    """Returns a history of transactions over correct logs, with aborted ones and consumers that start anew."""
    draw = random.Random(seed)
    logs: dict[str, list[int | None]] = {A: [], B: []}
    positions: dict[tuple[str, str], int] = {}
    history: History = []
    value = 0
    for _ in range(60):
        process = draw.choice("pqr")
        if draw.random() < 0.5:
            sent = []
            outcome = draw.choice([Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN])
            took_effect = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and draw.random() < 0.5)
            for _ in range(draw.randint(1, 4)):
                log = draw.choice((A, B))
                sent.append(Sent(log, value, len(logs[log]) if outcome is Outcome.OK else None))
                logs[log].append(value if took_effect else None)
                value += 1
            for log in {each.log for each in sent}:
                logs[log].append(None)
            history.append(Operation(process, outcome, sent=tuple(sent)))
        else:
            log = draw.choice((A, B))
            is_reassigned = draw.random() < 0.1
            if is_reassigned:
                for key in [key for key in positions if key[0] == process]:
                    del positions[key]
            history.append(_poll(process, log, logs[log], positions, draw.randint(1, 9), is_reassigned))
    for log in logs:
        history.append(_poll("end", log, logs[log], positions, 10**6, False))
    return history


def _poll(
    process: str,
    log: str,
    values: list[int | None],
    positions: dict[tuple[str, str], int],
    count: int,
    is_reassigned: bool,
) -> Operation:
    begin = positions.get((process, log), 0)
    end = min(begin + count, len(values))
    positions[process, log] = end
    found = [(at, value) for at in range(begin, end) if (value := values[at]) is not None]
    return Operation(process, polled=tuple(Polled(log, at, v) for at, v in found), is_reassigned=is_reassigned)


@given(st.integers(0, 10**9))
def test_a_correct_history_has_no_anomaly(seed: int) -> None:
    assert find_anomalies(correct_history(seed)) == []


@given(st.integers(2, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30))
def test_strongly_connected_components_are_those_of_reachability(size: int, pairs: list[tuple[int, int]]) -> None:
    edges: list[list[int]] = [[] for _ in range(size)]
    for begin, end in pairs:
        if begin < size and end < size:
            edges[begin].append(end)

    def reachable(node: int) -> set[int]:
        seen, pending = {node}, [node]
        while pending:
            for successor in edges[pending.pop()]:
                if successor not in seen:
                    seen.add(successor)
                    pending.append(successor)
        return seen

    reached = [reachable(node) for node in range(size)]
    expected = {frozenset(m for m in range(size) if m in reached[n] and n in reached[m]) for n in range(size)}
    assert {frozenset(component) for component in strongly_connected(edges)} == expected
