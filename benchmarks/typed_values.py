"""Typed values beside Spark's Kafka source with from_json, from_avro and from_protobuf.

    python benchmarks/typed_values.py [--only TEXT] [--records 2000000] [--rounds 5] [--avro-jar FILE] [--document]

Starts an embedded broker with topics of JSON, Avro and Protobuf values: flat records of ten fields, the same with 1 %
malformed values, and nested records with arrays. Batch reads to the sink `noop` alternate; every row is printed as soon
as it is measured, with the medians and the ratio of the rival's seconds to those of groupsource. The rival of a topic
with malformed values is groupsource's read of the good ones. Where from_avro or from_protobuf cannot be downloaded, the
rival reads the same bytes without decoding them, which takes less time than decoding them. On a busy machine compare
the processor seconds. --document writes the rows into benchmarks/README.md, where rows of earlier runs remain.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import tempfile
import time
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any, Mapping, NamedTuple

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "jobs"), str(HERE)]

from bench.embedded import EmbeddedBroker  # noqa: E402
from bench.processor_time import processor_seconds  # noqa: E402
from bench.spark import KAFKA, OWN, Took, session  # noqa: E402
from bench.topics import Topic, ensure  # noqa: E402
from kafka_jars import (  # noqa: E402
    Artifact,
    UnavailableError,
    fetch,
    spark_connector_jars,
    spark_connector_revision,
)

from spark_groupsource.records.encode import Record  # noqa: E402

PAGE = HERE / "README.md"
BEGIN, END = "<!-- typed values: begin -->", "<!-- typed values: end -->"
HEAD = [
    "| values | rival | groupsource, records/s | rival, records/s | ratio | ratio of processor time | goal |",
    "|---|---|---:|---:|---:|---:|---:|",
]
_NOW = 1_700_000_000_000
FLAT = [
    ("id", "long"), ("name", "string"), ("city", "string"), ("amount", "double"), ("quantity", "int"),
    ("is_paid", "boolean"), ("code", "string"), ("latitude", "double"), ("longitude", "double"), ("created", "long"),
]  # fmt: skip
ITEM = {"type": "record", "name": "item", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}
FIELDS = [{"name": name, "type": kind} for name, kind in FLAT]
NESTED = [*FIELDS[:4], {"name": "items", "type": {"type": "array", "items": ITEM}}]
SCHEMAS: dict[str, Any] = {
    "flat": {"type": "record", "name": "flat", "fields": FIELDS},
    "nested": {"type": "record", "name": "nested", "fields": NESTED},
}
DDL = {
    "flat": (
        "id bigint, name string, city string, amount double, quantity int, is_paid boolean, code string, "
        "latitude double, longitude double, created bigint"
    ),
    "nested": "id bigint, name string, city string, amount double, items array<struct<sku: string, n: int>>",
}
TWO = "id bigint, city string"
_MALFORMED = 0.01


class Case(NamedTuple):
    """One row: a shape of `SCHEMAS`, its format, the fields that are read, how values are malformed, and the goal."""

    shape: str
    format: str
    fields: str
    goal: float
    malformed: str = ""

    @property
    def topic(self) -> str:
        return f"{self.shape}-{self.format}-{self.malformed.replace(' ', '-') or 'good'}"

    def __str__(self) -> str:
        extent = "two fields" if self.fields == TWO else "all fields"
        return f"{self.shape} {self.format}, {extent}" + (f", 1 % {self.malformed}" if self.malformed else "")


# 1 % malformed values may cost 10 %
CASES = [
    Case(shape, form, fields, goal, malformed)
    for form in ("json", "avro", "protobuf")
    for shape, fields, goal, malformed in (
        ("flat", DDL["flat"], 2 if form == "protobuf" else 3, ""), ("flat", TWO, 5, ""),
        ("nested", DDL["nested"], 2, ""), ("flat", DDL["flat"], 0.91, "truncated"),
        *([("flat", DDL["flat"], 0.91, "of a wrong type"), ("flat", DDL["flat"], 0.91, "no json")] * (form == "json")),
    )
]  # fmt: skip


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    """Returns the Protobuf messages of both shapes."""
    types = {"long": 3, "string": 9, "double": 1, "int": 5, "boolean": 8}
    file = descriptor_pb2.FileDescriptorProto(name="values.proto", syntax="proto3")
    for shape, names in (("item", [("sku", "string"), ("n", "int")]), ("flat", FLAT), ("nested", FLAT[:4])):
        message = file.message_type.add(name=shape)
        for number, (name, kind) in enumerate(names, 1):
            message.field.add(name=name, number=number, type=types[kind], label=1)
    message.field.add(name="items", number=5, type=11, label=3, type_name=".item")
    return file


def datum(rng: random.Random, number: int, shape: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": number, "name": f"n{rng.randrange(10**6):06}", "city": rng.choice(("Berlin", "Paris", "Rome")),
        "amount": round(rng.random() * 1000, 2),
    }  # fmt: skip
    if shape == "nested":
        return found | {"items": [{"sku": f"s{rng.randrange(999)}", "n": each} for each in range(rng.randrange(5))]}
    return found | {
        "quantity": rng.randrange(100), "is_paid": rng.random() < 0.5, "code": f"c{rng.randrange(10**4):04}",
        "latitude": rng.random(), "longitude": rng.random(), "created": _NOW + number,
    }  # fmt: skip


def topic(case: Case, records: int) -> Topic:
    parsed = fastavro.parse_schema(SCHEMAS[case.shape])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto_file())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(case.shape))

    def encode(value: Mapping[str, Any]) -> bytes:
        if case.format == "json":
            return json.dumps(value).encode()
        if case.format == "protobuf":
            return bytes(message(**value).SerializeToString())
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    def make(rng: random.Random, number: int) -> Record:
        value = datum(rng, number, case.shape)
        data = encode(value)
        if case.malformed and rng.random() < _MALFORMED:
            wrong = encode(value | {"id": "x"}) if case.format == "json" else b""
            data = {"truncated": data[:-3], "of a wrong type": wrong, "no json": b"no json"}[case.malformed]
        return Record(None, data, _NOW)

    return Topic(case.topic, records, make)


def own(spark: Any, bootstrap_servers: str, case: Case) -> Any:
    """Returns the DataFrame with the decoded value by groupsource."""
    reader = spark.read.format(OWN).option("kafka.bootstrap.servers", bootstrap_servers)
    reader = reader.option("subscribe", case.topic).option("value.format", case.format).option("mode", "PERMISSIVE")
    if case.format == "avro":
        reader = reader.option("value.schema", json.dumps(SCHEMAS[case.shape]))
    if case.format == "protobuf":
        files = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()
        reader = reader.option("value.schema", b64encode(files).decode()).option("value.message.name", case.shape)
    return reader.schema(f"value struct<{case.fields}>").load()


def theirs(spark: Any, bootstrap_servers: str, case: Case, available: set[str]) -> Any:
    """Returns the rival's DataFrame with the decoded value."""
    from pyspark.sql import functions as f

    loaded = spark.read.format(KAFKA).option("kafka.bootstrap.servers", bootstrap_servers)
    loaded = loaded.option("subscribe", case.topic).load()
    if case.format == "json":
        return loaded.select(f.from_json(f.col("value").cast("string"), case.fields).alias("value"))
    if case.format not in available:
        return loaded.select("value")
    if case.format == "avro":
        from pyspark.sql.avro.functions import from_avro

        value = from_avro(loaded["value"], json.dumps(SCHEMAS[case.shape]), {"mode": "PERMISSIVE"})
    else:
        from pyspark.sql.protobuf.functions import from_protobuf

        files = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()
        value = from_protobuf(
            loaded["value"], case.shape, options={"mode": "PERMISSIVE"}, binaryDescriptorSet=bytes(files)
        )
    names = [each.split()[0] for each in case.fields.split(", ")] if case.fields == TWO else []
    return loaded.select(*[value[name] for name in names] or [value.alias("value")])


