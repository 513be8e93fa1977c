"""Options group and topic: names and patterns."""

from __future__ import annotations

import pytest

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.selection import NameSelection, parse_selection
from spark_groupsource.monitor.tables.definitions import TABLES, parse_table
from spark_groupsource.notebook.cluster import Group
from spark_groupsource.source.options.table_options import parse_table_options


def test_names_are_requested_as_they_are() -> None:
    selection = parse_selection("topic", "orders, users.v1,orders")
    assert selection.names == ("orders", "users.v1")
    assert selection.selected(["users_v1", "users.v1", "orders"]) == ["orders", "users.v1"]


def test_a_pattern_matches_whole_names() -> None:
    selection = parse_selection("topic", "orders.*,users")
    assert selection.names is None
    assert selection.selected(["orders", "orders-2", "my-orders", "users", "users2"]) == ["orders", "orders-2", "users"]


def test_a_name_with_special_characters_matches_itself() -> None:
    assert parse_selection("group", "a+b").matches("a+b")


def test_a_comma_within_brackets_is_part_of_a_pattern() -> None:
    selection = parse_selection("topic", r"a{1,2},[,x], b\,c,(d,e|f)")
    assert selection.patterns == ("a{1,2}", "[,x]", r"b\,c", "(d,e|f)") and selection.names is None
    assert selection.selected(["a", "aa", "aaa", "x", "f"]) == ["a", "aa", "f", "x"]


GROUP_NAMES = ["a,b", " lead", "trail ", "*", "a.*", "", "a+b", "[", "(", "orders", "\u00e9"]


@pytest.mark.parametrize("name", GROUP_NAMES)
def test_option_group_is_one_exact_name(name: str) -> None:
    address = {"kafka.bootstrap.servers": "localhost:9092"}
    groups = parse_table_options({"table": "lag", "Group": name, **address}).groups
    assert groups is not None and groups.names == (name,)
    assert groups.selected(GROUP_NAMES) == [name]


@pytest.mark.parametrize("name", GROUP_NAMES)
def test_a_group_of_the_notebook_is_one_exact_name(name: str) -> None:
    assert Group(None, name)._selection == NameSelection((name,))  # type: ignore[arg-type]


def test_a_pattern_of_groups_has_an_option_of_its_own() -> None:
    options = {"table": "lag", "kafka.bootstrap.servers": "localhost:9092", "groupPattern": "a.*|orders"}
    groups = parse_table_options(options).groups
    assert groups is not None and groups.names is None
    assert groups.selected(GROUP_NAMES) == ["a+b", "a,b", "a.*", "orders"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" , ", "Option group must be names or patterns separated by commas, got ' , '."),
        ("a[", "Option group must be names or regular expressions of Python's re module, got 'a[': .*"),
    ],
)
def test_invalid_selections(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("[", r"\[").replace("'a\\[': ", r"'a\[': ")):
        parse_selection("group", text)


def test_misspelled_table_gets_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match="Option table must be one of topics, .* Did you mean members?"):
        parse_table("table", "member")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "lag"}, "Option kafka.bootstrap.servers is missing"),
        ({"table": "lag", "grup": "x"}, "Option grup is unknown for a table. Did you mean group?"),
        ({"table": "groups", "topic": "x"}, "Option topic is not allowed for table groups"),
        ({"table": "topics", "groupPattern": "x"}, "Option groupPattern is not allowed for table topics"),
        ({"table": "lag", "group": "x", "groupPattern": "x"}, "Options group and groupPattern exclude each other"),
        ({"table": "lag", "groupPattern": " "}, "Option groupPattern must not be empty"),
        ({"table": "offsets_log", "startingOffsets": "first"}, "must be earliest or latest, got 'first'"),
        ({"table": "lag", "kafka.clientid": "x", "kafka.bootstrap.servers": "x:1"}, "Option kafka.clientid is unknown"),
    ],
)
def test_invalid_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_table_options(options)


def test_only_the_offsets_log_is_a_stream() -> None:
    address = {"kafka.bootstrap.servers": "localhost:9092"}
    assert parse_table_options({"TABLE": "Offsets_Log", **address}, "stream").table is TABLES["offsets_log"]
    given = {"table": "offsets_log", "startingOffsets": "Latest", **address}
    assert parse_table_options(given, "stream").starting_offsets == "latest"
    with pytest.raises(ConfigurationError, match="Table lag cannot be read as a stream. Use spark.read, or"):
        parse_table_options({"table": "lag", **address}, "stream")


def test_every_column_is_described_in_one_sentence() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names) and table.doc.endswith(".")
        assert all(column.doc.endswith(".") and "\n" not in column.doc for column in table.columns)
