"""Properties files and patterns beside Java: recorded vectors, and Java itself."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from support.java_tools import java_gateway, spark_jars

from spark_groupsource.cli.common import read_properties
from spark_groupsource.client.settings import GroupSettings
from spark_groupsource.common.config_providers import resolve
from spark_groupsource.common.properties_text import decode, entries, parse_properties
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.table_options import parse_table_options


def vectors(name: str) -> list[Any]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text().splitlines()]


# text -> the entries that Properties.load of Java 17 reads, None for an exception
PROPERTIES = vectors("java_properties.jsonl")
# pattern -> those of NAMES in which Matcher.find of Java 17 is true, None for an invalid pattern
PATTERNS = vectors("java_patterns.jsonl")
NAMES = "a ab abb aaa A aB a.b a-b a_b b x orders orders-2 a1 1 a+b k".split()
ADDRESS = {"kafka.bootstrap.servers": "localhost:9092"}

# -- properties files ------------------------------------------------------------------------------------------------


def loaded(text: str) -> dict[str, str] | None:
    try:
        return parse_properties(text)
    except ConfigurationError:
        return None


def test_properties_are_those_of_java() -> None:
    assert [(text, loaded(text)) for text, _ in PROPERTIES] == [(text, expected) for text, expected in PROPERTIES]


@pytest.mark.java
def test_java_reads_the_recorded_properties_and_patterns() -> None:
    with java_gateway(spark_jars()) as gateway:
        java = gateway.jvm.java
        for text, expected in PROPERTIES:
            properties = java.util.Properties()
            try:
                properties.load(java.io.StringReader(text))
                found = {key: properties.getProperty(key) for key in properties.stringPropertyNames()}
            except Py4JJavaError:
                found = None
            assert found == expected, text
        for pattern, expected in PATTERNS:
            try:
                compiled = java.util.regex.Pattern.compile(pattern)
                matched = [name for name in NAMES if compiled.matcher(name).find()]
            except Py4JJavaError:
                matched = None
            assert matched == expected, pattern


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a=\xc3\xa9", "\u00e9"),
        (b"a=\xe9", "\u00e9"),
        (b"\xef\xbb\xbfa=b", "b"),
        (b"\xef\xbb\xbf# comment\r\na=b\r\n", "b"),
    ],
)
def test_the_text_of_a_file_is_utf_8_or_iso_8859_1(data: bytes, expected: str) -> None:
    assert parse_properties(decode(data)) == {"a": expected}


def test_an_entry_has_the_number_of_its_first_line() -> None:
    found = [(entry.line, entry.key, entry.has_separator) for entry in entries("# c\na=\\\n b\n\nc\n  d x")]
    assert found == [(2, "a", True), (5, "c", False), (6, "d", True)]


def test_an_incomplete_escape_is_reported_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=x\nsasl.password=s\\u12\n")
    with pytest.raises(ConfigurationError, match=r"Cannot read properties file .*: Line 2 has an incomplete \\uxxxx"):
        read_properties(path)
    with pytest.raises(ConfigurationError, match=f"Option kafka.x refers to the file {path}, which is invalid: Line 2"):
        resolve({"x": f"${{file:{path}:sasl.password}}"}, "kafka.")


def test_files_of_providers_have_the_same_format(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_bytes(b"\xef\xbb\xbf  pass\\:word : a\\\n   b\\u0021 \n!x\nuser\tann\n")
    given = {"p": f"${{file:{path}:pass:word}}", "u": f"<${{file:{path}:user}}>"}
    assert resolve({"u": given["u"]}) == {"u": "<ann>"}
    assert read_properties(path) == {"pass:word": "ab!", "user": "ann"}


def test_a_setting_without_a_separator_is_empty_as_in_java(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("ssl.endpoint.identification.algorithm\n")
    assert read_properties(path) == {"ssl.endpoint.identification.algorithm": ""}


# -- patterns --------------------------------------------------------------------------------------------------------

PLACES: dict[str, Callable[[str], str]] = {
    "subscribePattern": lambda text: _subscribed(text, "stream"),
    "subscribePattern of a batch": lambda text: _subscribed(text, "batch"),
    "subscribePattern of members": lambda text: GroupSettings("g", pattern=text).pattern or "",
    "groupPattern": lambda text: lag_table(groupPattern=text).groups.patterns[0],
    "topic": lambda text: lag_table(topic=text).topic.patterns[0],
    "--topic": lambda text: parse_selection("--topic", text).patterns[0],
}


def lag_table(**options: str) -> Any:
    return parse_table_options({**ADDRESS, "table": "lag", **options})


def _subscribed(text: str, query: Any) -> str:
    options = parse_options({**ADDRESS, "kafka.group.id": "g", "subscribePattern": text}, query)
    assert options.subscribe_pattern is not None
    return options.subscribe_pattern


def found_names(text: str) -> list[str] | None:
    with warnings.catch_warnings():
        # a set that a later Python may read otherwise
        warnings.simplefilter("ignore", FutureWarning)
        try:
            pattern = PLACES["subscribePattern"](text)
        except ConfigurationError as error:
            expected = f"a regular expression of Python's re module, got {text.strip()!r}"
            assert f"Option subscribePattern must be {expected}" in str(error)
            return None
        return [name for name in NAMES if re.search(pattern, name)]


@pytest.mark.parametrize(("text", "expected"), [each for each in PATTERNS if each[0].strip() and each[1] is not None])
def test_a_pattern_of_java_selects_the_same_names_or_is_rejected(text: str, expected: list[str]) -> None:
    assert found_names(text) in (expected, None)


REJECTED = [
    ("[a-z&&[^b]]+", "&& is an intersection in a set of Java: write the characters that remain, for example [ac-z]"),
    ("[a-z&&aeiou]", "&& is an intersection in a set of Java"),
    ("[a-c[x-z]]", r"[ within a set is a union in Java: write one set, or \[ for the bracket itself"),
    ("[[:alpha:]]+", "[ within a set is a union in Java"),
    (r"[^\p{Punct}]", r"\p is a class of characters in Java: write the characters, for example [a-z]"),
    (r"\p{Alpha}+", r"\p is a class of characters in Java"),
    (r"\P{Alpha}+", r"\P is a class of characters in Java"),
    (r"\Qa.b\E.*", r"\Q quotes text in Java: put a backslash before each special character instead"),
    (r"[a-z]+\z", r"\z is the end of the text in Java: write \Z"),
    ("(?<name>a)+", "(?<name> is a named group in Java: write (?P<name>"),
    (r"(?P<n>a)\k<n>", r"\k refers to a group in Java: write (?P=name)"),
    ("[a](?i)B", "flags apply from their place on in Java: write (?i:...) around the part"),
    (r"[a]\b{g}", r"\b{ is a boundary in Java: write \b"),
    (r"[a]\0141", r"\0 is an octal number in Python alone"),
    (r"[a]\141", r"\1 is an octal number in Python alone"),
    (r"\h+", r"\h is a class of characters in Java"),
    (r"[a]\G", r"\G is the end of the previous match in Java"),
    ("[a]+(", "missing )"),
    ("a{99999999999}", "the repetition number is too large"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("text", "problem"), REJECTED)
def test_constructs_with_another_meaning_are_rejected_in_every_place(place: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        PLACES[place](text)
    option = place.split(" ")[0]
    assert f"Option {option} must be " in str(raised.value) and problem in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["orders.*", "(a|b)-[0-9]{1,3}", r"[\w.-]+", r"[a\[b]+", r"[]a]+", "[^]a]+", "(?i)Orders", "(?i:a)b", "(?=a).*",
     r"a\&&b+", "(?<!a)b", "a&&b+", r"\[a&&b\]"],
)  # fmt: skip
@pytest.mark.parametrize("place", PLACES)
def test_patterns_that_both_read_alike_are_accepted(place: str, text: str) -> None:
    assert PLACES[place](text) == text
