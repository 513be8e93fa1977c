"""Tables of the accuracy of causes, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.caused_judgments import Judged, Observed, deviation_text, deviations, judge, unowned_shares

BEGIN, END = "<!-- begin of rebalance_causes.py -->", "<!-- end of rebalance_causes.py -->"
_BRIEF = "a member joins and leaves within one rebalance"
_MEMBERS = {
    "own": "groupsource, embedded broker",
    "own-kafka": "groupsource, Kafka",
    "mixed": "groupsource and others, Kafka",
    "foreign": "others, Kafka",
    "moves": "groupsource, three nodes of Kafka",
}


def write(path: Path, kept: Mapping[str, Sequence[Observed]]) -> None:
    """Replaces the tables of a page, between the two comments."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{tables(kept)}{END}{rest.partition(END)[2]}")


def tables(kept: Mapping[str, Sequence[Observed]]) -> str:
    """Returns the tables of configurations; the first word of each cell of results is the share of right causes."""
    judged = {name: judge(kept[name]) for name in _MEMBERS if name in kept}
    lines = ["| members | rebalances | all sources: causes, members right | history alone: causes, members right |"]
    lines += ["|---|---|---|---|"]
    for name, found in judged.items():
        merged, history = (_share([j for j in found if j.source == source]) for source in ("merged", "history"))
        lines.append(f"| {_MEMBERS[name]} | {sum(j.source == 'merged' for j in found)} | {merged} | {history} |")
    lines += ["", "| cause | " + " | ".join(_MEMBERS[name] for name in judged) + " |", "|---" * (len(judged) + 1) + "|"]
    for cause in sorted({_cause(j) for found in judged.values() for j in found}):
        cells = [_cell([j for j in found if _cause(j) == cause]) for found in judged.values()]
        lines.append(f"| {cause} | " + " | ".join(cells) + " |")
    lines += ["", "| time, beside the log of the coordinator | difference: median, 95 % |", "|---|---|"]
    both = [each for name in judged for each in kept[name]]
    lines += [f"| {name} | {deviation_text(values)} |" for name, values in sorted(deviations(both).items())]
    unowned = unowned_shares(both)
    if unowned is not None:
        lines.append(f"| partition-seconds without an owner | {unowned[0] / unowned[1] - 1:+.1%} of {unowned[1]:.0f} |")
    return "".join(f"{line}\n" for line in lines)


def _cause(judged: Judged) -> str:
    causes = [each.cause for each in judged.expected]
    is_brief = causes == ["JOINED", "LEFT"] and len({each.member_id for each in judged.expected}) == 1
    return _BRIEF if is_brief else judged.wanted.cause


def _share(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    right = [sum(j.is_cause_right for j in judged), sum(j.is_actor_right for j in judged)]
    return ", ".join(f"{number / len(judged):.1%}" for number in right)


def _cell(judged: Sequence[Judged]) -> str:
    merged, history = ([j for j in judged if j.source == source] for source in ("merged", "history"))
    if not merged:
        return ""
    texts = [f"{sum(j.is_cause_right for j in found)}" for found in (merged, history)]
    return f"{texts[0]} of {len(merged)} (history {texts[1]})"
