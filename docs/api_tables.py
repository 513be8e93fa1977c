"""Content of the generated page of served APIs, `apis.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_groupsource.broker.api.versions import FEATURES, NOT_SERVED, SERVED
from spark_groupsource.wire.apis import APIS


def apis_page() -> str:
    """The page as Markdown."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield from (
        "<!-- Written by docs/generate.py from spark_groupsource/broker/api/versions.py. Do not edit. -->",
        "# APIs of the embedded broker",
        "",
        "ApiVersions advertises these APIs and versions. Clients decide by them, old ones also by the lowest version.",
        "A test compares the table with that of Apache Kafka 4.3; a row without a note is the same there.",
        "",
    )
    yield from _table(
        ["Key", "API", "Served", "Advertised", "Difference from Kafka 4.3"],
        (
            [str(int(key)), APIS[key].name, _range(api.min_version, api.max_version), _range(*api.advertised), api.note]
            for key, api in sorted(SERVED.items())
        ),
    )
    yield from (
        "## Not served",
        "",
        "APIs that a broker of Kafka 4.3 advertises in addition:",
        "",
    )
    reasons: dict[str, list[str]] = {}
    for number, reason in NOT_SERVED.items():
        reasons.setdefault(reason, []).append(str(number))
    yield from _table(["Keys", "Reason"], ([", ".join(keys), reason] for reason, keys in reasons.items()))
    yield from (
        "## Features",
        "",
        "The highest supported version is the finalized one; version 0 is the absence of a feature. Features of the",
        "metadata log (`metadata.version`, `kraft.version`, `eligible.leader.replicas.version`), of share groups and",
        "of Streams groups are not named, because this broker has none of them.",
        "",
    )
    yield from _table(
        ["Feature", "Supported", "Difference from Kafka 4.3"],
        (
            [f"`{name}`", _range(feature.min_version, feature.max_version), feature.note]
            for name, feature in FEATURES.items()
        ),
    )


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""
