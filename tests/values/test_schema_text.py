"""Schemas as text or file: comments, byte order marks, whitespace."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.values.avro.avro_schema import parse_avro_schema
from spark_groupsource.values.format_options import parse_schema_text
from spark_groupsource.values.schema_text import without_comments

AVRO = '{"type": "record", "name": "r", "doc": "http://x/*y*/ \\"//\\"", "fields": [{"name": "x", "type": "int"}]}'
PROTO = 'syntax = "proto3";\nmessage M { int32 x = 1; }'
LICENSE = "// Copyright 2026 The Authors\n// Licensed under /LICENSE\n"
BEGINNINGS = {
    "nothing": "",
    "whitespace": " \n\t\r\n",
    "a byte order mark": "\ufeff",
    "a mark and whitespace": "\n\ufeff \n",
    "a line comment": LICENSE,
    "a block comment": "/* Copyright\n * 2026 */\n",
    "a document comment": "/** Copyright */",
    "a mark and a comment": f"\ufeff{LICENSE}",
    "whitespace and a comment": f"\n\n  {LICENSE}",
    "a comment with Windows line ends": LICENSE.replace("\n", "\r\n"),
    "a comment with line ends of old Macs": LICENSE.replace("\n", "\r"),
}


@pytest.mark.parametrize("schema", [AVRO, PROTO], ids=["avro", "protobuf"])
@pytest.mark.parametrize("begin", BEGINNINGS)
def test_text_is_no_path_whatever_it_begins_with(tmp_path, begin: str, schema: str) -> None:
    text = BEGINNINGS[begin] + schema
    found = parse_schema_text("value.schema", text)
    assert found.endswith(schema) and "\ufeff" not in found
    for encoding in ("utf-8", "utf-16-le", "utf-16-be") if "\ufeff" in text else ("utf-8", "utf-16"):
        path = tmp_path / "schema.txt"
        path.write_bytes(text.lstrip().encode(encoding))
        for name in (str(path), f"file:{path}", f"file://{path}", f" {path}\n", f"/{path}"):
            assert parse_schema_text("value.schema", name) == found.strip()
    if schema is AVRO:
        assert [field.name for field in parse_avro_schema("Option value.schema", found).fields] == ["x"]


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_avro_with_comments_everywhere(begin: str) -> None:
    text = AVRO.replace(", ", ", // a \" quote\n ").replace("[{", "[/* { */{") + " // end"
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "value.format": "avro"}
    found = parse_options({**given, "value.schema": BEGINNINGS[begin] + text}).values.value
    avro = parse_avro_schema("Option value.schema", str(found.schema))
    assert (avro.name, [field.type.kind for field in avro.fields]) == ("r", ["int"])


@pytest.mark.parametrize(
    "given",
    ['"a // b"', '"/* a */"', r'"\" // \\"', '["//", "/*", "*/"]', '{"a/b": "c//d"}'],
)
def test_comments_within_strings_are_kept(given: str) -> None:
    assert json.loads(without_comments(f"/* x */ {given} // y")) == json.loads(given)


def test_a_descriptor_set_is_kept_as_it_is(tmp_path) -> None:
    path = tmp_path / "messages.desc"
    path.write_bytes(b"\n\x05\x0a\x03a/b\xff\xfe")
    assert parse_schema_text("value.schema", str(path)) == b64encode(path.read_bytes()).decode()


def test_paths_that_are_no_schema_are_named(tmp_path) -> None:
    empty, large = tmp_path / "empty", tmp_path / "large"
    empty.write_text("\ufeff \n")
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    for path, message in (
        (empty, "names .*empty, which is empty. Give the path"),
        (large, "names .*large, which is larger than 16 MiB"),
        (tmp_path, "failed: .*Is a directory"),
        ("/no/such/file", "failed: .*No such file"),
        ("/no\x00file", "failed: embedded null byte"),
        (f"/{'x' * 5000}", "failed: .*File name too long"),
        ("// no schema follows", "failed: .*No such file"),
    ):
        with pytest.raises(ConfigurationError, match=f"option value.schema {message}|Option value.schema {message}"):
            parse_schema_text("value.schema", str(path))
    (tmp_path / "latin").write_bytes('{"doc": "\u00e9"}'.encode("latin-1"))
    with pytest.raises(ConfigurationError, match="can't decode byte"):
        parse_schema_text("value.schema", str(tmp_path / "latin"))
    for text in ("", " ", "\ufeff", "\n\ufeff\n"):
        with pytest.raises(ConfigurationError, match="Option value.schema must not be empty"):
            parse_schema_text("value.schema", text)
