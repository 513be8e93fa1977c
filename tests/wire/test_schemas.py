"""Schemas as plain data."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_groupsource.wire import messages, schemas
from spark_groupsource.wire.schemas import (
    EMPTY,
    bits_of,
    number_of,
    parse_schema,
    present_fields,
    schema_of,
    tagged_fields,
)

NAMES = [name for name in messages.__all__ if hasattr(getattr(messages, name), "SCHEMA")]
SIMPLE_TYPES = {*schemas.FIXED_FORMATS, "uuid", "bitfield", "string", "bytes", "records"}


def fields_below(fields):
    for field in fields:
        yield field
        yield from fields_below(field.fields or ())


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_read(name):
    schema = schema_of(name)
    assert schema.name == name
    assert schema.versions and set(schema.flexible) <= set(range(schemas.LAST_VERSION + 1))
    for field in fields_below(schema.fields):
        assert field.versions and (field.fields is not None or field.type in SIMPLE_TYPES), field
        assert (field.tag is None) == (not field.tagged), field


def test_versions_types_and_defaults():
    found = parse_schema(
        {
            "name": "Sample", "type": "data", "validVersions": "2-5", "flexibleVersions": "4+",
            "commonStructs": [{"name": "Row", "versions": "0+", "fields": [
                {"name": "LeaderId", "type": "int32", "versions": "0+", "default": "-1"},
            ]}],
            "fields": [
                {"name": "TopicRows", "type": "[]Row", "versions": "3"},
                {"name": "Label", "type": "string", "versions": "0-4", "nullableVersions": "3+", "default": "null"},
                {"name": "Mask", "type": "int64", "versions": "2+", "default": "0x10"},
                {"name": "IsLast", "type": "bool", "versions": "0+", "default": "true"},
                {"name": "Second", "type": "int8", "versions": "4+", "taggedVersions": "4+", "tag": 1},
                {"name": "First", "type": "[]int8", "versions": "4+", "taggedVersions": "4+", "tag": 0},
                {"name": "Ids", "type": "[]uuid", "versions": "0+", "nullableVersions": "0+", "default": "null"},
            ],
        }
    )  # fmt: skip
    rows, label, mask, is_last, second, first, ids = found.fields
    assert (found.versions, 3 in found.flexible, 9 in found.flexible) == (range(2, 6), False, True)
    assert (rows.name, rows.json_name, rows.type, rows.is_array, rows.versions) == (
        "topic_rows", "topicRows", "Row", True, range(3, 4),
    )  # fmt: skip
    assert rows.fields is not None and rows.fields[0].default == -1
    assert (rows.default, label.default, mask.default, is_last.default, ids.default) == (EMPTY, None, 16, True, None)
    assert 2 not in label.nullable and 3 in label.nullable and not mask.nullable
    assert [field.name for field in present_fields(found.fields, 4)] == ["label", "mask", "is_last", "ids"]
    assert tagged_fields(found.fields, 4) == [first, second] and not tagged_fields(found.fields, 3)


@pytest.mark.parametrize("message, field", schemas.CHANGES)
def test_every_changed_field_is_in_its_schema(message, field):
    change = schemas.CHANGES[message, field]
    name = "authorized_operations" if "type" in change else None
    found = [
        each
        for each in fields_below(schema_of(message).fields)
        if each.name == name or each.json_name.lower() == field.lower()
    ]
    assert found
    assert all(each.type == "bitfield" and each.default is None for each in found if name)
    assert all(each.default in (None, -1) for each in found)


@pytest.mark.parametrize("bits", [None, set(), {0}, {3, 5, 30}, {0, 31}])
def test_sets_of_bits(bits):
    assert bits_of(number_of(bits)) == bits


def test_kafka_python_is_read_from_an_archive_and_not_imported(tmp_path: Path):
    root = Path(schemas.kafka_python_directory())
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        for file in (root / "__init__.py", *(root / "protocol" / "schemas" / "resources").glob("Heartbeat*.json")):
            archive.write(file, file.relative_to(root.parent))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "packages.zip")!r})
from spark_groupsource.wire.messages import HeartbeatRequest
from spark_groupsource.wire import schemas
directory = str(schemas.kafka_python_directory())
print(HeartbeatRequest(group_id="g").group_id, "kafka" in sys.modules, "packages.zip" in directory)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["g", "False", "True"]
