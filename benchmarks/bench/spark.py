"""Spark sessions with both sources, timed reads, and comparison of rows."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from bench.processor_time import processor_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

from kafka_jars import spark_connector_jars  # noqa: E402

OWN, KAFKA, CEILING = "groupsource", "kafka", "ceiling"
RIVAL_NAMES = {KAFKA: "Spark's Kafka source", CEILING: "the ceiling"}


class Took(NamedTuple):
    """Wall seconds, and processor seconds of the JVM and its Python processes."""

    seconds: float
    processor_s: float


class Read(NamedTuple):
    """A batch read of a topic; `columns` empty for all."""

    topic: str
    columns: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    ceiling: Mapping[str, str] = {}


@contextmanager
def session(cores: int, settings: Mapping[str, str] = {}) -> Iterator[Any]:
    """Yields a Spark session on local[`cores`]."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(str(jar) for jar in spark_connector_jars()))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def register_ceiling(spark: Any) -> None:
    # it loads the decoder, which the other sources do not need in this process
    from bench.ceiling import CeilingSource

    spark.dataSource.register(CeilingSource)


def frame(spark: Any, source: str, bootstrap_servers: str, read: Read) -> Any:
    """Returns the DataFrame of a read by one of the sources."""
    if source == CEILING:
        register_ceiling(spark)
        loaded = spark.read.format(CEILING).options(**read.ceiling)
    else:
        loaded = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap_servers)
        loaded = loaded.option("subscribe", read.topic).options(**read.options)
    if read.columns and source != KAFKA:
        types = {"value": "value binary", "offset": "offset long", "key": "key binary"}
        loaded = loaded.schema(", ".join(types[name] for name in read.columns))
    found = loaded.load()
    return found.select(*read.columns) if read.columns else found


def timed(spark: Any, source: str, bootstrap_servers: str, read: Read) -> Took:
    """Reads to the sink `noop`."""
    rows = frame(spark, source, bootstrap_servers, read)
    begin, spent = time.perf_counter(), processor_seconds()
    rows.write.format("noop").mode("overwrite").save()
    return Took(time.perf_counter() - begin, processor_seconds() - spent)


def digest(spark: Any, source: str, bootstrap_servers: str, read: Read) -> tuple[Any, ...]:
    """Returns the number of rows, and a sum of hashes of each column and of whole rows."""
    from pyspark.sql import functions as f

    rows = frame(spark, source, bootstrap_servers, read)
    sums = [f.sum(f.pmod(f.xxhash64(rows[name]), f.lit(1_000_000_007))) for name in rows.columns]
    whole = f.sum(f.pmod(f.xxhash64(*rows.columns), f.lit(1_000_000_007)))
    return tuple(rows.agg(f.count(f.lit(1)), whole, *sums).first())


def check_same_rows(spark: Any, bootstrap_servers: str, read: Read) -> None:
    """Raises: RuntimeError if the two sources read different rows."""
    own, other = (digest(spark, source, bootstrap_servers, read) for source in (OWN, KAFKA))
    if own != other:
        raise RuntimeError(f"topic {read.topic}: {OWN} read {own}, {KAFKA} read {other}")
