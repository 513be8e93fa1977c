"""Clients of one Spark Connect server: queries, parallelism, Declarative Pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset
import pytest
from support.clusters import Cluster
from support.query_harness import QueryHarness
from support.spark_daemons import connect_server, environment, run_parallelism_job, written_rows
from support.topics import create_topic, produce

from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL

CONNECT_CLIENT = Path(__file__).with_name("connect_client.py")
PARTITIONS, RECORDS = 4, 2_000
PIPELINE = """
name: records
storage: {directory}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATION = """
from pyspark import pipelines
from pyspark.sql import SparkSession

@pipelines.table
def {table}():
    return SparkSession.active().readStream.format("groupsource").options(**{options}).load().select("offset", "value")
"""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(500)]


class Server(NamedTuple):
    """A server of Spark Connect, and the directory of its log and tables."""

    url: str
    directory: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    with connect_server(directory) as url:
        yield Server(url, directory)


def test_client_reads_streams_and_drains(embedded: Any, topic: str, group: str, tmp_path: Path, server: Server) -> None:
    for name in (topic, f"{topic}-copy"):
        create_topic(embedded.bootstrap_servers, name, PARTITIONS)
    produce(embedded.bootstrap_servers, topic, [(n % PARTITIONS, None, b"%04d" % n) for n in range(RECORDS)])
    words = [sys.executable, CONNECT_CLIENT, server.url, embedded.bootstrap_servers, topic, group, tmp_path]
    variables = environment(PYTHONPATH=os.pathsep.join(sys.path))
    client = subprocess.run(list(map(str, words)), env=variables, capture_output=True, text=True, timeout=300)
    assert client.returncode == 0, client.stderr[-3000:]
    found = json.loads(client.stdout.splitlines()[-1])
    assert not found["has_jvm"]
    assert (found["batch"], found["typed"]) == (RECORDS, f"{RECORDS - 1:04d}")
    assert found["written"] == 7
    # a query with a transactional id copies each record once, also those of its second run
    assert found["copied"] == 0
    assert found["query"] == ["connected", "running", group] and found["members"] == 2
    # the drain has committed the last batch, and the query has left the group
    assert found["rows"] == found["committed"] >= 2 * 40 and found["queries_after"] == 0
    positions = sorted((row["partition"], row["offset"]) for row in written_rows(tmp_path))
    assert positions == sorted(set(positions)) and len(positions) == found["rows"]


@pytest.mark.soak
def test_members_follow_the_parallelism_of_the_server(
    embedded: Any, topic: str, group: str, tmp_path: Path, server: Server
) -> None:
    servers, path = embedded.bootstrap_servers, os.pathsep.join(sys.path)
    found = run_parallelism_job(tmp_path, servers, topic, group, [sys.executable], server.url, PYTHONPATH=path)
    assert found == ({"batch": 1, "stream": 2}, None)
    log = (server.directory / "server.log").read_text()
    assert f"[group={group} " in log and "2 members for 8 partitions: spark.master=local[2]." in log


# a pipeline of several runs needs a catalog that outlives its session
@pytest.mark.parametrize("catalog", ["server", pytest.param("hive", marks=pytest.mark.soak)])
def test_a_streaming_table_of_a_pipeline_has_each_record_once(
    embedded: Any, topic: str, group: str, tmp_path: Path, catalog: str, request: pytest.FixtureRequest
) -> None:
    command = Path(sys.executable).with_name("spark-pipelines")
    missing = [name for name in ("pyspark.pipelines", "grpc", "grpc_status", "yaml") if find_spec(name) is None]
    if missing or not command.exists():
        pytest.skip(f"Declarative Pipelines need {', '.join(missing) or 'spark-pipelines'}")
    if catalog == "server":
        server: Server = request.getfixturevalue("server")
        arguments, tables = ["--remote", server.url], server.directory / "tables"
    else:
        arguments, tables = ["--conf", "spark.sql.catalogImplementation=hive"], tmp_path / "spark-warehouse"
    harness = QueryHarness(None, Cluster("embedded", embedded.bootstrap_servers), topic, group, tmp_path)
    options = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    options |= {"startingOffsets": "earliest", "members": "2"}
    table = topic.replace("-", "_")
    (tmp_path / "transformations").mkdir()
    transformation = TRANSFORMATION.format(table=table, options=options)
    (tmp_path / "transformations" / "records.py").write_text(transformation)
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(directory=tmp_path.as_uri()))
    for total in (40, 80):
        harness.produce(40)
        run = subprocess.run(
            [str(command), "run", *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True,
            timeout=250,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        files = sorted(map(str, (tables / table).glob("*.parquet")))
        values = pyarrow.dataset.dataset(files).to_table()["value"].to_pylist()
        assert sorted(map(int, values)) == list(range(total))
        # without admission control, the next run commits the batch
        assert harness.committed() == (total if HAS_ADMISSION_CONTROL else total - 40)
    harness.close()
