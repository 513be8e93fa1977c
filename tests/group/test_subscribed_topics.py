"""Topics of the subscriptions of a group's members."""

from __future__ import annotations

import struct
import time

import pytest
from support.group_context import GroupContext

from spark_groupsource.broker.group import subscribed_topics as module
from spark_groupsource.broker.group.subscribed_topics import subscribed_topics
from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.model import Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import encode_subscription
from spark_groupsource.wire.group_events import EventKind

_STEP_S = 0.08


def _names(count: int, version: int = 0) -> bytes:
    """A subscription of topics with names of one byte."""
    return struct.pack(">hi", version, count) + b"\0\1t" * count + struct.pack(">i", -1)


def _members(topics: tuple[str, ...], count: int) -> list[bytes]:
    owned = [tuple(TopicPartition("one", index) for index in range(number)) for number in range(count)]
    return [encode_subscription(Subscription(topics, owned_partitions=each, user_data=b"u")) for each in owned]


def test_the_topics_of_all_members_are_known():
    subscriptions = _members(("one", "two"), 30) + _members(("three",), 30) + _members((), 1)
    assert subscribed_topics(subscriptions) == {"one", "two", "three"}
    assert subscribed_topics([]) == frozenset()


def test_a_list_of_topics_is_decoded_once(monkeypatch):
    decoded = []
    # private: the number of lists that are decoded
    plain = module._plain_topics
    monkeypatch.setattr(module, "_plain_topics", lambda data: decoded.append(data) or plain(data))
    assert subscribed_topics(_members(("one", "two"), 50)) == {"one", "two"}
    assert len(decoded) == 1


def test_too_many_topics_or_lists_are_unknown():
    assert subscribed_topics([_names(15_000)]) == {"t"}
    assert subscribed_topics([_names(20_000)]) is None
    lists = [encode_subscription(Subscription((f"topic-{number}",))) for number in range(5_000)]
    assert subscribed_topics(lists[:2_000]) == {f"topic-{number}" for number in range(2_000)}
    assert subscribed_topics(lists) is None


@pytest.mark.parametrize("wrong", [b"", b"\0\0", b"\xff\xff" + _names(1)[2:], _names(3)[:-6], _names(1)[:-4]])
def test_an_invalid_subscription_is_an_error(wrong):
    with pytest.raises(RemoteProtocolError):
        subscribed_topics([_names(1), wrong])
    with pytest.raises(RemoteProtocolError):
        subscribed_topics([wrong, _names(1)])


def _longest_step(steps) -> float:
    longest = 0.0
    for step in steps:
        began = time.thread_time()
        step()
        longest = max(longest, time.thread_time() - began)
    return longest


def test_members_with_thousands_of_topics_and_partitions_take_a_few_milliseconds():
    context = GroupContext()
    topics = [_names(300_000), _names(299_999)]
    partition = struct.pack(">hii", 1, 0, -1) + struct.pack(">i", 1) + b"\0\1t"
    owned = [partition + struct.pack(f">i{count}i", count, *range(count)) for count in (100_000, 99_999)]
    assignments = {
        0: struct.pack(">hi", 0, 36_000) + b"\0\1t\0\0\0\0" * 36_000 + struct.pack(">i", -1),
        1: struct.pack(">hi", 0, 1) + b"\0\1t" + struct.pack(">i100000i", 100_000, *range(100_000)) + b"\xff" * 4,
    }
    (member,) = context.stable(protocols=[("range", topics[0])])

    def join(metadata: bytes) -> None:
        context.join(member.member_id, protocols=[("range", metadata)])

    def sync(assignment: bytes) -> None:
        context.sync(member.member_id, context.group().generation_id, {member.member_id: assignment})

    steps = [lambda data=data: join(data) for data in (topics[1], topics[0], *owned)]
    for assignment in assignments.values():
        steps += [lambda data=assignment: sync(data), *[lambda data=data: join(data) for data in owned]]
    assert _longest_step(steps) < _STEP_S
    assert [event.generation for event in context.events if event.kind is EventKind.ASSIGNED][-1] >= 6
