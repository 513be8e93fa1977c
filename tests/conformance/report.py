"""Conformance report: maps Kafka's own tests to tests of this project.

    python tests/conformance/report.py          writes build/conformance.md and its summary, docs/conformance.md
    python tests/conformance/report.py --check  writes nothing; exits with status 1 and lists the problems

A test names the lines it shows: ``@pytest.mark.conformance("GC-033")``. In this directory, `checklist/` has every
line, `not_applicable/` the lines about something this package does not have, each with the reason, and
`partly_applicable/` the lines of which a test shows only a part, with the reason for the rest. Each of these
directories has one file per area, such as `groups.tsv`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(TESTS)]

from support.assertions import Assertions  # noqa: E402

SUMMARY = TESTS.parent / "docs" / "conformance.md"
DOCUMENT = TESTS.parent / "build" / "conformance.md"

CLASSES: Mapping[str, str] = {
    "GC": "GroupCoordinatorTest: the older coordinator, request by request",
    "JM": "GroupMetadataManagerTest (Java): the newer coordinator, classic groups",
    "OM": "OffsetMetadataManagerTest: committed offsets",
    "CC": "ConsumerCoordinatorTest: the consumer",
    "AC": "AbstractCoordinatorTest: the member",
    "SM": "GroupMetadataManagerTest (Scala): group records, loading, expiry",
    "ST": "GroupMetadataTest and ClassicGroupTest: group state",
    "MB": "MemberMetadataTest and ClassicGroupMemberTest: one member on the coordinator",
    "HB": "HeartbeatTest: the member's timers",
    "CP": "ConsumerProtocolTest: subscription and assignment bytes",
    "MI": "Small classes: concurrency, expiry condition, offset values",
    "TC": "TransactionCoordinatorTest: the transaction coordinator, request by request",
    "TS": "TransactionStateManagerTest: transaction records, loading, expiry",
    "LV": "LogValidatorTest: validation of produced record batches",
    "PS": "ProducerStateManagerTest: producer ids, epochs, sequences, open transactions",
    "UL": "UnifiedLogTest: the log of a partition",
    "LL": "LogLoaderTest: recovery of a log",
    "LC": "LogCleanerTest: compaction",
    "FS": "FetchSessionTest: fetch sessions",
    "FT": "FetcherTest: the consumer's fetcher",
    "OF": "OffsetFetcherTest: position resets, time lookups, leader epochs",
    "KC": "KafkaConsumerTest: the consumer as a whole",
}
_SUMMARY = """\
# Conformance

What Apache Kafka's own tests say of the parts that this project implements, one line per test case of Kafka's commit
`1eb7644`, is in the tables of [tests/conformance](../tests/conformance). A test of this project names the lines it
shows (`@pytest.mark.conformance("GC-033")`). A test fails if a line has neither a test nor a reason, if a marked test
asserts nothing, and if this page is out of date. `make conformance` writes the counts below, and every line with its
tests or its reason into `build/conformance.md`.

*Not applicable* are lines about something this package does not have or deliberately does differently.
"""
_INTRODUCTION = """\
# Conformance, line by line

*Not applicable* is a line about something this package does not have or deliberately does differently; the reason is
given. *In part* names what of a line the tests do not show, and why. *[S]* and *[J]* mark behavior of Kafka's older
(Scala) or newer (Java) coordinator only, *[KIP-848]* behavior related to the newer protocol; *= GC-033* means the same
rule as in that line. The cases are those of Kafka's commit `1eb7644`.
"""


class Line(NamedTuple):
    """One line of the checklist: its number, the name of Kafka's test case, the behavior it shows."""

    id: str
    kafka_test: str
    behavior: str


def collect(root: Path, files: Iterable[Path], assertions: Assertions) -> dict[str, set[str]]:
    """Returns checklist line -> the tests below `root` that show it, as ``group/test_join.py::test_name``."""
    shown: dict[str, set[str]] = {}
    for path in files:
        module = assertions.module(path)
        for name, ids in module.marked("conformance"):
            if module.is_collected(name):
                for line_id in ids:
                    shown.setdefault(line_id, set()).add(f"{path.relative_to(root).as_posix()}::{name}")
    return shown


def read_checklist() -> list[Line]:
    """Returns every line, in the order of the files."""
    return [Line(*row) for row in _rows("checklist")]


def read_reasons(directory: str) -> dict[str, str]:
    """Returns checklist line -> reason, from tables whose rows have the lines that share a reason."""
    reasons: dict[str, str] = {}
    for ids, reason in _rows(directory):
        reasons.update(dict.fromkeys(ids.split(), reason))
    return reasons


def _rows(directory: str) -> Iterator[list[str]]:
    for path in sorted((HERE / directory).glob("*.tsv")):
        for row in path.read_text(encoding="utf-8").splitlines()[1:]:
            yield row.split("\t")


