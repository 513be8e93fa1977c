"""Tables of attacks and bounds, also those of docs/security.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attacks.neighbors import KINDS, Reading
from attacks.state_attacks import STATE_ATTACKS
from attacks.tls_attacks import TLS_ATTACKS

IDLE, FUZZ = "none", "fuzz"
_LABELS = {
    IDLE: "no attack",
    FUZZ: "fuzzer (150 random clients)",
    "nothing": "no attack, between the others",
    "time_lookup_of_headers": "a time look-up in a batch of 3 million empty headers",
    "pipelined_time_lookups": "50 pipelined time look-ups in such a batch",
    "metadata_4mb": "Metadata of 2 million empty names (4 MB)",
    "metadata_100mb": "the same with 100 MB",
    "tags_4mb": "4 MB of unknown tagged fields",
    "auto_create_80000": "Metadata that creates 80,000 topics",
    "create_100000_partitions": "100,000 partitions created by one request, 50,000 by another",
    "describe_configs_2000": "DescribeConfigs that names the broker 2,000 times",
    "describe_groups_300": "DescribeGroups that names a group of 400 kB 300 times",
    "clients_that_do_not_read": "ten clients that request 1 GB each and do not read",
    "half_sent_frames": "fifty frames of 100 MB, of which 4 MB are sent",
    "pipelined_heartbeats": "30,000 pipelined heartbeats",
    "pipelined_metadata": "100 pipelined Metadata requests for all topics",
    "many_connections": "2,000 connections",
    "many_groups": "9,000 groups of one member",
    "many_producer_ids": "20,000 producer ids",
    "fetch_100000_partitions": "Fetch and Produce of 100,000 partitions",
    "long_names": "strings of 40,000 bytes",
    "invalid_batches": "eight invalid record batches",
    "fill_all_bounds": "all bounds of memory filled at the same time",
    **{name: text for name, (_, text) in {**STATE_ATTACKS, **TLS_ATTACKS}.items()},
}
ATTACKS_TABLE, BOUNDS_TABLE = "hostile.py attacks", "full_bounds.py bounds"
"""Names of the tables in the page: each is between two comments, and only the table is replaced."""
_ATTACKS_HEADER = """\
| attack | embedded: longest wait | memory | refused | Kafka: longest wait | memory | refused |
|---|--:|--:|--:|--:|--:|--:|"""
_BOUNDS_HEADER = """\
| bound, filled on a new broker | before | at most | 6 s later |
|---|--:|--:|--:|"""


class BoundCost(NamedTuple):
    """Memory of a broker before a bound is filled, at most, and afterwards, in MB."""

    description: str
    before_mb: float
    peak_mb: float
    after_mb: float

    @property
    def row(self) -> str:
        return f"| {self.description} | {self.before_mb:.0f} MB | {self.peak_mb:.0f} MB | {self.after_mb:.0f} MB |"


class Row:
    """What one attack cost, over all its runs. `note`: what it did to the broker or its clients, empty if nothing."""

    def __init__(self) -> None:
        self.runs = self.refused = 0
        self.peak_mb = 0.0
        self.worst_ms = dict.fromkeys(KINDS, 0.0)
        self.note = ""

    def add(self, reading: Reading, refused: int) -> None:
        self.runs += 1
        self.refused += refused
        self.peak_mb = max(self.peak_mb, reading.peak_mb)
        self.worst_ms = {kind: max(worst, reading.worst_ms[kind]) for kind, worst in self.worst_ms.items()}

    @property
    def cells(self) -> str:
        """Longest wait, memory and refused requests for the table of both brokers."""
        if not self.runs:
            return " not measured |  |  |"
        wait = f"{max(self.worst_ms.values()):,.0f} ms" + (f"; {self.note}" if self.note else "")
        return f" {wait} | {self.peak_mb:,.0f} MB | {self.refused} |"


def print_table(rows: Mapping[str, Row]) -> None:
    print(f"| {'attack':26} | runs |" + "".join(f" {kind:>9} |" for kind in KINDS) + " peak MB | refused |")
    print("|---|" + "--:|" * (len(KINDS) + 3))
    for name, row in rows.items():
        if row.runs:
            times = "".join(f" {row.worst_ms[kind]:9.0f} |" for kind in KINDS)
            print(f"| {name:26} | {row.runs:4} |{times} {row.peak_mb:7.0f} | {row.refused:7} | {row.note}")
    worst_ms = max(max(row.worst_ms.values()) for row in rows.values())
    print(f"worst {worst_ms:.0f} ms, peak {max(row.peak_mb for row in rows.values()):.0f} MB", flush=True)


def write_attacks(path: Path, embedded: Mapping[str, Row], kafka: Mapping[str, Row], *, keeps_others: bool) -> None:
    """Replaces the table of attacks with what was measured, which may be a part of them; nothing: it stays.

    Args:
        keeps_others: the rows of attacks that were not measured stay, and the columns of a broker without a run.
    """
    text = path.read_text()
    known = _rows(_parts(text, ATTACKS_TABLE)[1]) if keeps_others else {}
    nothing = Row()
    for name, row in embedded.items():
        if row.runs:
            measured = kafka.get(name, nothing)
            cells = measured.cells if measured.runs else _last_cells(known.get(_LABELS[name])) or nothing.cells
            known[_LABELS[name]] = f"| {_LABELS[name]} |{row.cells}{cells}"
    rows = [known[label] for label in _LABELS.values() if label in known]
    not_measured = [_LABELS[name] for name, row in embedded.items() if _LABELS[name] not in known]
    ending = f"\n\nNot measured: {'; '.join(not_measured)}." if not_measured else ""
    if any(row.runs for row in embedded.values()):
        table = "\n".join([_ATTACKS_HEADER, *rows])
        path.write_text(_replaced(text, ATTACKS_TABLE, f"{table}{ending}"))


def _last_cells(line: str | None) -> str:
    """The cells of a real Kafka in a row of the table of attacks; empty without a row."""
    return "" if line is None else "|".join(["", *line.split("|")[5:]])[1:]


def _rows(table: str) -> dict[str, str]:
    """The rows of a table by their first cell."""
    return {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("|")}


def write_bounds(path: Path, costs: Iterable[BoundCost], order: Sequence[str]) -> None:
    """Replaces the rows of the bounds that were measured; `order`: the descriptions of all bounds."""
    text = path.read_text()
    rows = _rows(_parts(text, BOUNDS_TABLE)[1])
    rows |= {cost.description: cost.row for cost in costs}
    table = "\n".join([_BOUNDS_HEADER, *(rows[each] for each in order if each in rows)])
    path.write_text(_replaced(text, BOUNDS_TABLE, table))


def _replaced(text: str, name: str, table: str) -> str:
    """The page with another table between its comments."""
    before, _, after = _parts(text, name)
    return f"{before}\n{table}\n\n{after}"


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """The page until after the first comment of a table, the table, and the page from the second comment."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = text.partition(begin)
    table, found_end, after = rest.partition(end)
    assert found and found_end, f"The page has no table between the comments of {name!r}."
    return before + begin, table, end + after
