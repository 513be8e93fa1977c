"""Random Avro values beside a second reader and fastavro."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pyarrow as pa
from support.avro_paths import check_paths, check_written
from support.avro_reference import InvalidError, Reader
from support.random_avro import RandomAvro

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.arrow_types import arrow_type
from spark_groupsource.values.avro.avro_blocks import AvroDecoder
from spark_groupsource.values.avro.avro_expansion import ExpansionRules, expanded
from spark_groupsource.values.avro.avro_resolution import UnresolvedError
from spark_groupsource.values.avro.avro_schema import parse_avro_schema
from spark_groupsource.values.avro.avro_types import spark_type


def check_random_schema(rng: random.Random, count: int = 12) -> str:
    """Checks values of one random schema and of another reader; returns what was checked.

    Raises: AssertionError, with the schemas and the bytes.
    """
    source = RandomAvro(rng)
    schema = source.record(rng.randrange(1, 5))
    data = [source.encoded(schema) for _ in range(count)]
    valid = set(data)
    data += [source.damaged(rng.choice(data)) for _ in range(count)]
    depth = rng.choice([-1, 2, 3])
    try:
        found = _check_same(schema, data, valid, depth)
        return f"{found}, {_check_resolved(schema, source.reader(schema), data, depth)}"
    except Exception as error:
        raise AssertionError(f"{json.dumps(schema)}: {type(error).__name__} {error}") from error


def check_random_text(rng: random.Random) -> None:
    """Parses a random schema whose text was damaged: it is a schema, or an error that names the option.

    Raises: AssertionError, with the text.
    """
    schema = RandomAvro(rng).record(rng.randrange(1, 5))
    text = json.dumps(_damaged(rng, schema))
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(['"', "{", "}", "[", "]", ",", "//", "/*", "\\ud800", "\x00"]) + text[at + 1 :]
    try:
        avro = parse_avro_schema("Option value.schema", text)
        kind = arrow_type(spark_type(expanded(avro, ExpansionRules("value", rng.choice([-1, 2, 3]))).type), "value")
        data = pa.array([rng.randbytes(rng.randrange(20)) for _ in range(20)], pa.binary())
        found = AvroDecoder(avro, avro, kind).decode(data)
        found.values.validate(full=True)
    except (ConfigurationError, UnresolvedError) as error:
        assert "value" in str(error) and "\n" not in str(error), error
    except Exception as error:
        raise AssertionError(f"{text}: {type(error).__name__} {error}") from error


def _damaged(rng: random.Random, schema: Any) -> Any:
    """Returns JSON in which some parts are others."""
    if rng.random() < 0.03:
        names = ["int", "string", "null", "n1", "n2", "Other", "record", ""]
        return rng.choice([None, True, -1, 10**30, 1.5, [], {}, "\ud800", [[]], {"type": "enum"}, *names])
    if isinstance(schema, list):
        return [_damaged(rng, each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _damaged(rng, each) for name, each in schema.items() if rng.random() > 0.02}


def _kind(schema: Any, depth: int) -> pa.DataType:
    avro = parse_avro_schema("Option value.schema", json.dumps(schema))
    return arrow_type(spark_type(expanded(avro, ExpansionRules("value", depth)).type), "value")


def _check_same(schema: Any, data: list[bytes], valid: set[bytes], depth: int) -> str:
    kind = _kind(schema, depth)
    avro = parse_avro_schema("Option value.schema", json.dumps(schema))
    parts = [kind, *(pa.struct([field]) for field in kind), pa.struct([])]
    parsed = fastavro.parse_schema(without_logical_types(schema))
    for part in parts:
        found = check_paths(avro, avro, part, data)
        check_written(json.dumps(schema), avro, part, data, found)
        reader = Reader(schema, part)
        for value, (text, reason) in zip(data, found):
            try:
                expected = repr(reader.value(value))
            except InvalidError as error:
                assert reason is not None, f"{value.hex()} is {text}, and invalid: {error}"
            else:
                assert (text, reason) == (expected, None), f"{value.hex()} is {text} ({reason}), not {expected}"
            if value in valid and part is kind:
                fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
    return "read"


def _check_resolved(schema: Any, other: Any, data: list[bytes], depth: int) -> str:
    writer, reader = (parse_avro_schema("Option value.schema", json.dumps(each)) for each in (schema, other))
    try:
        kind = _kind(other, depth)
        found = check_paths(writer, reader, kind, data)
        check_written(json.dumps(schema), reader, kind, data, found)
    except (UnresolvedError, ConfigurationError):
        return "reader does not fit"
    except Exception as error:
        raise AssertionError(f"as {json.dumps(other)}: {error}") from error
    return "read as another schema" if any(reason is None for _, reason in found) else "no value fits the reader"


def without_logical_types(schema: Any) -> Any:
    """Returns a schema whose values fastavro reads as they are written."""
    return json.loads(json.dumps(schema).replace('"logicalType"', '"ignored"'))
