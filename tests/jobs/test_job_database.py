"""Database of the job upsert_database: rows and offsets in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click import ClickException
from job_database import Changes, TopicPartition, connect
from support.databases import KINDS, database_url, rows_of_query

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FLIGHTS = "SELECT * FROM flights ORDER BY 1"


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with database_url(request.param) as address:
        yield address


def opened(url: str) -> Any:
    return connect(url, "flights", "g", "flight", {"carrier": "string", "delay": "int"})


def test_changes_are_applied_once(url: str) -> None:
    first = Changes([("1", ("UA", 3), 2), ("2", ("AA", 4), 1)], {P0: 3})
    with opened(url) as database:
        assert database.apply(first, {})
        assert not database.apply(first, {})
        assert database.next_offsets() == {P0: 3}
        assert database.apply(Changes([("1", ("UA", 5), 1), ("2", None, 1)], {P0: 4, P1: 1}), {P0: 3})
    assert rows_of_query(url, FLIGHTS) == [("1", "UA", 5, 3)]
    with opened(url) as database:
        assert database.next_offsets() == {P0: 4, P1: 1}


def test_failed_changes_write_neither_rows_nor_offsets(url: str) -> None:
    with opened(url) as database:
        with pytest.raises(Exception, match="bind|adapt|parameter"):
            database.apply(Changes([("1", ("UA", 3), 1), ("2", ("AA", object()), 1)], {P0: 2}), {})
        assert database.next_offsets() == {}
    assert rows_of_query(url, FLIGHTS) == []


def test_another_application_of_the_group_is_detected(url: str) -> None:
    with opened(url) as one, opened(url) as other:
        before = one.next_offsets()
        assert other.apply(Changes([("1", ("UA", 3), 1)], {P0: 1}), {})
        assert not one.apply(Changes([("1", ("UA", 3), 1)], {P0: 1}), before)
    assert rows_of_query(url, FLIGHTS) == [("1", "UA", 3, 1)]


@pytest.mark.parametrize(
    "address, message",
    [("mysql://u:secret@h/d", "must start with .* got mysql"), ("sqlite:////no/such/directory/x", "Cannot open")],
)
def test_database_that_cannot_be_opened_is_a_one_line_error(address: str, message: str) -> None:
    with pytest.raises(ClickException, match=message) as caught, opened(address):
        pass
    assert "\n" not in caught.value.message and "secret" not in caught.value.message
