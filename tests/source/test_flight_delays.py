"""The job flight_delays: schema file, decoding, SIGTERM during a query."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import fastavro
import flight_delays
import pyarrow
import pyarrow.dataset
import pytest
from child_processes import start_process, stop_process
from click.testing import CliRunner
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.settings import ClientSettings

SCHEMA = Path(__file__).resolve().parents[2] / "conf" / "flights.avsc"
FIELDS = [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}]
RECORD = {"type": "record", "name": "R", "fields": FIELDS}


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "Cannot read schema file .*: No such file or directory"),
        ("{", "is not JSON"),
        ('{"type": "record", "name": "R"}', "must contain an Avro record"),
        ('{"type": "nonsense"}', "is not an Avro schema"),
        ('"int"', "must contain an Avro record. See conf/flights.avsc"),
        ('[{"type": "record", "name": "R", "fields": []}]', "must contain an Avro record"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}]}',
            "field x of type .*array.* Use boolean, int",
        ),
        ('{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]}', "field x of type"),
    ],
)
def test_invalid_schema_file_is_a_one_line_error(tmp_path, text, message):
    path = tmp_path / "schema.avsc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(flight_delays.SchemaFileError, match=message) as caught:
        flight_delays.read_schema(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_invalid_schema_file_ends_the_job_before_spark_starts(tmp_path):
    arguments = ["--bootstrap-servers", "h:1", "--output", "o", "--checkpoint", "c", "--schema", str(tmp_path / "x")]
    result = CliRunner().invoke(flight_delays.main, arguments)
    assert result.exit_code == 1
    expected = f"Error: Cannot read schema file {tmp_path / 'x'}: No such file or directory. Check --schema.\n"
    assert result.output == expected


def test_values_are_decoded_to_columns():
    parsed = fastavro.parse_schema(RECORD)
    values = []
    for row in ({"a": 1, "b": "x"}, {"a": 2, "b": None}):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, row)
        values.append(buffer.getvalue())
    batch = pyarrow.record_batch(
        {"value": values, "topic": ["t", "t"], "partition": pyarrow.array([0, 0], "int32"), "offset": [7, 8]}
    )
    decode = flight_delays.decoder(RECORD, flight_delays.column_types(RECORD, SCHEMA))
    assert [b.to_pylist() for b in decode(iter([batch]))] == [
        [
            {"a": 1, "b": "x", "topic": "t", "partition": 0, "offset": 7},
            {"a": 2, "b": None, "topic": "t", "partition": 0, "offset": 8},
        ]
    ]


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
    [pytest.param("jvm", marks=pytest.mark.soak), "python", "process group"],
)
def test_sigterm_drains_while_records_arrive(embedded, topic, group, tmp_path, target):
    flights = pytest.importorskip("flights")
    values = [f.value for f in islice(flights.encode_flights(flights.load_flights().head(50)), 50)]
    create_topic(embedded.bootstrap_servers, topic, 4)
    settings = ClientSettings.parse({"bootstrap.servers": embedded.bootstrap_servers})
    client = Cluster(settings.bootstrap, settings)
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
    assert events[0]["generation"] >= 1 and len(events[0]["gained"]) == 4 and "text" in events[0]
