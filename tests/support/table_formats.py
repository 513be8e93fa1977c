"""Delta Lake and Iceberg for the installed PySpark: jars, settings, reading.

Each format is built for one release of Spark. As a script, prints the rows of a table as JSON, one a line:

    python tests/support/table_formats.py TABLE
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
from kafka_jars import Artifact, fetch

SPARK = ".".join(pyspark.__version__.split(".")[:2])
_DELTA = {"4.0": "4.4.0", "4.1": "4.4.0", "4.2": "4.4.0"}
_ICEBERG = {"4.0": "1.11.0", "4.1": "1.12.0"}
# what `delta-spark` needs beside the jars of Spark
_DELTA_MODULES = ("delta-storage", "delta-kernel-api", "delta-kernel-defaults", "delta-kernel-unitycatalog")
_UNITY_CATALOG = ("unitycatalog-client", "unitycatalog-hadoop")
FORMATS = ("delta", "iceberg")
_READ_TIMEOUT_S = 120


def missing_format(table_format: str) -> str | None:
    """Returns why the format does not run on the installed Spark; None if it does."""
    versions = _DELTA if table_format == "delta" else _ICEBERG
    return None if SPARK in versions else f"{table_format} has no release for Spark {SPARK}"


def table_jars(table_format: str) -> list[Path]:
    """The jars of the format for the installed PySpark, downloaded on first use."""
    if table_format == "iceberg":
        name, version = f"iceberg-spark-runtime-{SPARK}_2.13", _ICEBERG[SPARK]
        found = [Artifact("org.apache.iceberg", name, version, intransitive=True)]
    else:
        name, version = f"delta-spark_{SPARK}_2.13", _DELTA[SPARK]
        found = [Artifact("io.delta", each, version, intransitive=True) for each in (name, *_DELTA_MODULES)]
        found += [Artifact("io.unitycatalog", each, "0.6.0", intransitive=True) for each in _UNITY_CATALOG]
    return sorted(fetch(f"{name}-{version}", tuple(found)).glob("*.jar"))


def submit_arguments(table_format: str, warehouse: Path) -> str:
    """The variable PYSPARK_SUBMIT_ARGS of a process whose session has the format; Iceberg's catalog is ``lake``."""
    if table_format == "iceberg":
        settings = {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(warehouse),
        }
    else:
        settings = {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # each batch reads the log of the table in 50 tasks otherwise
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    settings |= {
        "spark.jars": ",".join(map(str, table_jars(table_format))),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    return " ".join(["--master local[2]", *(f"--conf {k}={v}" for k, v in settings.items()), "pyspark-shell"])


def table_options(table_format: str, warehouse: Path) -> list[str]:
    """The options of ``write_table.py`` for a table of the format."""
    if table_format == "iceberg":
        return ["--format", "iceberg", "--table", "lake.db.written"]
    return ["--format", "delta", "--table", "written", "--location", str(warehouse / "written")]


def rows_of_table(table_format: str, warehouse: Path, environment: dict[str, str]) -> list[dict[str, object]]:
    """The rows of the table of `table_options`, read in a process of its own."""
    table = "lake.db.written" if table_format == "iceberg" else f"delta.`{warehouse / 'written'}`"
    environment = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, __file__, table], env=environment, capture_output=True, text=True, timeout=_READ_TIMEOUT_S
    )
    assert run.returncode == 0, run.stderr[-3_000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def main(table: str) -> None:
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = SparkSession.builder.getOrCreate()
    for line in spark.table(table).toJSON().collect():
        print(line)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
