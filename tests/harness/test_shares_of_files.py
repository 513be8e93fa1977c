"""Selection of tests by share."""

from __future__ import annotations

from support.selection import TESTS, files_of_share


def test_each_test_file_is_in_one_share() -> None:
    shares = [files_of_share(f"{number}/3") for number in (1, 2, 3)]
    assert sorted(path for share in shares for path in share) == sorted(TESTS.rglob("test_*.py"))
    assert files_of_share("1/1") == frozenset().union(*shares)
