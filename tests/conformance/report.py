"""Which behaviours of Kafka's own group tests are shown here: gathers markers of tests, writes docs/conformance.md.

    python tests/conformance/report.py          writes the document
    python tests/conformance/report.py --check  writes nothing; exit status 1 names what is wrong

A test says what it shows: ``@pytest.mark.conformance("GC-033")``. Beside this file stand `checklist.tsv`, every line
there is, and `not_applicable.tsv`, the lines about something this package does not have, each with the reason.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Collection, Mapping, NamedTuple, Sequence

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
DOCUMENT = TESTS.parent / "docs" / "conformance.md"

CLASSES: Mapping[str, str] = {
    "GC": "GroupCoordinatorTest: the older coordinator, request by request",
    "JM": "GroupMetadataManagerTest (Java): the newer coordinator, classic groups",
    "OM": "OffsetMetadataManagerTest: committed offsets",
    "CC": "ConsumerCoordinatorTest: the consumer's half",
    "AC": "AbstractCoordinatorTest: the member's half",
    "SM": "GroupMetadataManagerTest (Scala): group records, loading, expiry",
    "ST": "GroupMetadataTest and ClassicGroupTest: the state of a group",
    "MB": "MemberMetadataTest and ClassicGroupMemberTest: one member on the coordinator",
    "HB": "HeartbeatTest: the member's timers",
    "CP": "ConsumerProtocolTest: subscription and assignment bytes",
    "MI": "Small classes: concurrency, expiry condition, offset values",
}
_INTRODUCTION = """\
# Conformance

Apache Kafka's own tests of the classic group protocol, each case as one line, and which of our tests shows the same
behaviour. Written by `make conformance` from the tests' `conformance` markers; do not edit. `make test` fails where a
line has neither a test nor a reason, and where this page is out of date.

*Not applicable* is a line about something this package does not have, or does otherwise on purpose; the reason says
what stands in its place. *[S]* and *[J]* mark what only Kafka's older (Scala) or newer (Java) coordinator does,
*[KIP-848]* what touches the newer protocol; *= GC-033* means the same rule as in that line. The cases are those of
Kafka's commit `1eb7644`.
"""


class Line(NamedTuple):
    """One behaviour: its number, Kafka's name of the test case, what it proves."""

    id: str
    kafka_test: str
    behaviour: str


class Collector:
    """pytest plugin: line -> tests that carry it, as ``group/test_join.py::test_name``."""

    def __init__(self) -> None:
        self.shown: dict[str, set[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.get_closest_marker("skip") is not None:
                continue
            name = f"{item.path.relative_to(TESTS).as_posix()}::{getattr(item, 'originalname', None) or item.name}"
            for marker in item.iter_markers("conformance"):
                for line_id in marker.args:
                    self.shown.setdefault(line_id, set()).add(name)


def collect() -> Mapping[str, Collection[str]]:
    """Line -> the tests that show it, by collecting every test without running any."""
    collector, output = Collector(), io.StringIO()
    with redirect_stdout(output):
        status = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", str(TESTS)], plugins=[collector])
    if status != pytest.ExitCode.OK:
        told = output.getvalue()
        sys.exit(f"the tests cannot be collected:\n{told[max(told.find('= ERRORS ='), 0):]}")
    return collector.shown


def read_checklist() -> list[Line]:
    """Every line, in the order of the list."""
    rows = (HERE / "checklist.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [Line(*row.split("\t")) for row in rows]


def read_not_applicable() -> dict[str, str]:
    """Line -> why it does not apply; a row holds the lines of one reason."""
    reasons: dict[str, str] = {}
    for row in (HERE / "not_applicable.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        ids, reason = row.split("\t")
        reasons.update(dict.fromkeys(ids.split(), reason))
    return reasons


def problems(
    checklist: Sequence[Line], shown: Mapping[str, Collection[str]], not_applicable: Mapping[str, str]
) -> list[str]:
    """What is wrong with the accounts, one sentence each; none when every line is accounted for exactly once."""
    known = {line.id for line in checklist}
    found = [
        f"{line_id} is no line of the checklist, but marks {', '.join(sorted(tests))}"
        for line_id, tests in sorted(shown.items())
        if line_id not in known
    ]
    found += [f"{line_id} is no line of the checklist" for line_id in sorted(not_applicable.keys() - known)]
    for line_id in sorted(known):
        if line_id not in shown and line_id not in not_applicable:
            found.append(f"{line_id} has neither a test that shows it nor a reason why it does not apply")
        elif line_id in shown and line_id in not_applicable:
            found.append(f"{line_id} is shown by a test: it cannot be not applicable")
    return found


def render(
    checklist: Sequence[Line], shown: Mapping[str, Collection[str]], not_applicable: Mapping[str, str]
) -> str:
    """The document."""
    parts = [_INTRODUCTION, "| | class of Kafka | lines | shown | not applicable |", "|---|---|--:|--:|--:|"]
    counted = [(key, title, [line for line in checklist if line.id.startswith(key)]) for key, title in CLASSES.items()]
    for key, title, lines in [*counted, ("", "all", list(checklist))]:
        accounts = [sum(line.id in account for line in lines) for account in (shown, not_applicable)]
        parts.append("| " + " | ".join([key, title, str(len(lines)), *map(str, accounts)]) + " |")
    for key, title, lines in counted:
        parts += ["", f"## {key}. {title}", "", "| line | behaviour | shown by |", "|---|---|---|"]
        for line in lines:
            if line.id in shown:
                proof = "<br>".join(_link(test) for test in sorted(shown[line.id]))
            elif line.id in not_applicable:
                proof = f"*not applicable*: {not_applicable[line.id]}"
            else:
                proof = "**nothing**"
            parts.append(f"| {line.id} | `{line.kafka_test}`: {line.behaviour} | {proof} |")
    return "\n".join(parts) + "\n"


def _link(test: str) -> str:
    path, name = test.split("::")
    return f"[{name}](../tests/{path})"


def main() -> None:
    checking = sys.argv[1:] == ["--check"]
    checklist, shown, not_applicable = read_checklist(), collect(), read_not_applicable()
    found = problems(checklist, shown, not_applicable)
    document = render(checklist, shown, not_applicable)
    if checking and (not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != document):
        found.append(f"docs/{DOCUMENT.name} is out of date: run `make conformance`")
    if not checking:
        DOCUMENT.write_text(document, encoding="utf-8")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
