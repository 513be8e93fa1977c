"""The last request of each connection: preparation, eviction."""

from __future__ import annotations

from struct import pack
from typing import NamedTuple

import pytest

from spark_groupsource.broker import repeated_requests
from spark_groupsource.broker.repeated_requests import RepeatedRequests
from spark_groupsource.wire.byte_pattern import BytePattern

REPEATED = 9  # requests of the same size before one that is prepared


class Prepared(NamedTuple):
    pattern: BytePattern
    size_bytes: int = 1


class Requests:
    """Requests with a constant and a number each; counts the preparations."""

    def __init__(self, size_bytes: int = 1, is_full: bool = False) -> None:
        self.found: RepeatedRequests[Prepared] = RepeatedRequests(lambda added_bytes: is_full)
        self.prepared, self._size_bytes = 0, size_bytes

    def send(self, connection_id: int, constant: bytes, number: int):
        body = memoryview(constant + pack(">i", number))

        def prepare() -> Prepared:
            self.prepared += 1
            return Prepared(BytePattern(bytes(body), [len(constant)], 4), self._size_bytes)

        found = self.found.find((connection_id, 7), body, prepare)
        return None if found is None else found[1]

    def begin(self, connection_id: int, constant: bytes = b"a") -> bool:
        """Sends requests until one is a repeated one; returns whether it is."""
        for number in range(REPEATED):
            found = self.send(connection_id, constant, number)
        return found is not None


def test_requests_of_the_same_size_are_prepared():
    requests = Requests()
    found = [requests.send(1, b"a", number) for number in range(20)]
    assert found == [None] * (REPEATED - 1) + [(number,) for number in range(REPEATED - 1, 20)]
    assert requests.prepared == 1
    assert requests.send(2, b"a", 5) is None


def test_requests_of_changing_sizes_are_not_prepared():
    requests = Requests()
    assert [requests.send(1, constant, 1) for constant in (b"a", b"bb") * 20] == [None] * 40
    assert not requests.prepared


class AnySize(NamedTuple):
    size_bytes: int = 1

    @property
    def pattern(self) -> AnySize:
        return self

    def match(self, body: memoryview) -> tuple[int, ...]:
        return (len(body),)


def test_requests_of_any_size_are_prepared_if_they_may_have_one():
    found: RepeatedRequests[AnySize] = RepeatedRequests(has_any_size=True)
    sizes = [4, 5, 40_000, *range(6, 14)]
    results = [found.find((1, 7), memoryview(bytes(size)), AnySize) for size in sizes]
    assert results[: REPEATED - 1] == [None] * (REPEATED - 1)
    assert results[REPEATED - 1 :] == [(AnySize(), (size,)) for size in sizes[REPEATED - 1 :]]


def test_requests_that_differ_otherwise_are_prepared_less_and_less_often():
    requests = Requests()
    for number in range(4_000):
        requests.send(1, number.to_bytes(4, "big"), 1)
    assert 2 <= requests.prepared <= 12


def test_a_request_that_cannot_be_prepared_is_tried_less_and_less_often():
    tried = []
    found: RepeatedRequests[Prepared] = RepeatedRequests()
    for number in range(4_000):
        assert found.find((1, 7), memoryview(b"body"), lambda: tried.append(number)) is None
    assert 2 <= len(tried) <= 12


def test_requests_that_were_often_repeated_are_prepared_again_as_soon():
    requests = Requests()
    for round_number in range(8):
        constant = bytes([round_number])
        found = [requests.send(1, constant, number) for number in range(90)]
        assert found[REPEATED:] == [(number,) for number in range(REPEATED, 90)]
    assert requests.prepared == 8


def test_dropped_requests_are_prepared_again():
    requests = Requests(1_000)
    assert requests.begin(1)
    size = requests.found.size_bytes
    requests.found.drop((1, 7))
    assert requests.found.size_bytes == size - 1_000
    assert not requests.begin(1)
    assert requests.begin(1)
    assert requests.found.size_bytes == size


@pytest.mark.parametrize("limit", ["_CLIENTS", "_MAX_BYTES"])
def test_what_is_used_is_not_replaced(monkeypatch, limit):
    # private: the limits bound the memory
    monkeypatch.setattr(repeated_requests, limit, {"_CLIENTS": 3, "_MAX_BYTES": 25}[limit])
    requests = Requests(10)
    assert [requests.begin(connection_id) for connection_id in (1, 2, 3)] == [True] * 3
    for number in range(200):
        for connection_id in (1, 2, 3):
            assert requests.send(connection_id, b"a", number) == (number,)
        assert requests.send(4, b"a", number) is None
    assert requests.prepared <= 10
    assert requests.found.size_bytes <= 30 + 4 * 500
    # connections 1 and 2 are not used any longer
    for number in range(4_000):
        requests.send(3, b"a", number)
        requests.send(4, b"a", number)
    assert requests.send(3, b"a", 7) == requests.send(4, b"a", 7) == (7,)


def test_nothing_is_prepared_while_the_state_is_full():
    requests = Requests(is_full=True)
    assert not requests.begin(1)
    assert requests.found.size_bytes <= 500
