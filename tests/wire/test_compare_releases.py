"""Comparison of the message schemas of two releases."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

DIFFERENCES = runpy.run_path(str(Path(__file__).with_name("compare_releases.py")))["differences"]
HEARTBEAT: dict[str, Any] = {
    "apiKey": 12, "type": "request", "name": "HeartbeatRequest", "listeners": ["broker"], "validVersions": "0-4",
    "flexibleVersions": "4+", "fields": [{"name": "GroupId", "type": "string", "versions": "0+"}],
}  # fmt: skip
# the number of a record type is not that of an API
STREAMS: dict[str, Any] = {
    "apiKey": 17, "type": "coordinator-value", "name": "StreamsGroupMetadataValue", "validVersions": "0",
    "flexibleVersions": "0+", "fields": [{"name": "Epoch", "type": "int32", "versions": "0+"}],
}  # fmt: skip
NEW_TAG = {"name": "Next", "type": "int8", "versions": "0+", "taggedVersions": "0+", "tag": 4}


def changes(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    return list(DIFFERENCES(*({schema["name"]: schema for schema in schemas} for schemas in (old, new))))


def test_equal_releases_have_no_differences() -> None:
    assert changes([HEARTBEAT, STREAMS], [STREAMS, HEARTBEAT]) == []


def test_a_version_with_a_new_field() -> None:
    field = {"name": "Rack", "type": "string", "versions": "5+", "nullableVersions": "5+", "default": "null"}
    newer = {**HEARTBEAT, "validVersions": "0-5", "fields": [*HEARTBEAT["fields"], field]}
    (line,) = changes([HEARTBEAT], [newer])
    assert line == (
        "* HeartbeatRequest: validVersions 0-4 -> 0-5; new field rack (string, 5-, nullable 5-); "
        "the broker serves 0-4, the codec has versions 0-4, without rack"
    )


def test_a_field_that_changes_its_type() -> None:
    newer = {**STREAMS, "fields": [{"name": "Epoch", "type": "int64", "versions": "0+"}]}
    (line,) = changes([STREAMS], [newer])
    assert line.startswith("* StreamsGroupMetadataValue: field epoch: int32, 0- -> int64, 0-; the codec has versions 0")


def test_a_tagged_field_of_a_record() -> None:
    newer = {**STREAMS, "fields": [*STREAMS["fields"], NEW_TAG]}
    (line,) = changes([STREAMS], [newer])
    assert line == (
        "* StreamsGroupMetadataValue: new field next (int8, 0-, tag 4 0-); the codec has versions 0, without next"
    )


def test_new_and_removed_messages() -> None:
    unknown = {**HEARTBEAT, "apiKey": 900, "name": "SummonRequest", "validVersions": "0"}
    removed, added = changes([STREAMS], [unknown])
    assert removed.startswith("- StreamsGroupMetadataValue: removed; the codec has versions 0")
    assert added == (
        "+ SummonRequest: new, API 900, request, versions 0, served by broker; "
        "the broker does not serve it (no reason in NOT_SERVED)"
    )
