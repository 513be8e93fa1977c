"""The last request of each connection: preparation, eviction."""

from __future__ import annotations

from struct import pack
from typing import NamedTuple

import pytest

from spark_groupsource.broker import repeated_requests
from spark_groupsource.broker.repeated_requests import RepeatedRequests
from spark_groupsource.wire.byte_pattern import BytePattern


class Prepared(NamedTuple):
    pattern: BytePattern
    size: int = 1


class Requests:
    """Requests with a constant and a number each; counts the preparations."""

    def __init__(self, size: int = 1) -> None:
        self.found: RepeatedRequests[Prepared] = RepeatedRequests()
        self.prepared, self._size = 0, size

    def send(self, connection_id: int, constant: bytes, number: int):
        body = memoryview(constant + pack(">i", number))

        def prepare() -> Prepared:
            self.prepared += 1
            return Prepared(BytePattern(bytes(body), [len(constant)], 4), self._size)

        found = self.found.find((connection_id, 7), body, prepare)
        return None if found is None else found[1]


def test_the_second_request_of_the_same_size_is_prepared():
    requests = Requests()
    assert [requests.send(1, b"a", number) for number in (1, 2, 3, 4)] == [None, (2,), (3,), (4,)]
    assert requests.prepared == 1
    assert requests.send(2, b"a", 5) is None


def test_requests_of_changing_sizes_are_not_prepared():
    requests = Requests()
    assert [requests.send(1, constant, 1) for constant in (b"a", b"bb", b"a", b"bb")] == [None] * 4
    assert not requests.prepared


def test_requests_that_differ_otherwise_are_prepared_less_and_less_often():
    requests = Requests()
    for number in range(1_000):
        requests.send(1, number.to_bytes(4, "big"), 1)
    assert 2 <= requests.prepared <= 10


def test_a_request_that_cannot_be_prepared_is_tried_less_and_less_often():
    tried = []
    found: RepeatedRequests[Prepared] = RepeatedRequests()
    for number in range(1_000):
        assert found.find((1, 7), memoryview(b"body"), lambda: tried.append(number)) is None
    assert 2 <= len(tried) <= 10


def test_requests_that_were_often_repeated_are_prepared_again_at_once():
    requests = Requests()
    for round_number in range(5):
        constant = bytes([round_number])
        found = [requests.send(1, constant, number) for number in range(50)]
        assert found[2:] == [(number,) for number in range(2, 50)]
    assert requests.prepared == 5


def test_dropped_requests_are_prepared_again():
    requests = Requests()
    requests.send(1, b"a", 1)
    assert requests.send(1, b"a", 2) == (2,)
    size = requests.found.size_bytes
    requests.found.drop((1, 7))
    assert requests.found.size_bytes < size
    assert [requests.send(1, b"a", 3) for _ in range(4)] == [None, (3,), (3,), (3,)]
    assert requests.found.size_bytes == size


@pytest.mark.parametrize("limit", ["_CLIENTS", "_ELEMENTS"])
def test_the_connections_that_were_used_last_are_kept(monkeypatch, limit):
    # private: the limits bound the memory
    monkeypatch.setattr(repeated_requests, limit, {"_CLIENTS": 3, "_ELEMENTS": 30}[limit])
    requests = Requests(size=10)
    for connection_id in (1, 2, 3):
        requests.send(connection_id, b"a", 1)
        assert requests.send(connection_id, b"a", 2) == (2,)
    assert requests.send(1, b"a", 3) == (3,)
    requests.send(4, b"a", 1)
    requests.send(4, b"a", 2)
    assert requests.send(1, b"a", 3) == (3,)
    assert requests.send(2, b"a", 3) is None
    assert requests.found.size_bytes <= 3 * 10 * repeated_requests.ELEMENT_BYTES + 4 * 500
