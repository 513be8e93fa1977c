"""Comparison of the message schemas of two releases of Kafka.

The jars of Kafka contain its JSON schemas (``common/message``): requests and responses in kafka-clients, the records of
``__consumer_offsets`` in kafka-group-coordinator, those of ``__transaction_state`` in kafka-transaction-coordinator.

    PYTHONPATH=jobs:tests python tests/wire/compare_releases.py 4.3.0 4.4.0

The jars are downloaded on first use. Each line has what the newer release adds, changes or lacks, and at its end what
this package has of it: the versions that the embedded broker serves, and those of the codec with the fields it lacks.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka_jars import Artifact, UnavailableError, fetch

from spark_groupsource.broker.api.served_versions import NOT_SERVED, SERVED
from spark_groupsource.wire import messages
from spark_groupsource.wire.record_json import RECORD_TYPES, modern_record_classes
from spark_groupsource.wire.schemas import Field, Schema, parse_schema

# artifact -> the part of the product that reads its messages; other jars have the schemas of controllers and of storage
ARTIFACTS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")
_API_TYPES = ("request", "response")
_DIRECTORY = "common/message/"
_COMMENT = re.compile(r"(?m)^\s*//.*$")

Schemas = Mapping[str, Mapping[str, Any]]


def schemas_of(release: str) -> dict[str, dict[str, Any]]:
    """Returns the JSON schemas of a release by name, downloaded if necessary. Raises: UnavailableError."""
    found = {}
    artifacts = tuple(Artifact("org.apache.kafka", name, release, intransitive=True) for name in ARTIFACTS)
    for jar in sorted(fetch(f"kafka-schemas-{release}", artifacts).glob("*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith(_DIRECTORY) and name.endswith(".json"):
                    schema = json.loads(_COMMENT.sub("", archive.read(name).decode()))
                    # an API that was removed keeps its number only
                    found[schema["name"]] = _complete({"flexibleVersions": "none", "fields": [], **schema})
    return found


def _complete(found: Any) -> Any:
    """Adds the versions of fields that name only those in which they are tagged."""
    if isinstance(found, list):
        return [_complete(each) for each in found]
    if not isinstance(found, dict):
        return found
    given = {"versions": found["taggedVersions"]} if "taggedVersions" in found else {}
    return {**given, **{name: _complete(each) for name, each in found.items()}}


def differences(old: Schemas, new: Schemas) -> Iterator[str]:
    """Yields a line for each added, changed and removed message."""
    for name in sorted(new.keys() | old.keys()):
        if name not in old:
            yield f"+ {name}: new, {_about(new[name])}; {served(new[name])}"
        elif name not in new:
            yield f"- {name}: removed; {served(old[name])}"
        else:
            changes = list(_changes(old[name], new[name]))
            if changes:
                yield f"* {name}: {'; '.join(changes)}; {served(new[name])}"


def _about(schema: Mapping[str, Any]) -> str:
    kind = "API" if schema["type"] in _API_TYPES else "record type"
    key = f"{kind} {schema['apiKey']}, " if "apiKey" in schema else ""
    listeners = f", served by {' and '.join(schema['listeners'])}" if "listeners" in schema else ""
    return f"{key}{schema['type']}, versions {schema['validVersions']}{listeners}"


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for setting in ("validVersions", "flexibleVersions", "listeners", "apiKey", "latestVersionUnstable"):
        if old.get(setting) != new.get(setting):
            yield f"{setting} {old.get(setting)} -> {new.get(setting)}"
    before, after = _fields(old), _fields(new)
    for path in sorted(before.keys() | after.keys()):
        if path not in before:
            yield f"new field {path} ({after[path]})"
        elif path not in after:
            yield f"field {path} removed"
        elif before[path] != after[path]:
            yield f"field {path}: {before[path]} -> {after[path]}"


def _fields(schema: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields by path, with what is encoded: type, versions, null, tag and default."""

    def walk(fields: Sequence[Field], prefix: str) -> Iterator[tuple[str, str]]:
        for field in fields:
            path = prefix + field.json_name
            parts = ["[]" * field.is_array + field.type, _range(field.versions)]
            parts += [f"nullable {_range(field.nullable)}"] if field.nullable else []
            parts += [f"tag {field.tag} {_range(field.tagged)}"] if field.tag is not None else []
            parts += [f"default {field.default!r}"] if field.default not in (0, "", b"", False, None, ()) else []
            yield path, ", ".join(parts)
            yield from walk(field.fields or (), path + ".")

    return dict(walk(parse_schema(schema).fields, ""))


def _range(versions: range) -> str:
    last = versions.stop - 1
    return str(versions.start) if last == versions.start else f"{versions.start}-{last if last < 32_767 else ''}"


def served(schema: Mapping[str, Any]) -> str:
    """Returns what this package has of a message."""
    name = schema["name"]
    # the records of coordinators have their type there
    key = schema.get("apiKey") if schema["type"] in _API_TYPES else None
    parts = []
    if key is not None and key in SERVED:
        first, last = SERVED[key].min_version, SERVED[key].max_version  # type: ignore[index]
        parts.append(f"the broker serves {first}-{last}")
    elif key is not None:
        parts.append(f"the broker does not serve it ({NOT_SERVED.get(key, 'no reason in NOT_SERVED')})")
    own = own_schema(name)
    if own is not None:
        missing = sorted(set(_fields(schema)) - set(_own_fields(own)))
        parts.append(f"the codec has versions {_range(own.versions)}")
        parts += [f"without {', '.join(missing)}"] if missing else []
    elif key is None:
        parts.append("not decoded")
    return ", ".join(parts)


def own_schema(name: str) -> Schema | None:
    """Returns the schema of this package, None if it has none."""
    modern = {f"{RECORD_TYPES[kind]}{part}": each for kind, pair in modern_record_classes().items()
              for part, each in zip(("Key", "Value"), pair)}  # fmt: skip
    found: Any = modern.get(name) or getattr(messages, name, None)
    return None if found is None else found.SCHEMA  # type: ignore[no-any-return]


def _own_fields(schema: Schema) -> Iterator[str]:
    def walk(fields: Sequence[Field], prefix: str) -> Iterator[str]:
        for field in fields:
            yield prefix + field.json_name
            yield from walk(field.fields or (), f"{prefix}{field.json_name}.")

    return walk(schema.fields, "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the message schemas of two releases of Kafka.")
    parser.add_argument("old", help="for example 4.3.0")
    parser.add_argument("new", help="for example 4.4.0")
    options = parser.parse_args(arguments)
    try:
        old, new = schemas_of(options.old), schemas_of(options.new)
    except UnavailableError as error:
        print(f"compare_releases: {error}", file=sys.stderr)
        return 1
    for line in differences(old, new):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
