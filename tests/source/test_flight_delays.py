"""The job flight_delays: schema file, decoding, SIGTERM during a query."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import flight_delays
import pyarrow.dataset
import pytest
from child_processes import start_process, stop_process
from click.testing import CliRunner
from schema_registry import SchemaRegistryServer
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

SCHEMA = Path(__file__).resolve().parents[2] / "conf" / "flights.avsc"


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "Reading the schema of option value.schema failed: .*No such file or directory"),
        ("{", "Option value.schema is no Avro schema"),
        ('{"type": "record", "name": "R"}', "record R has no list of fields"),
        ('{"type": "nonsense"}', "type nonsense is not defined"),
    ],
)
def test_invalid_schema_file_ends_the_job_before_spark_starts(tmp_path, text, message):
    path = tmp_path / "schema.avsc"
    if text is not None:
        path.write_text(text)
    arguments = ["--bootstrap-servers", "h:1", "--output", "o", "--checkpoint", "c", "--schema", str(path)]
    result = CliRunner().invoke(flight_delays.main, arguments)
    assert result.exit_code == 1 and re.search(message, result.stderr), result.stderr
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_schema_of_a_registry(tmp_path):
    arguments = ["--bootstrap-servers", "h:1", "--output", "o", "--checkpoint", str(tmp_path)]
    with SchemaRegistryServer() as registry:
        result = CliRunner().invoke(flight_delays.main, [*arguments, "--schema-registry", registry.url])
    assert "the registry has no version of subject flights-value" in result.stderr
    options = flight_delays.avro_options(None, "http://r:1", tmp_path)
    assert options["checkpointLocation"] == str(tmp_path)


def test_error_of_spark_is_reduced_to_its_cause():
    text = "[STREAM_FAILED] x\nTraceback\nspark_groupsource.errors.ConfigurationError: topic t is not there\n z"
    assert flight_delays.cause_line(Exception(text)) == "topic t is not there"
    assert flight_delays.cause_line(Exception("\nother\nmore")) == "other"


class Job:
    """A running job of two members."""

    def __init__(self, bootstrap_servers, topic, group, directory):
        self.output, self.log, self.rebalances = directory / "out", directory / "log", directory / "rebalances"
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        job = Path(flight_delays.__file__)
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", "--name", "the job"]
        command += ["--conf", "spark.ui.enabled=false", str(job), "--bootstrap-servers", bootstrap_servers]
        command += ["--topic", topic, "--group", group, "--members", "2", "--schema", str(SCHEMA)]
        command += ["--output", str(self.output), "--checkpoint", str(directory / "checkpoint")]
        command += ["--rebalance-log", str(self.rebalances), "--trigger", "200 milliseconds"]
        with open(self.log, "w") as log:
            self.process = start_process(command, log, subprocess.STDOUT, environment)

    def python_pid(self):
        output = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
        rows = [line.split(None, 2) for line in output.stdout.splitlines()]
        children = [(pid, args) for pid, parent, args in rows if int(parent) == self.process.pid]
        return next(int(pid) for pid, args in children if "flight_delays" in args)

    def terminate(self, target):
        """Sends SIGTERM as kill does, or as timeout and service managers do: to every process of the job's group."""
        if target == "process group":
            os.killpg(self.process.pid, signal.SIGTERM)
        else:
            os.kill(self.process.pid if target == "jvm" else self.python_pid(), signal.SIGTERM)

    def positions(self):
        table = pyarrow.dataset.dataset(self.output, format="parquet").to_table(columns=["partition", "offset"])
        return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist()))


@pytest.mark.spark
@pytest.mark.parametrize(
    "target",
    # test_spark_clusters.py stops a job by SIGTERM to its JVM
    [*(pytest.param(each, marks=pytest.mark.soak) for each in ("jvm", "python")), "process group"],
)
def test_sigterm_drains_while_records_arrive(embedded, topic, group, tmp_path, target):
    flights = pytest.importorskip("flights")
    values = [f.value for f in islice(flights.encode_flights(flights.load_flights().head(50)), 50)]
    create_topic(embedded.bootstrap_servers, topic, 4)
    settings = ClientSettings.parse({"bootstrap.servers": embedded.bootstrap_servers})
    client = ClusterClient(settings.bootstrap, settings)
    ended = threading.Event()

    def feed():
        while not ended.wait(0.05):
            produce(embedded.bootstrap_servers, topic, [(n % 4, None, value) for n, value in enumerate(values)])

    def committed():
        found = client.fetch_committed(group)
        return {p.partition: c.offset for p, c in found.items() if c is not None}

    job = Job(embedded.bootstrap_servers, topic, group, tmp_path)
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        wait_until(lambda: sum(committed().values()) > 300, "the job commits", 120)
        job.terminate(target)
        wait_until(lambda: job.process.poll() is not None, "the job ends", 60)
    finally:
        ended.set()
        feeder.join()
        stop_process(job.process, 5)
        positions = committed()
        client.close()
    log = job.log.read_text()
    assert job.process.returncode in ((0,) if target == "python" else (143, -15)), log
    # Spark's worker daemon logs broken pipes when it exits; there must be no other errors
    assert "Py4J" not in log and "StreamingQueryException" not in log and "shutdown-hook" not in log
    # the written records are the committed ones: nothing is lost, nothing will be read again
    assert job.positions() == [(p, n) for p, end in sorted(positions.items()) for n in range(end)]
    events = [json.loads(line) for line in job.rebalances.read_text().splitlines()]
    # the first rebalance may leave a member without partitions that joins before the others
    gained = {partition for event in events for partition in event.get("gained", ())}
    assert events[0]["generation"] >= 1 and len(gained) == 4 and "text" in events[0]
