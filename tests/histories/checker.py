"""Anomalies of a history.

Source of the kinds: Jepsen's analysis of Kafka and of Bufstream 0.1.0 (lost writes, duplicates, unseen writes,
inconsistent offsets, nonmonotonic polls and sends, aborted reads, torn transactions, cycles). "Torn offset" is this
project's own: the committed offset of a group is not that of the last transaction whose records are visible.

A cycle of writes alone is no anomaly: Kafka does not isolate the writes of transactions from each other. The graph has
an edge from the writer of a value to each reader of it, and from each operation of a process to its next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from histories.history import History, Operation, Outcome, Polled


class Anomaly(NamedTuple):
    """One anomaly; `text` names the operations, logs and values."""

    kind: str
    text: str


@dataclass
class Observations:
    """What a history shows about the logs.

    Attributes:
        values: log -> offset -> the values that were seen there by senders and pollers.
        offsets: log -> value -> its offsets.
        polled: log -> the values that some client has received.
        ends: log -> the largest offset that was received.
        writers: log and value -> the operation that sent it.
    """

    history: History
    values: dict[str, dict[int, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    offsets: dict[str, dict[int, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    polled: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    ends: dict[str, int] = field(default_factory=dict)
    writers: dict[tuple[str, int], Operation] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History) -> Observations:
        found = cls(history)
        for operation in history:
            for sent in operation.sent:
                found.writers[sent.log, sent.value] = operation
                if sent.offset is not None and operation.outcome is not Outcome.FAILED:
                    found._see(sent.log, sent.offset, sent.value)
            for log, offset, value in operation.polled:
                found._see(log, offset, value)
                found.polled[log].add(value)
                found.ends[log] = max(found.ends.get(log, -1), offset)
        return found

    def _see(self, log: str, offset: int, value: int) -> None:
        self.values[log][offset].add(value)
        self.offsets[log][value].add(offset)

    def is_lost(self, log: str, value: int) -> bool:
        """Returns whether the log was read beyond a value that no client has received."""
        at = self.offsets[log].get(value)
        return value not in self.polled[log] and bool(at) and min(at or ()) < self.ends.get(log, -1)

    def took_effect(self, operation: Operation) -> bool:
        """Returns whether an operation has taken effect: it says so, or one of its values was received."""
        if operation.outcome is Outcome.OK:
            return True
        return operation.outcome is Outcome.UNKNOWN and any(s.value in self.polled[s.log] for s in operation.sent)


def find_anomalies(history: History, *, is_complete: bool = True) -> list[Anomaly]:
    """Returns the anomalies of a history.

    Args:
        is_complete: the clients have read every log to its end, so that a write that no client has received is one.
    """
    seen = Observations.of(history)
    found = [anomaly for check in _CHECKS for anomaly in check(seen)]
    return found + list(_unseen(seen)) if is_complete else found


def _inconsistent_offsets(seen: Observations) -> Iterator[Anomaly]:
    for log, values in seen.values.items():
        for offset, found in sorted(values.items()):
            if len(found) > 1:
                yield Anomaly("inconsistent offset", f"{log} has the values {sorted(found)} at offset {offset}")


def _duplicates(seen: Observations) -> Iterator[Anomaly]:
    for log, offsets in seen.offsets.items():
        for value, found in sorted(offsets.items()):
            if len(found) > 1:
                yield Anomaly("duplicate", f"{log} has the value {value} at the offsets {sorted(found)}")


def _lost_writes(seen: Observations) -> Iterator[Anomaly]:
    for operation in seen.history:
        if seen.took_effect(operation):
            for sent in operation.sent:
                if seen.is_lost(sent.log, sent.value):
                    at = min(seen.offsets[sent.log][sent.value])
                    end = seen.ends[sent.log]
                    yield Anomaly(
                        "lost write",
                        f"{operation.process} wrote {sent.value} to {sent.log} at {at}, which was read to {end} "
                        "without it",
                    )


def _unseen(seen: Observations) -> Iterator[Anomaly]:
    for operation in seen.history:
        if operation.outcome is Outcome.OK:
            for sent in operation.sent:
                if sent.value not in seen.polled[sent.log] and not seen.is_lost(sent.log, sent.value):
                    text = f"{operation.process} wrote {sent.value} to {sent.log}, which no client read"
                    yield Anomaly("unseen", text)


def _aborted_reads(seen: Observations) -> Iterator[Anomaly]:
    for operation in seen.history:
        for log, offset, value in operation.polled:
            writer = seen.writers.get((log, value))
            if writer is not None and writer.outcome is Outcome.FAILED:
                yield Anomaly("aborted read", f"{operation.process} read {value} of {log} at {offset}, which failed")


def _torn_transactions(seen: Observations) -> Iterator[Anomaly]:
    for operation in seen.history:
        read = [s for s in operation.sent if s.value in seen.polled[s.log]]
        lost = [s for s in operation.sent if seen.is_lost(s.log, s.value)]
        if read and lost:
            yield Anomaly(
                "torn transaction",
                f"of a transaction of {operation.process}, {[(s.log, s.value) for s in read]} were read and "
                f"{[(s.log, s.value) for s in lost]} were not",
            )


def _torn_offsets(seen: Observations) -> Iterator[Anomaly]:
    last: dict[str, int] = {}
    for operation in seen.history:
        known = last.get(operation.group, -1)
        if operation.fetched not in (None, known):
            text = f"{operation.process} found {operation.fetched} in {operation.group}, after the commit of {known}"
            yield Anomaly("torn offset", text)
        if operation.committed is not None and seen.took_effect(operation):
            last[operation.group] = operation.committed


def _polls(seen: Observations) -> Iterator[Anomaly]:
    """Polls of a process that go back, or leave out a value that is in the log for others."""
    positions: dict[str, dict[str, int]] = defaultdict(dict)
    for operation in seen.history:
        known = positions[operation.process]
        if operation.is_reassigned:
            known.clear()
        for polled in operation.polled:
            last = known.get(polled.log)
            if last is not None:
                yield from _after(seen, operation, last, polled)
            known[polled.log] = polled.offset


def _after(seen: Observations, operation: Operation, last: int, polled: Polled) -> Iterator[Anomaly]:
    log, offset, _ = polled
    if offset <= last:
        yield Anomaly("nonmonotonic poll", f"{operation.process} read {log} at {last} and then at {offset}")
        return
    skipped = [
        (at, value)
        for at in range(last + 1, offset)
        for value in seen.values[log].get(at, ())
        if value in seen.polled[log]
    ]
    if skipped:
        yield Anomaly("skipped poll", f"{operation.process} read {log} at {last} and then at {offset}, not {skipped}")


def _sends(seen: Observations) -> Iterator[Anomaly]:
    last: dict[tuple[str, str], int] = {}
    for operation in seen.history:
        for sent in operation.sent:
            if sent.offset is not None and operation.outcome is not Outcome.FAILED:
                key = operation.process, sent.log
                if sent.offset <= last.get(key, -1):
                    text = f"{operation.process} wrote to {sent.log} at {last[key]} and then at {sent.offset}"
                    yield Anomaly("nonmonotonic send", text)
                last[key] = sent.offset


def _cycles(seen: Observations) -> Iterator[Anomaly]:
    graph = _graph(seen)
    for component in strongly_connected(graph):
        if len(component) > 1:
            names = [f"{number}: {seen.history[number].process}" for number in sorted(component)]
            yield Anomaly("cycle", f"each of the operations {names} depends on the others")


def _graph(seen: Observations) -> list[list[int]]:
    """Returns the edges by operation: to the readers of its values, and to the next operation of its process."""
    numbers = {id(operation): number for number, operation in enumerate(seen.history)}
    edges: list[list[int]] = [[] for _ in seen.history]
    previous: dict[str, int] = {}
    for number, operation in enumerate(seen.history):
        if operation.process in previous:
            edges[previous[operation.process]].append(number)
        previous[operation.process] = number
        for polled in operation.polled:
            writer = seen.writers.get((polled.log, polled.value))
            if writer is not None and writer is not operation:
                edges[numbers[id(writer)]].append(number)
    return edges


def strongly_connected(edges: list[list[int]]) -> list[set[int]]:
    """Returns the strongly connected components of a graph (Tarjan 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    for root in range(len(edges)):
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    component: set[int] = set()
                    while node not in component:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                    found.append(component)
    return found


_CHECKS: tuple[Callable[[Observations], Iterator[Anomaly]], ...] = (
    _inconsistent_offsets,
    _duplicates,
    _lost_writes,
    _aborted_reads,
    _torn_transactions,
    _torn_offsets,
    _polls,
    _sends,
    _cycles,
)