def timed(rows: Any) -> Took:
    begin, spent = time.perf_counter(), processor_seconds()
    rows.write.format("noop").mode("overwrite").save()
    return Took(time.perf_counter() - begin, processor_seconds() - spent)


def jars(given: Mapping[str, Path | None]) -> tuple[list[Path], set[str]]:
    """Returns the jars of Spark's Kafka source and of from_avro and from_protobuf, and which of these exist."""
    found, available = spark_connector_jars(), set[str]()
    revision = spark_connector_revision()
    for name, path in given.items():
        if path:
            found, available = [*found, path], available | {name}
            continue
        artifact = Artifact("org.apache.spark", f"spark-{name}_2.13", revision, True)
        try:
            found = [*found, *sorted(fetch(f"spark-{name}-{revision}", (artifact,)).glob("*.jar"))]
            available.add(name)
        except UnavailableError as error:
            print(f"No from_{name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return found, available


def row(spark: Any, bootstrap_servers: str, case: Case, arguments: argparse.Namespace, available: set[str]) -> str:
    """Measures a case; returns its row of the table."""
    good = case._replace(malformed="")
    for each in dict.fromkeys((case, good)):
        ensure(bootstrap_servers, topic(each, arguments.records))
    if case.malformed:
        rival, other = "groupsource, no malformed values", partial(own, spark, bootstrap_servers, good)
    else:
        is_decoded = case.format == "json" or case.format in available
        rival = f"from_{case.format}" if is_decoded else "kafka, not decoded"
        other = partial(theirs, spark, bootstrap_servers, case, available)
    loads = partial(own, spark, bootstrap_servers, case), other
    pairs: list[tuple[Took, Took]] = []
    for number in range(arguments.rounds + 1):
        # a DataFrame that is read again has its partitions already, and the second read finds a warmer JVM
        took = {which: timed(loads[which]()) for which in ((0, 1) if number % 2 else (1, 0))}
        # the first round warms up
        pairs += [(took[0], took[1])] if number else []
    rates = [arguments.records / statistics.median(each.seconds for each in runs) for runs in zip(*pairs)]
    ratio = statistics.median(b.seconds / a.seconds for a, b in pairs)
    spent = statistics.median(b.processor_s / a.processor_s for a, b in pairs)
    return f"| {case} | {rival} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} | {spent:.2f} | {case.goal} |"


def document(line: str) -> None:
    """Writes a row into the page, in place of that of the same values."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    section, _, after = rest.partition(END)
    rows = {each.split(" | ")[0]: each for each in section.splitlines() if each.startswith("| ") and each != HEAD[0]}
    rows[line.split(" | ")[0]] = line
    order = [f"| {case}" for case in CASES]
    listed = [rows[name] for name in order if name in rows]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *HEAD, *listed, "", f"{END}{after}"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure the rows whose name has this text")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--local", type=int, default=2)
    parser.add_argument("--avro-jar", type=Path, help="the jar of from_avro, if it cannot be downloaded")
    parser.add_argument("--protobuf-jar", type=Path, help="the jar of from_protobuf, if it cannot be downloaded")
    parser.add_argument("--document", action="store_true", help="write the rows into benchmarks/README.md")
    arguments = parser.parse_args()
    found, available = jars({"avro": arguments.avro_jar, "protobuf": arguments.protobuf_jar})
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        broker = EmbeddedBroker(directory)
        try:
            with session(arguments.local, {"spark.jars": ",".join(map(str, found))}) as spark:
                print("\n".join(HEAD), flush=True)
                for case in (case for case in CASES if arguments.only in str(case)):
                    line = row(spark, broker.bootstrap_servers, case, arguments, available)
                    print(line, flush=True)
                    if arguments.document:
                        document(line)
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
