"""Tables and sentences within the width of a terminal."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.cli.text_layout import divided, filled, output_width, sentences, table

HEADER = ["GROUP", "CURRENT-OFFSET", "LAG", "CONSUMER-ID"]
ROWS = [["delays", "12345678901", "7", "rdkafka-0c1b8f5e-8a0f-4d3b-9d55-4a1f3f7f2c11"], ["delays", "-", "-", "-"]]
CELLS = st.text("ab-._/:,0123456789", min_size=1, max_size=60)


def test_a_table_that_fits_has_the_least_widths() -> None:
    assert table(HEADER, ROWS, None) == table(HEADER, ROWS, 200)
    assert table(HEADER, ROWS, None).splitlines()[2] == "delays  -               -    -"


def test_headers_and_text_are_divided() -> None:
    assert table(HEADER, ROWS, 50).splitlines() == [
        "GROUP   CURRENT-     LAG  CONSUMER-ID",
        "        OFFSET",
        "delays  12345678901  7    rdkafka-0c1b8f5e-8a0f-",
        "                          4d3b-9d55-4a1f3f7f2c11",
        "delays  -            -    -",
    ]


def test_rows_of_a_table_that_is_too_wide_are_paragraphs() -> None:
    assert table(HEADER, ROWS, 30).splitlines() == [
        "GROUP delays",
        "CURRENT-OFFSET 12345678901",
        "LAG 7",
        "CONSUMER-ID rdkafka-0c1b8f5e-",
        "8a0f-4d3b-9d55-4a1f3f7f2c11",
        "",
        "GROUP delays  CURRENT-OFFSET -",
        "LAG -  CONSUMER-ID -",
    ]


@given(
    st.integers(1, 8).flatmap(
        lambda columns: st.tuples(
            st.lists(st.sampled_from(["LAG", "CURRENT-OFFSET", "PARTITION", "A"]), min_size=columns, max_size=columns),
            st.lists(st.lists(CELLS, min_size=columns, max_size=columns), max_size=4),
        )
    ),
    st.integers(24, 120),
)
def test_a_table_is_as_narrow_as_the_terminal_and_has_every_character(
    content: tuple[list[str], list[list[str]]], width: int
) -> None:
    header, rows = content
    text = table(header, rows, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert sorted(text.replace("\n", "").replace(" ", "")) in (
        sorted("".join("".join(line) for line in [header, *rows])),
        sorted("".join("".join(header) + "".join(row) for row in rows)),
    )


@given(CELLS, st.integers(1, 30))
def test_the_pieces_of_a_text_are_the_text(text: str, width: int) -> None:
    pieces = divided(text, width)
    assert "".join(pieces) == text and all(len(piece) <= width for piece in pieces)


def test_a_text_ends_its_pieces_after_punctuation() -> None:
    assert divided("CURRENT-OFFSET", 8) == ["CURRENT-", "OFFSET"]
    assert divided("abcdefghij-k", 4) == ["abcd", "efgh", "ij-k"]


def test_sentences_are_divided_between_words() -> None:
    lines = sentences(["short", "    one two three four five six seven"], 30)
    assert lines == ["short", "    one two three four five", "        six seven"]
    assert sentences(["x" * 50], None) == ["x" * 50]
    # a narrower terminal than any text needs
    assert filled("one two three", 1, "label ", "      ") == ["label one two three"]


def test_the_width_is_that_of_the_environment_else_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert output_width() == 77
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 20)))
    assert output_width() == 40
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert output_width() is None
