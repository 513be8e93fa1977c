"""Content of the generated page of served APIs, `apis.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_groupsource.broker.api.served_versions import FEATURES, NOT_SERVED, SERVED
from spark_groupsource.wire.apis import APIS

# what Kafka does, what this broker does, why
_BEHAVIOR = (
    (
        "A JoinGroup or SyncGroup that is repeated while the first is pending: the first gets no response.",
        "The first gets REBALANCE_IN_PROGRESS.",
        "Every request gets a response; the client has sent another one and ignores it.",
    ),
    (
        "A SyncGroup that is pending when another client removes its member gets no response.",
        "It gets UNKNOWN_MEMBER_ID.",
        "Every request gets a response.",
    ),
    (
        "The first JoinGroup of a group that is rejected leaves an Empty group with a record.",
        "It leaves nothing.",
        "No group was created: ListGroups would show one that no client has joined.",
    ),
    (
        "An aborted transaction with the first offsets of a group leaves an Empty group until offsets expire.",
        "It leaves nothing.",
        "The same.",
    ),
    (
        "A member that names one protocol twice is counted twice, so no other member matches it.",
        "It is counted once.",
        "A duplicate is not a conflict.",
    ),
    (
        "ListOffsets by timestamp searches one segment, the first whose largest timestamp is not smaller. If its "
        "records at or after the log start offset are older, nothing is found.",
        "The search continues in later segments.",
        "The records exist: after DeleteRecords, a consumer that seeks by time would start at the end of the log.",
    ),
    (
        "A Fetch response with read_committed lists aborted transactions up to an estimated offset, so it may list "
        "some that begin after its records.",
        "It lists those that overlap the records.",
        "Consumers ignore the others; the list is part of the bounded size of a response.",
    ),
    (
        "A Fetch response may end within a batch.",
        "It ends with a whole batch.",
        "Clients drop the partial batch.",
    ),
    (
        "A transactional batch without a producer id is stored.",
        "It fails its partition with INVALID_RECORD.",
        "It belongs to no transaction, so no marker ever follows it.",
    ),
    (
        "An uncompressed batch whose records have other offset deltas than 0, 1, 2 and so on is stored.",
        "It fails its partition with INVALID_RECORD, as a compressed batch does.",
        "Two records would have one offset, or offsets would be missing.",
    ),
    (
        "A batch with an unknown magic fails the whole Produce request.",
        "It fails its partition.",
        "The other partitions of the request are valid.",
    ),
    (
        "The new leader of a partition is the first in-sync replica in the order of its assignment; "
        "preferred-leader election restores the first.",
        "The new leader is the next running node after the former one.",
        "Each node can lead each partition, so there is no assignment.",
    ),
    (
        "A partition has the requested number of replicas.",
        "Each node of the process is listed as one, in sync while it runs.",
        "The nodes share one data directory, and each of them can lead.",
    ),
    (
        "The response to EndTxn is sent before the markers are written; the next request may get "
        "CONCURRENT_TRANSACTIONS.",
        "It is sent after, unless the transaction has many partitions.",
        "All partitions of a transaction are in this broker.",
    ),
    (
        "Expired transactions are searched every 10 s.",
        "Each has a timer.",
        "A read_committed consumer waits no longer than the transaction timeout.",
    ),
    (
        "Fetch sessions are in eight shards with separate evictions; a session has any number of partitions.",
        "One shard; all sessions of a node have at most 50,000 partitions.",
        "One thread serves them; the memory that a client can use is bounded.",
    ),
    (
        "A request has any number of elements, a group any size, a topic any number of producers.",
        "Each has a limit, see [Security](security.md).",
        "One client cannot stop the others.",
    ),
)


def apis_page() -> str:
    """The page as Markdown."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield from (
        "# APIs of the embedded broker",
        "",
        "ApiVersions advertises these APIs and versions. Clients decide by them, old ones also by the lowest version.",
        "A test compares the table with that of Apache Kafka 4.4; a row without a note is the same there.",
        "",
    )
    yield from _table(
        ["Key", "API", "Served", "Advertised", "Difference from Kafka 4.4"],
        (
            [str(int(key)), APIS[key].name, _range(api.min_version, api.max_version), _range(*api.advertised), api.note]
            for key, api in sorted(SERVED.items())
        ),
    )
    yield from (
        "## Not served",
        "",
        "APIs that a broker of Kafka 4.4 advertises in addition:",
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
        ["Feature", "Supported", "Difference from Kafka 4.4"],
        (
            [f"`{name}`", _range(feature.min_version, feature.max_version), feature.note]
            for name, feature in FEATURES.items()
        ),
    )


    yield from (
        "## Behavior",
        "",
        "Kept on purpose. Everything else that differs is an error; tests compare the responses of both brokers.",
        "",
    )
    yield from _table(["Kafka 4.4", "Here", "Reason"], map(list, _BEHAVIOR))


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""
