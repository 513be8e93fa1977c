"""Readers after the driver was killed or its SparkContext stopped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import Cluster
from support.query_harness import QueryHarness
from support.waiting import wait_until

from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.net import Address, listen
from spark_groupsource.source.process import driver_monitor
from spark_groupsource.source.process.driver_monitor import DriverMonitor, context_directories

# waits to join a group at a broker that accepts connections and does not respond
READER = """
import sys
from pyspark import SparkFiles
from spark_groupsource.source.process.reader_process import ReaderProcess
from spark_groupsource.source.options.option_parser import parse_options

SparkFiles._root_directory, SparkFiles._is_running_on_worker = sys.argv[3], True
options = {"kafka.bootstrap.servers": sys.argv[1], "kafka.group.id": "g", "subscribe": "t", "members": "1"}
reader = ReaderProcess(parse_options(options, "stream"), int(sys.argv[2]))
print("waiting", flush=True)
try:
    while True:
        try:
            reader.session()
        except Exception as error:
            print(error)
finally:
    reader.stop()
"""

# as notebooks do: the next session starts while the query of the previous one runs
NOTEBOOK = """
import sys
from spark_groupsource import register
from pyspark.sql import SparkSession

servers, topic, group, directory = sys.argv[1:]
for _ in range(2):
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    options = {"kafka.bootstrap.servers": servers, "kafka.group.id": group, "subscribe": topic, "members": "2"}
    stream = spark.readStream.format("groupsource").options(startingOffsets="earliest", **options).load()
    writer = stream.selectExpr("cast(value as string)").writeStream.option("checkpointLocation", directory + "/check")
    query = writer.start(directory + "/rows", "text")
    sys.stdin.readline()
    spark.stop()
    print("stopped", flush=True)
"""


@pytest.mark.parametrize(
    "end_application, log_line",
    [
        (lambda driver, files: (driver.kill(), driver.wait()), "Spark driver exited; leaving the group."),
        (lambda driver, files: files.rmdir(), "SparkContext stopped but its query did not; leaving the group."),
    ],
)
def test_reader_that_waits_for_a_broker_exits_with_its_application(tmp_path, end_application, log_line):
    files = tmp_path / "userFiles-1"
    files.mkdir()
    with listen(Address("127.0.0.1", 0)) as listener:
        driver = subprocess.Popen(["sleep", "600"])
        servers = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-c", READER, servers, str(driver.pid), str(files / "streaming_job")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
            try:
                assert reader.stdout.readline() == "waiting\n"
                end_application(driver, files)
                wait_until(lambda: reader.poll() is not None, "the reader ends", 30)
                assert log_line in reader.stderr.read()
                assert reader.returncode == 0
            finally:
                driver.kill()
                driver.wait()
                reader.kill()


def test_context_has_stopped_when_all_its_directories_are_deleted(tmp_path):
    files, blocks, clock = tmp_path / "userFiles-1", tmp_path / "blockmgr-1", ManualClock()
    files.mkdir()
    blocks.mkdir()
    monitor = DriverMonitor(os.getpid(), [files, blocks, tmp_path / "never-made"], clock)
    os.utime(files, (0, 0))
    assert monitor.is_driver_alive and not monitor.is_context_stopped
    assert files.stat().st_mtime > 0  # touched, so that a cleaner of /tmp keeps it
    os.utime(files, (0, 0))
    assert not monitor.is_context_stopped and files.stat().st_mtime == 0
    clock.advance_ms(3_600_000)
    assert not monitor.is_context_stopped and files.stat().st_mtime > 0
    files.rmdir()
    assert not monitor.is_context_stopped  # a cleaner has removed one of them
    blocks.rmdir()
    assert monitor.is_context_stopped
    # without directories the state is unknown
    assert not DriverMonitor(os.getpid(), [files, blocks]).is_context_stopped


def test_driver_has_exited_when_another_process_has_its_id(monkeypatch):
    identities, real = iter(["driver", "driver", "another process"]), driver_monitor.process_identity
    # a reader of an earlier test may still look at the process of the tests
    monkeypatch.setattr(driver_monitor, "process_identity", lambda pid: next(identities) if pid < 0 else real(pid))
    monitor = DriverMonitor(-1)
    assert monitor.is_driver_alive
    assert not monitor.is_driver_alive


def test_only_directories_of_the_context_are_watched(tmp_path, monkeypatch):
    blocks = tmp_path / "blockmgr-1"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{blocks},{tmp_path}")
    assert context_directories() == [blocks]
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert context_directories() == []


@pytest.mark.spark
def test_members_leave_when_the_session_stops_without_its_query(embedded, topic, group, tmp_path):
    harness = QueryHarness(None, Cluster("embedded", embedded.bootstrap_servers), topic, group, tmp_path)
    harness.produce(40)
    command = [sys.executable, "-c", NOTEBOOK, embedded.bootstrap_servers, topic, group, str(tmp_path)]
    # not the environment of an activated installation: the import of the package chooses the interpreter
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != Path(sys.executable).parent)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": path}
    environment.pop("PYSPARK_PYTHON", None)
    with open(tmp_path / "log", "w") as log, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    ) as notebook:
        try:
            for _ in range(2):
                harness.wait_committed(120)
                notebook.stdin.write("stop\n")
                notebook.stdin.flush()
                assert notebook.stdout.readline() == "stopped\n"
                wait_until(lambda: not harness.members(), "the members have left", 30)
                harness.produce(20)
        finally:
            notebook.kill()
            harness.close()
    written = [line for path in Path(tmp_path, "rows").glob("*.txt") for line in path.read_text().split()]
    assert sorted(map(int, written)) == list(range(60))
    log = (tmp_path / "log").read_text()
    assert f"its members have left group {group}" in log and "Traceback" not in log
