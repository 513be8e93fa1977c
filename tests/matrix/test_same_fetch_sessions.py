"""Fetch sessions (KIP-227) of the embedded broker and Kafka, compared.

Both get the same request sequences. A difference is a defect of the embedded broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from support.compared_brokers import ComparedBroker, differences, normalize, whole_batches
from support.request_cases import admin as admin_cases
from support.request_cases import data as data_cases
from support.waiting import wait_until

from spark_groupsource.records.header import iter_batches

pytestmark = pytest.mark.kafka

UNKNOWN_TOPIC_OR_PARTITION = 3
Pair = tuple[ComparedBroker, ComparedBroker]
Part = tuple[str, int, int]


class Reader:
    """A client that fetches with a session and records the responses."""

    def __init__(self, broker: ComparedBroker, version: int) -> None:
        self.broker = broker
        self.version = version
        self.session_id, self.epoch = 0, 0
        self.returned: dict[str, Any] = {}

    def fetch(self, label: str, *parts: Part, **options: Any) -> Any:
        """Sends the next fetch of the session, or the first one of a new session."""
        request = data_cases.fetch(*parts, session=(self.session_id, self.epoch), **options)(self.broker)
        return self.note(label, self.broker.exchange(request, self.version))

    def full(self, label: str, *parts: Part, epoch: int = 0) -> Any:
        """Sends a full fetch, which closes the session; with epoch 0 it creates another."""
        self.epoch = epoch
        return self.fetch(label, *parts)

    def note(self, label: str, response: Any) -> Any:
        """Records a response: its session, the order of its partitions, and every field."""
        session = "none" if response.session_id == 0 else "mine" if response.session_id == self.session_id else "new"
        if response.error_code == 0:
            self.session_id = response.session_id
            self.epoch = self.epoch + 1 if response.session_id else 0
        order = [
            (topic.topic or self.broker.name_of(topic.topic_id), each.partition_index, each.error_code, _offsets(each))
            for topic in response.responses
            for each in topic.partitions
        ]
        assert label not in self.returned
        self.returned[label] = {"session": session, "order": order, "response": normalize(self.broker, response)}
        return response


def _offsets(entry: Any) -> list[int]:
    """The base offset of each complete batch; Kafka may return a truncated last one."""
    return [header.base_offset for header in iter_batches(whole_batches(bytes(entry.records or b"")))]


def produce(reader: Reader, *parts: tuple[str, int]) -> None:
    for short, number in parts:
        data = data_cases.produce((short, number, data_cases.batch(b"value")))(reader.broker)
        (topic,) = reader.broker.exchange(data, 9).responses
        assert topic.partition_responses[0].error_code == 0, topic


def make(reader: Reader, short: str, partitions: int = 2) -> None:
    broker = reader.broker
    (made,) = broker.exchange(admin_cases.create(short, partitions=partitions)(broker), 7).topics
    assert made.error_code == 0, made
    for number in range(partitions):
        settled(reader, short, number, 0)


def settled(reader: Reader, short: str, number: int, code: int) -> None:
    """Waits until a fetch without session returns `code` for a created or deleted topic."""
    broker = reader.broker

    def found() -> bool:
        broker.forget(short)
        (topic,) = broker.exchange(data_cases.fetch((short, number, 0))(broker), 12).responses
        return bool(topic.partitions[0].error_code == code)

    wait_until(found, f"{short}-{number} returns {code}")


def growth(reader: Reader) -> None:
    """Each kind of change is in one response."""
    for short in "ab":
        make(reader, short)
    produce(reader, ("a", 0), ("a", 1), ("b", 0))
    reader.fetch("a full one", ("a", 0, 0), ("a", 1, 0), ("b", 0, 0))
    reader.fetch("the same again: there are records")
    reader.fetch("all are read", ("a", 0, 1), ("a", 1, 1), ("b", 0, 1))
    reader.fetch("nothing is new")
    produce(reader, ("a", 1))
    reader.fetch("one record")
    reader.fetch("it is read", ("a", 1, 2))
    reader.fetch("nothing is new again")
    reader.fetch("one more partition", ("b", 1, 0))
    reader.fetch("which is empty")
    reader.broker.exchange(data_cases.delete_records(("a", 1, 2))(reader.broker), 2)
    reader.fetch("a log start moved")
    reader.fetch("which was returned")
    reader.fetch("after the log end offset", ("b", 0, 7))
    reader.fetch("an error is returned again")
    reader.fetch("at the end", ("b", 0, 1))
    reader.fetch("and no longer")
    reader.fetch("a higher epoch", ("b", 0, 1), epoch=9)
    reader.fetch("the right one", ("b", 0, 1), epoch=0)
    reader.fetch("nothing in 20 ms", wait_ms=20)
    produce(reader, ("a", 0))
    reader.fetch("no bytes allowed", ("a", 0, 1), part_bytes=0, max_bytes=0)
    reader.fetch("committed only", isolation_level=1)


def turns(reader: Reader) -> None:
    """Returned partitions move to the end, so that a byte limit does not exclude the same partitions each time."""
    make(reader, "a", 3)
    parts = [("a", number) for number in range(3)]
    reader.fetch("empty", *((*part, 0) for part in parts))
    produce(reader, *parts, *parts)
    for turn in range(5):
        reader.fetch(f"turn {turn}", max_bytes=1)
    reader.fetch("two at a time", max_bytes=150)
    reader.fetch("named again", ("a", 1, 1), max_bytes=1)
    reader.fetch("and again", ("a", 0, 1), max_bytes=1)
    reader.fetch("all")
    reader.fetch("forgotten and named", forget=(("a", 0),))
    reader.fetch("now it is the last", ("a", 0, 0))
    reader.fetch("a partition twice", ("a", 2, 0), ("a", 2, 2))
    reader.full("a partition twice in a full one", ("a", 2, 0), ("a", 1, 0), ("a", 2, 1))
    reader.fetch("the next fetch")


def ends(reader: Reader) -> None:
    """Closed sessions, and requests without a session."""
    make(reader, "a")
    produce(reader, ("a", 0), ("a", 1))
    both = (("a", 0, 0), ("a", 1, 0))
    reader.full("no session is requested", *both, epoch=-1)
    reader.fetch("one begins", *both)
    first = reader.session_id, reader.epoch
    reader.epoch = 5
    reader.fetch("another epoch")
    reader.epoch = 0
    reader.fetch("another one begins", *both)
    second = reader.session_id, reader.epoch
    reader.session_id, reader.epoch = first
    reader.fetch("the first session is closed")
    reader.session_id, reader.epoch = second
    reader.fetch("the session continues", ("a", 0, 1))
    reader.fetch("one is forgotten", forget=(("a", 0), ("a", 7), ("gone", 0)))
    produce(reader, ("a", 0))
    reader.fetch("records of a removed partition")
    third = reader.session_id, reader.epoch
    reader.fetch("the last one is forgotten", forget=(("a", 1),))
    reader.session_id, reader.epoch = third[0], third[1] + 1
    reader.fetch("the session is closed")
    reader.session_id = reader.epoch = 0
    reader.fetch("one of a single partition", ("a", 0, 0))
    reader.fetch("named and forgotten", ("a", 0, 1), forget=(("a", 0),))
    reader.fetch("one more", *both)
    last = reader.session_id, reader.epoch
    reader.full("the client ends it", *both, epoch=-1)
    reader.session_id, reader.epoch = last
    reader.fetch("the closed session")
    reader.session_id, reader.epoch = 4711, 1
    reader.fetch("an unknown session")
    reader.session_id = reader.epoch = 0
    reader.fetch("of nothing")
    reader.fetch("of something", ("a", 1, 0))
    reader.epoch = -2
    reader.fetch("a negative epoch")


def topics(reader: Reader) -> None:
    """Topics that are unknown, deleted, or recreated."""
    make(reader, "a")
    old = reader.broker.id("a")
    produce(reader, ("a", 0))
    reader.fetch("one is there", ("a", 0, 1), ("gone", 0, 0), ("a", 9, 0))
    reader.fetch("it is returned each time")
    reader.fetch("it completes no delayed fetch", wait_ms=20)
    make(reader, "gone")
    reader.fetch("it exists by name, not by the unknown id")
    reader.fetch("its id is another", ("gone", 0, 0))
    reader.fetch("nothing new")
    broker = reader.broker
    broker.exchange(admin_cases.delete("a")(broker), 5)
    settled(reader, "a", 0, UNKNOWN_TOPIC_OR_PARTITION)
    reader.fetch("one is deleted")
    make(reader, "a")
    reader.fetch("the topic is recreated")
    reader.fetch("its error completes a delayed fetch", wait_ms=5_000)
    assert broker.id("a") != old
    reader.fetch("the new one", ("a", 0, 0))


def versions(reader: Reader) -> None:
    """A session uses either topic names or topic ids."""
    make(reader, "a")
    reader.fetch("one begins", ("a", 0, 0))
    own, reader.version = reader.version, 12 if reader.version >= 13 else 13
    reader.fetch("the other way", ("a", 1, 0))
    reader.version = own
    reader.fetch("its own way")


@pytest.fixture(scope="module")
def pair(embedded: Any, kafka: Any) -> Iterator[Pair]:
    with ComparedBroker(embedded.bootstrap_servers, "") as ours, ComparedBroker(kafka.bootstrap_servers, "") as theirs:
        yield ours, theirs


@pytest.fixture
def readers(pair: Pair) -> Iterator[Any]:
    def begin(version: int) -> list[Reader]:
        prefix = f"s{uuid4().hex[:8]}"
        for broker in pair:
            broker.prefix = prefix
            broker.forget_all()
        return [Reader(broker, version) for broker in pair]

    yield begin


@pytest.mark.parametrize("version", [7, 18])
@pytest.mark.parametrize("sequence", [growth, turns, ends, topics, versions])
@pytest.mark.conformance(
    "FS-006", "FS-007", "FS-008", "FS-009", "FS-010", "FS-011", "FS-012", "FS-014", "FS-015", "FS-020",
)  # fmt: skip
def test_session_responses_are_equal(readers: Any, sequence: Any, version: int) -> None:
    pair = readers(version)
    for reader in pair:
        sequence(reader)
    ours, theirs = (reader.returned for reader in pair)
    assert ours.keys() == theirs.keys()
    assert not (found := list(differences(ours, theirs))), "\n".join(found)
