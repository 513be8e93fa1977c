"""Schedules of the simulation as data: drawn from a seed, written as text, shortened.

An event is a tuple ``(at_ms, kind, *arguments)`` of numbers and words. It means something whatever came before it, so
a schedule with any of its events taken out is a schedule. Kinds, with their arguments:

    config N                    group.max.size
    start mN GROUP MAKE TOPICS INSTANCE PROTOCOLS VERSION
                                a client begins, in place of the one of its name; MAKE is ours or foreign, INSTANCE -
                                where it is dynamic, VERSION that of its JoinGroup
    leave mN, kill mN           it ends properly, or is gone
    pause mN MS                 it pauses, then continues
    cut mN MS                   nothing gets through between it and the broker
    topics mN TOPICS            it changes its subscription, unless it is static
    lose-request mN, lose-answer mN, slow-request mN MS, slow-answer mN MS
                                of the next request it sends
    repeat mN MS                the next request arrives twice; the client listens to the second answer
    stale mN                    it sends a commit and a heartbeat of the previous generation
    crash MS keep|drop          the broker is gone, and loads for so long; what was not yet acknowledged is in its log
    move MS                     another node takes over
    fail-appends MS ERROR, slow-appends MS DELAY
    txn-commit mN P, txn-simple G TOPIC P, txn-end P commit|abort
                                producer P commits offsets in a transaction, as that member or without one; its marker
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
    "lose-answer",
    "lose-answer",
    "slow-request",
    "slow-answer",
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
    """Schedule `number` of a seed, in order of time; each can be drawn without the others."""
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
    # a static member that returns with another subscription begins no round: that is Kafka's rule, and no liveness
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
    if kind in ("slow-request", "slow-answer", "repeat"):
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
    """One line for each event; `from_text` reads it back."""
    return "\n".join(" ".join(map(str, event)) for event in events)


def from_text(text: str) -> list[Event]:
    """The events of such lines; empty ones and those that begin with # are skipped.

    Raises: ValueError on a line that does not begin with a time.
    """
    events: list[Event] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not words[0].isdigit() or len(words) < 2:
            raise ValueError(f"not an event, which is a time in ms and a kind: {line!r}")
        events.append(tuple(int(word) if word.isdigit() else word for word in words))
    return events


def shorten(events: Schedule, fails: Callable[[Schedule], bool]) -> list[Event]:
    """A part of a failing schedule that fails too, and of which no single event can be taken out.

    Halves, quarters and so on are tried before single events (delta debugging).
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
