"""Schedules of the simulation: drawn from a seed, written as text, shortened.

An event is a tuple ``(at_ms, kind, *arguments)`` of numbers and words. Events do not depend on one another: a schedule
without some of its events is a valid schedule. Kinds and their arguments:

    config N                    sets group.max.size
    start mN GROUP MAKE TOPICS INSTANCE PROTOCOLS VERSION
                                starts a client and replaces the one of the same name; MAKE is ours or foreign,
                                INSTANCE is - for a dynamic member, VERSION is that of JoinGroup
    leave mN, kill mN           the client shuts down or crashes
    pause mN MS                 the client pauses
    cut mN MS                   network partition between the client and the broker
    topics mN TOPICS            the client changes its subscription, unless it is static
    lose-request mN, lose-response mN, slow-request mN MS, slow-response mN MS
                                fault of the client's next request
    repeat mN MS                the client's next request arrives twice; the client reads the second response
    stale mN                    the client sends a commit and a heartbeat of the previous generation
    crash MS keep|drop          the broker crashes and loads for MS; keep or drop unacknowledged records of the log
    move MS                     another node becomes the coordinator
    fail-appends MS ERROR, slow-appends MS DELAY
    txn-commit mN P, txn-simple G TOPIC P, txn-end P commit|abort
                                producer P commits offsets in a transaction as a member or without one; its marker
    delete-group G, delete-offsets G TOPIC, remove-instance G INSTANCE, simple-commit G TOPIC, look G, drop-topic TOPIC
    expire-offsets
"""

from __future__ import annotations

from random import Random
from typing import Callable, Iterable, Sequence

Event = tuple[object, ...]
Schedule = Sequence[Event]

HORIZON_MS = 2_000
_MAKES = {"a": ("ours", "foreign", "foreign"), "b": ("ours", "foreign"), "c": ("ours",)}
# only the selected protocol of a member is stored, so after a restart all members must support each one
_PROTOCOLS = ("range+sticky", "sticky+range")
_CLIENT_FAULTS = (
    "leave",
    "kill",
    "kill",
    "pause",
    "cut",
    "topics",
    "lose-request",
    "lose-response",
    "lose-response",
    "slow-request",
    "slow-response",
    "repeat",
    "repeat",
    "stale",
    "txn-commit",
    "txn-commit",
    "restart",
    "restart",
)
_BROKER_FAULTS = (
    "crash",
    "crash",
    "crash",
    "move",
    "fail-appends",
    "slow-appends",
    "slow-appends",
    "txn-simple",
    "txn-simple",
    "txn-end",
    "txn-end",
    "delete-group",
    "delete-offsets",
    "remove-instance",
    "simple-commit",
    "look",
    "drop-topic",
    "expire-offsets",
)
_PRODUCERS = (7, 8)
_APPEND_ERRORS = ("NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR", "MESSAGE_TOO_LARGE")


def draw(seed: int, number: int) -> list[Event]:
    """Returns schedule `number` of a seed, ordered by time."""
    rng = Random(f"{seed}/{number}")
    events: list[Event] = []
    if rng.random() < 0.15:
        events.append((0, "config", rng.randint(1, 3)))
    clients = {f"m{at}": _client(rng) for at in range(rng.choice((1, 2, 2, 3, 3, 4, 5)))}
    for name, what in clients.items():
        at = rng.randrange(120) if rng.random() < 0.6 else rng.randrange(HORIZON_MS)
        events.append((at, "start", name, *what))
    for _ in range(rng.randint(2, 14)):
        at = rng.randrange(HORIZON_MS)
        if rng.random() < 0.55:
            events.append((at, *_client_fault(rng, clients)))
        else:
            events.append((at, *_broker_fault(rng)))
    events.sort(key=lambda event: event[0])  # type: ignore[arg-type,return-value]
    return events


def _client(rng: Random) -> Event:
    group = rng.choice("aaabcc")
    make = rng.choice(_MAKES[group])
    instance = rng.choice(("i0", "i1")) if rng.random() < 0.3 else "-"
    # as in Kafka, a static member that returns with another subscription does not cause a rebalance
    topics = {"i0": "x", "i1": "xy"}.get(instance) or rng.choice(("x", "x", "xy", "y"))
    protocols = "cooperative-sticky" if group == "c" else rng.choice(_PROTOCOLS)
    version = 9 if make == "ours" else rng.randint(5 if instance != "-" else 0, 9)
    return (group, make, topics, instance, protocols, version)


def _client_fault(rng: Random, clients: dict[str, Event]) -> Event:
    kind, name = rng.choice(_CLIENT_FAULTS), rng.choice(sorted(clients))
    if kind == "restart":
        return ("start", name, *clients[name])
    if kind in ("pause", "cut"):
        return (kind, name, rng.choice((50, 300, 700, 1_000)))
    if kind == "topics":
        return (kind, name, rng.choice(("x", "y", "xy")))
    if kind == "txn-commit":
        return (kind, name, rng.choice(_PRODUCERS))
    if kind in ("slow-request", "slow-response", "repeat"):
        return (kind, name, rng.choice((5, 30, 150, 500, 900)))
    return (kind, name)


def _broker_fault(rng: Random) -> Event:
    kind, group = rng.choice(_BROKER_FAULTS), rng.choice("aabc")
    if kind == "crash":
        return (kind, rng.choice((1, 1, 60, 300)), rng.choice(("keep", "drop")))
    if kind == "move":
        return (kind, rng.choice((1, 60)))
    if kind == "fail-appends":
        return (kind, rng.choice((20, 150, 600)), rng.choice(_APPEND_ERRORS))
    if kind == "slow-appends":
        return (kind, rng.choice((100, 600, 1_500)), rng.choice((3, 40, 200)))
    if kind == "txn-simple":
        return (kind, group, rng.choice("xy"), rng.choice(_PRODUCERS))
    if kind == "txn-end":
        return (kind, rng.choice(_PRODUCERS), rng.choice(("commit", "commit", "abort")))
    if kind in ("delete-offsets", "simple-commit"):
        return (kind, group, rng.choice("xy"))
    if kind == "remove-instance":
        return (kind, group, rng.choice(("i0", "i1")))
    if kind == "drop-topic":
        return (kind, rng.choice("xy"))
    return (kind,) if kind == "expire-offsets" else (kind, group)


def to_text(events: Iterable[Event]) -> str:
    """Returns one line per event; the inverse of `from_text`."""
    return "\n".join(" ".join(map(str, event)) for event in events)


def from_text(text: str) -> list[Event]:
    """Parses the lines of `to_text`; skips empty lines and lines that start with #.

    Raises: ValueError for a line that does not start with a time.
    """
    events: list[Event] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not words[0].isdigit() or len(words) < 2:
            raise ValueError(f"An event must start with a time in ms and a kind, got {line!r}.")
        events.append(tuple(int(word) if word.isdigit() else word for word in words))
    return events


def shorten(events: Schedule, fails: Callable[[Schedule], bool]) -> list[Event]:
    """Returns a minimal failing part of a failing schedule: without any of its events it does not fail.

    Removes halves, quarters and so on before single events (delta debugging).
    """
    kept = list(events)
    size = max(len(kept) // 2, 1)
    while True:
        at, shortened = 0, False
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept, shortened = fewer, True
            else:
                at += size
        if size > 1:
            size //= 2
        elif not shortened:
            return kept