def problems(
    checklist: Sequence[Line],
    shown: Mapping[str, Collection[str]],
    not_applicable: Mapping[str, str],
    partly_applicable: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns one sentence per problem; empty if every line has either tests or a reason why it does not apply."""
    known = {line.id for line in checklist}
    found = [
        f"{line_id} is not a line of the checklist, but marks {', '.join(sorted(tests))}."
        for line_id, tests in sorted(shown.items())
        if line_id not in known
    ]
    partly = partly_applicable or {}
    found += [
        f"{line_id} is not a line of the checklist." for line_id in sorted((not_applicable | partly).keys() - known)
    ]
    for line_id in sorted(known):
        if line_id not in shown and line_id not in not_applicable:
            found.append(f"{line_id} has neither a test that shows it nor a reason why it does not apply.")
        elif line_id in shown and line_id in not_applicable:
            found.append(f"{line_id} is shown by a test and therefore cannot be not applicable.")
        if line_id in partly and line_id not in shown:
            found.append(f"{line_id} is listed as partly applicable, but no test shows it.")
    return found


def marker_problems(root: Path, files: Iterable[Path], assertions: Assertions) -> list[str]:
    """Returns one sentence per marked function that pytest does not collect or that asserts nothing.

    Args:
        root: the directory that the names of the tests are relative to.
        files: the test files.
        assertions: assertions of the files below `root`.
    """
    found = []
    for path in files:
        module, relative = assertions.module(path), path.relative_to(root).as_posix()
        for name, _ in module.marked("conformance"):
            test = f"{relative}::{name}"
            if not module.is_collected(name):
                found.append(f"{test} has a conformance marker, but pytest does not collect it.")
            elif len(module.functions.get(name, ())) > 1:
                found.append(f"{test} is defined more than once; only the last definition is a test.")
            elif not assertions.has_assertion(path, name):
                found.append(f"{test} has a conformance marker, but asserts nothing.")
    return found


def render_summary(checklist: Sequence[Line], shown: Collection[str], not_applicable: Collection[str]) -> str:
    """Returns the page with the counts of each class; `shown` and `not_applicable` have numbers of lines."""
    parts = [_SUMMARY, "| | class of Kafka | lines | shown | not applicable |", "|---|---|--:|--:|--:|"]
    for key, title, lines in [*_by_class(checklist), ("", "all", list(checklist))]:
        counts = [sum(line.id in account for line in lines) for account in (shown, not_applicable)]
        parts.append("| " + " | ".join([key, title, str(len(lines)), *map(str, counts)]) + " |")
    return "\n".join(parts) + "\n"


def render(
    checklist: Sequence[Line],
    shown: Mapping[str, Collection[str]],
    not_applicable: Mapping[str, str],
    partly_applicable: Mapping[str, str] | None = None,
) -> str:
    """Returns the page with every line."""
    parts = [_INTRODUCTION]
    partly = partly_applicable or {}
    for key, title, lines in _by_class(checklist):
        parts += [f"## {key}. {title}", "", "| line | behavior | shown by |", "|---|---|---|"]
        for line in lines:
            if line.id in shown:
                proof = "<br>".join(_link(test) for test in sorted(shown[line.id]))
                if line.id in partly:
                    proof += f"<br>*in part*: {partly[line.id]}"
            elif line.id in not_applicable:
                proof = f"*not applicable*: {not_applicable[line.id]}"
            else:
                proof = "**nothing**"
            parts.append(f"| {line.id} | `{line.kafka_test}`: {line.behavior} | {proof} |")
        parts.append("")
    return "\n".join(parts)


def _by_class(checklist: Sequence[Line]) -> list[tuple[str, str, list[Line]]]:
    by_class = [(key, title, [line for line in checklist if line.id.startswith(key)]) for key, title in CLASSES.items()]
    return [entry for entry in by_class if entry[2]]


def _link(test: str) -> str:
    path, name = test.split("::")
    return f"[{name}](../tests/{path})"


def main() -> None:
    is_check = sys.argv[1:] == ["--check"]
    # a file without the word has no marker and need not be parsed
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if ".conformance(" in path.read_text(encoding="utf-8")]
    assertions = Assertions([TESTS])
    checklist, shown = read_checklist(), collect(TESTS, files, assertions)
    not_applicable, partly = read_reasons("not_applicable"), read_reasons("partly_applicable")
    found = problems(checklist, shown, not_applicable, partly) + marker_problems(TESTS, files, assertions)
    summary = render_summary(checklist, shown, not_applicable)
    if is_check and (not SUMMARY.exists() or SUMMARY.read_text(encoding="utf-8") != summary):
        found.append(f"docs/{SUMMARY.name} is out of date. Run `make conformance`.")
    if not is_check:
        SUMMARY.write_text(summary, encoding="utf-8")
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(render(checklist, shown, not_applicable, partly), encoding="utf-8")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
