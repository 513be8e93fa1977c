"""Typed values beside Spark's Kafka source with from_json and from_avro.

    python benchmarks/typed_values.py [--records 2000000] [--rounds 5] [--local 2]

Starts an embedded broker with topics of JSON and Avro values: flat records of ten fields, the same with 1 % malformed
values, and nested records with arrays. Batch reads of both sources to the sink `noop` alternate; every row has the
medians and the ratio of groupsource to Spark's source. On a busy machine compare the processor seconds.
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
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "jobs"), str(HERE)]

from bench.children import processor_seconds  # noqa: E402
from bench.embedded import EmbeddedBroker  # noqa: E402
from bench.spark import KAFKA, OWN, Took, session  # noqa: E402
from bench.topics import Topic, ensure  # noqa: E402
from kafka_jars import SPARK_CONNECTOR, Artifact, UnavailableError, fetch, spark_connector_jars  # noqa: E402

from spark_groupsource.records.encode import Record  # noqa: E402

_NOW = int(time.time() * 1000)
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


class Case(NamedTuple):
    """One row: a shape of `SCHEMAS`, its format, the fields that are read, and the share of malformed values."""

    shape: str
    format: str
    fields: str
    malformed: float = 0.0

    @property
    def topic(self) -> str:
        return f"{self.shape}-{self.format}-{'malformed' if self.malformed else 'good'}"

    def __str__(self) -> str:
        extent = "two fields" if self.fields == TWO else "all fields"
        return f"{self.shape} {self.format}, {extent}" + (f", {self.malformed:.0%} malformed" * bool(self.malformed))


CASES = [
    Case(shape, form, fields, malformed)
    for form in ("json", "avro")
    for shape, fields, malformed in (
        ("flat", DDL["flat"], 0), ("flat", TWO, 0), ("nested", DDL["nested"], 0), ("flat", DDL["flat"], 0.01),
    )
]  # fmt: skip


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

    def make(rng: random.Random, number: int) -> Record:
        value = datum(rng, number, case.shape)
        if case.format == "json":
            data = json.dumps(value).encode()
        else:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, value)
            data = out.getvalue()
        return Record(None, data[:-3] if rng.random() < case.malformed else data, _NOW)

    return Topic(case.topic, records, make)


def frame(spark: Any, source: str, bootstrap_servers: str, case: Case) -> Any:
    """Returns the DataFrame with the decoded value of a topic."""
    from pyspark.sql import functions as f

    reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap_servers)
    reader = reader.option("subscribe", case.topic)
    schema = json.dumps(SCHEMAS[case.shape])
    if source == OWN:
        reader = reader.option("value.format", case.format).option("mode", "PERMISSIVE")
        reader = reader.option("value.schema", schema) if case.format == "avro" else reader
        return reader.schema(f"value struct<{case.fields}>").load()
    loaded = reader.load()
    if case.format == "json":
        return loaded.select(f.from_json(f.col("value").cast("string"), case.fields).alias("value"))
    from pyspark.sql.avro.functions import from_avro

    value = from_avro(loaded["value"], schema, {"mode": "PERMISSIVE"})
    names = [each.split()[0] for each in case.fields.split(", ")] if case.fields == TWO else []
    return loaded.select(*[value[name] for name in names] or [value.alias("value")])


def timed(rows: Any) -> Took:
    begin, spent = time.perf_counter(), processor_seconds()
    rows.write.format("noop").mode("overwrite").save()
    return Took(time.perf_counter() - begin, processor_seconds() - spent)


def jars() -> tuple[list[Path], bool]:
    """Returns the jars of Spark's Kafka source and of from_avro, and whether these exist."""
    found = spark_connector_jars()
    revision = SPARK_CONNECTOR[0].revision
    try:
        avro = fetch(f"spark-avro-{revision}", (Artifact("org.apache.spark", "spark-avro_2.13", revision, True),))
    except UnavailableError:
        return found, False
    return [*found, *sorted(avro.glob("*.jar"))], True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--local", type=int, default=2)
    arguments = parser.parse_args()
    found, has_avro = jars()
    table = Table("values", "groupsource records/s", "kafka records/s", "ratio", "ratio of processor s")
    with tempfile.TemporaryDirectory(prefix="groupsource-benchmark-") as directory:
        broker = EmbeddedBroker(directory)
        try:
            with session(arguments.local, {"spark.jars": ",".join(map(str, found))}) as spark:
                for case in CASES:
                    table.add_row(str(case), *row(spark, broker.bootstrap_servers, case, arguments, has_avro))
        finally:
            broker.kill()
    Console().print(table)


def row(spark: Any, bootstrap_servers: str, case: Case, arguments: argparse.Namespace, has_avro: bool) -> list[str]:
    """Returns the figures of one case."""
    ensure(bootstrap_servers, topic(case, arguments.records))
    sources = (OWN, KAFKA) if case.format == "json" or has_avro else (OWN,)
    took: dict[str, list[Took]] = {source: [] for source in sources}
    for number in range(arguments.rounds + 1):
        for source in sources:
            each = timed(frame(spark, source, bootstrap_servers, case))
            if number:
                took[source].append(each)
    seconds = {source: statistics.median(each.seconds for each in runs) for source, runs in took.items()}
    spent = {source: statistics.median(each.processor_s for each in runs) for source, runs in took.items()}
    figures = [f"{arguments.records / seconds[OWN]:,.0f}"]
    if KAFKA not in seconds:
        return [*figures, "no from_avro", "", ""]
    ratio, processor = seconds[KAFKA] / seconds[OWN], spent[OWN] / spent[KAFKA]
    return [*figures, f"{arguments.records / seconds[KAFKA]:,.0f}", f"{ratio:.2f}", f"{processor:.2f}"]


if __name__ == "__main__":
    main()
