"""Bounds on memory, connections and elements, without a broker."""

from __future__ import annotations

import pytest
from attacks import attack_frames

from spark_groupsource.broker.network.limits import ConnectionCounts, RequestMemory, ResponseMemory
from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.decoder import TooManyElementsError
from spark_groupsource.wire.element_count import has_more_elements
from spark_groupsource.wire.frames import decode_request, read_request_header
from spark_groupsource.wire.messages import (
    DescribeGroupsResponse,
    HeartbeatResponse,
    MetadataRequest,
)

KB = 1024


class Peer:
    """A connection as the bounds see it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_activity_ms = 0
        self.waits_for_client = True
        self.unsent_bytes = 0
        self.announced_bytes = 1_000_000
        self.resumed = 0
        self.refused = ""

    def resume(self) -> None:
        self.resumed += 1

    def reject(self, reason: str) -> None:
        self.refused = reason

    def __repr__(self) -> str:
        return self.name


def test_connections_are_counted_in_total_and_by_address():
    counts = ConnectionCounts()
    assert [counts.add("a", 3, 2), counts.add("a", 3, 2), counts.add("a", 3, 2)] == ["", "", "max.connections.per.ip"]
    assert counts.add("b", 3, 2) == "max.connections"
    counts.remove("a")
    counts.remove("b")
    assert counts.add("b", 3, 2) == ""


def test_above_the_limit_two_large_requests_are_read_at_a_time():
    memory, (first, second, third, small) = RequestMemory(140 * KB), map(Peer, ("first", "second", "third", "small"))
    assert memory.set_size(first, 90 * KB)
    assert memory.set_size(second, 90 * KB)  # exceeds the limit, and is read
    assert memory.set_size(third, 90 * KB)
    assert not memory.set_size(first, 91 * KB)
    assert memory.set_size(small, 5 * KB)
    assert memory.set_size(second, 120 * KB)
    assert memory.set_size(second, 0) and first.resumed == 1
    assert memory.set_size(third, 0)  # handled: below the limit again
    assert memory.total == 96 * KB


def test_the_oldest_and_the_newest_large_request_are_read_next():
    memory, peers = RequestMemory(100 * KB), [Peer(str(number)) for number in range(8)]
    assert [memory.set_size(peer, 90 * KB) for peer in peers] == [True] * 3 + [False] * 5
    memory.set_size(peers[1], 0)
    assert [peer.resumed for peer in peers[3:]] == [1, 0, 0, 0, 0]
    peers[7].announced_bytes = 100_000_000  # a very large one waits for those before it
    memory.set_size(peers[2], 0)
    assert [peer.resumed for peer in peers[3:]] == [1, 0, 0, 1, 0]
    memory.set_size(peers[3], 0)
    memory.set_size(peers[4], 0)
    memory.set_size(peers[5], 0)
    assert [peer.resumed for peer in peers[3:]] == [1, 1, 1, 1, 1]


def test_above_twice_the_limit_only_tiny_requests_are_read():
    memory, (large, *small) = RequestMemory(100 * KB), [Peer(str(number)) for number in range(12)]
    assert memory.set_size(large, 90 * KB) and memory.read_bytes == 256 * KB
    assert all(memory.set_size(peer, 10 * KB) for peer in small) and memory.read_bytes == 16 * KB
    tiny = Peer("tiny")
    assert memory.set_size(Peer("admitted"), 1 * KB) and memory.set_size(tiny, 1 * KB) and memory.read_bytes == 1 * KB
    assert memory.set_size(Peer("next"), 2 * KB) and memory.set_size(Peer("beside"), 2 * KB)  # admitted
    assert not memory.set_size(Peer("other"), 2 * KB)
    memory.set_size(large, 0)
    assert memory.read_bytes == 16 * KB


@pytest.mark.parametrize("other_kb", [8_000, 0], ids=["above the limit", "below the limit"])
def test_thousands_of_waiting_connections_are_resumed_in_turns(other_kb):
    class Reader(Peer):
        def resume(self) -> None:
            super().resume()
            memory.set_size(self, 2 * KB)

    memory, other, large = RequestMemory(10_000 * KB), Peer("other"), Peer("large")
    other.waits_for_client = False
    assert memory.set_size(other, other_kb * KB) and memory.set_size(large, 30_000 * KB)
    beside = Peer("beside")
    beside.waits_for_client = False
    assert memory.set_size(beside, 30 * KB)
    readers = [Reader(str(number)) for number in range(3_000)]
    assert not any(memory.set_size(reader, 2 * KB) for reader in readers)
    memory.set_size(large, 0)
    resumed = sum(reader.resumed for reader in readers)
    assert resumed == 16
    for _ in memory.close_stalled(1_000):
        before, resumed = resumed, sum(reader.resumed for reader in readers)
        assert resumed - before <= 16  # each step is short
    assert {reader.resumed for reader in readers} == {1}


def test_a_connection_that_holds_memory_and_sends_nothing_is_closed():
    memory, (silent, waiting, busy) = RequestMemory(100 * KB), map(Peer, ("silent", "waiting", "busy"))
    assert [memory.set_size(silent, 90 * KB), memory.set_size(waiting, 90 * KB)] == [True, True]
    busy.waits_for_client = False  # its request is in progress
    memory.set_size(busy, 50 * KB)
    list(memory.close_stalled(4_000))
    assert not silent.refused
    waiting.last_activity_ms = 4_000
    list(memory.close_stalled(6_000))
    assert "92,160 bytes" in silent.refused and not waiting.refused and not busy.refused


def test_stalled_large_requests_are_closed_after_a_second_while_others_wait():
    memory, peers = RequestMemory(100 * KB), [Peer(str(number)) for number in range(4)]
    assert [memory.set_size(peer, 90 * KB) for peer in peers] == [True, True, True, False]
    live = peers[2]
    for now_ms in (10_000, 10_999, 11_000):
        live.last_activity_ms = now_ms
        list(memory.close_stalled(now_ms))
        assert bool(peers[1].refused) == (now_ms == 11_000)
    memory.set_size(peers[1], 0)
    assert peers[3].resumed == 1 and not live.refused
    list(memory.close_stalled(12_000))
    assert not peers[3].refused  # it had no time to send


@pytest.mark.parametrize("others_wait, limit_ms", [(False, 5_000), (True, 1_000)])
def test_a_large_request_that_arrived_fast_is_closed_when_nothing_more_arrives(others_wait, limit_ms):
    memory, (held, large, *others) = RequestMemory(100 * KB), [Peer(str(number)) for number in range(4)]
    held.waits_for_client = False  # its request is in progress
    assert memory.set_size(held, 90 * KB) and memory.set_size(large, 20 * KB)
    list(memory.close_stalled(10_000))
    assert memory.set_size(large, 50_000 * KB)  # faster than the slowest that is accepted
    large.last_activity_ms = 60_000
    assert [memory.set_size(peer, 90 * KB) for peer in others if others_wait] in ([], [True, False])
    for now_ms in (60_000, 60_000 + limit_ms - 1, 60_000 + limit_ms):
        list(memory.close_stalled(now_ms))
        assert bool(large.refused) == (now_ms == 60_000 + limit_ms)


def test_those_that_wait_for_the_longest_time_are_closed_until_the_others_have_the_memory():
    memory, peers = RequestMemory(140 * KB), [Peer(str(number)) for number in range(10)]
    assert [memory.set_size(peer, 30 * KB) for peer in peers] == [True] * 6 + [False] * 4
    for peer in peers[:6]:
        peer.waits_for_client = False  # their requests are in progress
    for now_ms in range(0, 10_000, 1_000):
        list(memory.close_stalled(now_ms))
    assert not any(peer.refused for peer in peers)
    for peer in peers[:3]:
        memory.set_size(peer, 0)
    list(memory.close_stalled(10_000))
    closed = [peer for peer in peers if peer.refused]
    assert closed == peers[6:9]  # 210 kB without 2 requests are 150 kB
    assert "has waited for 10 s for queued.max.request.bytes" in peers[6].refused


def test_a_large_request_that_arrives_slowly_is_closed_only_when_others_wait():
    memory, (slow, other) = RequestMemory(100 * KB), map(Peer, ("slow", "other"))
    memory.set_size(slow, 80 * KB)
    slow.last_activity_ms = 100_000
    list(memory.close_stalled(100_000))
    assert not slow.refused
    memory.set_size(other, 10 * KB)
    memory.set_size(slow, 120 * KB)
    for now_ms in (100_000, 103_000, 106_000):
        slow.last_activity_ms = now_ms
        list(memory.close_stalled(now_ms))
    assert slow.refused


def test_fetch_responses_shrink_with_the_unread_bytes_of_all_clients():
    memory, peers = ResponseMemory(), [Peer(str(number)) for number in range(100)]
    for peer in peers:
        size = memory.largest_bytes
        assert size <= 4 << 20
        memory.set_size(peer, size)
    assert memory.total <= 64 << 20
    memory.set_size(Peer("large"), 64 << 20)
    assert memory.is_full and memory.largest_bytes == 0


def test_thousands_of_connections_are_closed_in_steps():
    memory, peers = RequestMemory(6_000 * KB), [Peer(str(number)) for number in range(1_000)]
    for peer in peers:
        memory.set_size(peer, 10 * KB)
    closed = [sum(bool(peer.refused) for peer in peers) for _ in memory.close_stalled(10_000)]
    assert all(peer.refused for peer in peers)
    assert len(closed) >= 31 and max(after - before for before, after in zip(closed, closed[1:])) <= 32


def test_clients_that_do_not_read_are_closed_while_others_wait():
    memory, (silent, waiting) = ResponseMemory(), map(Peer, ("silent", "waiting"))
    silent.unsent_bytes = 70 << 20
    memory.set_size(silent, silent.unsent_bytes)
    memory.wait(waiting)
    memory.close_stalled(1_000)
    assert not silent.refused
    memory.close_stalled(2_000)
    assert "73,400,320 bytes" in silent.refused
    memory.remove(silent)
    assert waiting.resumed == 1 and memory.total == 0


@pytest.mark.parametrize(
    "frame",
    [
        attack_frames.metadata_of(["t"] * 300),
        attack_frames.unknown_tags(600),
        attack_frames.fetch_many(300),
        attack_frames.produce_to_many(300),
    ],
)
def test_elements_are_counted_before_they_are_decoded(frame):
    body = memoryview(frame)[4:]
    header, position = read_request_header(body)
    assert decode_request(body, header, position, 400)
    with pytest.raises(TooManyElementsError, match="more than 200 elements"):
        decode_request(body, header, position, 200)


def test_a_header_has_a_bounded_number_of_tags():
    with pytest.raises(RemoteProtocolError, match="1000 tagged fields"):
        read_request_header(memoryview(attack_frames.header_tags(2_000))[4:])


def test_the_elements_of_a_message_are_counted_up_to_a_limit():
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=[topic(name="t")] * 50, allow_auto_topic_creation=False)
    assert has_more_elements(request, 49) and not has_more_elements(request, 50)
    assert not has_more_elements(HeartbeatResponse(throttle_time_ms=0, error_code=0), 0)
    member = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(member_metadata=bytes(50_000))
    group = DescribeGroupsResponse.DescribedGroup(members=[member])
    response = DescribeGroupsResponse(groups=[group])
    assert has_more_elements(response, 51) and not has_more_elements(response, 52)  # group, member, 50 kB
