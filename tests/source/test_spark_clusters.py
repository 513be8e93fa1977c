"""Query on Spark clusters: standalone, ``local-cluster``, Spark Connect."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset
import pytest
from child_processes import start_process, stop_process
from support.spark_homes import SPARK_HOME, linked_home
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

JOB = Path(__file__).with_name("cluster_job.py")
PARALLELISM_JOB = JOB.with_name("parallelism_job.py")
SPECULATION_JOB = JOB.with_name("speculation_job.py")
CONNECT_CLIENT = JOB.with_name("connect_client.py")
PARTITIONS, RECORDS = 4, 2_000
# records of one batch: the job is stopped before the end of the topic
MIN_COMMITTED = 160
PID_NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]


def environment(**settings):
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        **settings,
    }


class Daemon:
    """A Spark process and its log."""

    def __init__(self, log, *command, **settings):
        self.log = log
        words = [str(part) for part in command]
        with open(log, "w") as out:
            self.process = start_process(words, out, subprocess.STDOUT, environment(**settings))

    def wait_for(self, pattern, timeout_s=60):
        def found():
            match = re.search(pattern, self.log.read_text())
            assert match or self.process.poll() is None, self.log.read_text()[-2000:]
            return match

        return wait_until(found, f"{pattern} in {self.log.name}", timeout_s, 0.1).group(1)


def in_container(directory, command, *namespaces):
    """Returns a command in namespaces of its own, for which all but `directory` is read-only."""
    read_only = f"mount --bind {directory} {directory} && mount -o remount,bind,ro /"
    return ["unshare", "--mount", *namespaces, "sh", "-c", f"{read_only} && exec {shlex.join(map(str, command))}"]


def can_isolate():
    try:
        return subprocess.run([*in_container("/mnt", ["true"], *PID_NAMESPACE)], capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def standalone(directory, in_containers=False, hosts=("127.0.0.1", "127.0.0.1")):
    """Yields the URL of a master with two workers of one core each."""
    spark_class = SPARK_HOME / "bin" / "spark-class"
    daemons = []

    def start(name, role, *arguments, host="127.0.0.1"):
        command = (f"org.apache.spark.deploy.{role}", "--host", host, "--webui-port", "0", *arguments)
        # as on machines of their own: no directory for temporary files is shared
        temporary = directory / f"{name}-tmp"
        temporary.mkdir()
        settings = {"SPARK_HOME": SPARK_HOME, "TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary}
        settings = {key: str(value) for key, value in settings.items()}
        words = [spark_class, *command]
        if in_containers and role.startswith("worker"):
            words = in_container(directory, words, *PID_NAMESPACE)
            settings["JAVA_TOOL_OPTIONS"] = f"-Djava.io.tmpdir={temporary}"
        daemons.append(Daemon(directory / f"{name}.log", *words, **settings))
        return daemons[-1]

    try:
        master = start("master", "master.Master", "--port", "0").wait_for(r"Starting Spark master at (spark://\S+)")
        for n, host in enumerate(hosts, 1):
            resources = ("--cores", "1", "--memory", "1g", "--work-dir", directory / f"worker-{n}")
            start(f"worker-{n}", "worker.Worker", *resources, master, host=host)
        for worker in daemons[1:]:
            worker.wait_for("Successfully registered with (master)")
        yield master
    finally:
        for daemon in reversed(daemons):
            # unshare ignores SIGTERM while it waits for its child
            stop_process(daemon.process, 0 if in_containers else 20)


def submit(directory, master, *arguments, in_containers=False, job=JOB, conf=(), **settings):
    command = [Path(sys.executable).parent / "spark-submit", "--master", master, "--driver-memory", "512m"]
    # the environment has the options of short-lived JVMs for the driver alone
    options = f"executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"
    for setting in ("ui.enabled=false", "cores.max=2", "executor.cores=1", "executor.memory=512m", options, *conf):
        command += ["--conf", f"spark.{setting}"]
    command += [job, *arguments, directory]
    if in_containers:
        command = in_container(directory, command)
    return Daemon(directory / "job.log", *command, **settings)


def rows(directory):
    return pyarrow.dataset.dataset(directory / "rows", format="parquet").to_table().to_pylist()


def run_drained(directory, master, servers, topic, group, **settings):
    """Runs the job, stops it by SIGTERM, and checks that it has written the committed records, each once."""
    create_topic(servers, topic, PARTITIONS)
    produce(servers, topic, [(n % PARTITIONS, None, b"%d" % n) for n in range(RECORDS)])
    client_settings = ClientSettings.parse({"bootstrap.servers": servers})
    client = ClusterClient(client_settings.bootstrap, client_settings)

    def commits():
        return {p.partition: c.offset for p, c in client.fetch_committed(group).items() if c is not None}

    job = submit(directory, master, servers, topic, group, **settings)
    try:
        wait_until(lambda: job.process.poll() is not None or sum(commits().values()) >= MIN_COMMITTED, "a commit", 240)
        os.kill(job.process.pid, signal.SIGTERM)
        wait_until(lambda: job.process.poll() is not None, "the job ends", 120)
        assert job.process.returncode in (143, -signal.SIGTERM), job.log.read_text()[-3000:]
        committed = commits()
    finally:
        stop_process(job.process, 10)
        client.close()
    found = rows(directory)
    positions = sorted((row["partition"], row["offset"]) for row in found)
    assert positions == [(p, n) for p, end in sorted(committed.items()) for n in range(end)]
    assert MIN_COMMITTED <= len(positions) < RECORDS
    return found


def check_executors(found):
    """Asserts that the two members, of two partitions each, were read by different executors."""
    executors = {row["executor"] for row in found}
    assert len(executors) == 2
    by_batch = defaultdict(set)
    for row in found:
        # the ranges of a batch have equal lengths, so equal offsets of two partitions are of the same batch
        by_batch[row["offset"] // 10].add((row["partition"] // 2, row["executor"]))
    pairs_of = by_batch.values()
    assert any(len(pairs) == 2 and len({executor for _, executor in pairs}) == 2 for pairs in pairs_of), by_batch


def test_each_worker_of_a_standalone_cluster_reads_for_a_member(embedded, topic, group, tmp_path):
    with standalone(tmp_path) as master:
        found = run_drained(tmp_path, master, embedded.bootstrap_servers, topic, group)
    check_executors(found)
    assert {Path(row["executor"]).relative_to(tmp_path).parts[0] for row in found} == {"worker-1", "worker-2"}


@pytest.mark.soak
@pytest.mark.skipif(not can_isolate(), reason="namespaces need unshare and its permissions")
def test_workers_in_pid_namespaces_of_their_own_with_a_read_only_root(embedded, topic, group, tmp_path):
    temporary = tmp_path / "driver-tmp"
    temporary.mkdir()
    with standalone(tmp_path, in_containers=True) as master:
        settings = {"TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
        servers = embedded.bootstrap_servers
        found = run_drained(tmp_path, master, servers, topic, group, in_containers=True, **settings)
    check_executors(found)
    # a warning about a control socket that the reader process could not open, for example
    assert "WARNING [" not in (tmp_path / "job.log").read_text()


@pytest.mark.soak
def test_each_worker_of_a_local_cluster_reads_for_a_member(embedded, topic, group, tmp_path):
    master, home = "local-cluster[2,1,1024]", str(linked_home(tmp_path / "spark"))
    check_executors(run_drained(tmp_path, master, embedded.bootstrap_servers, topic, group, SPARK_HOME=home))


@pytest.mark.soak
def test_speculative_attempt_that_runs_beside_the_first_one_repeats_nothing(embedded, topic, group, tmp_path):
    """Both attempts read the same range and send heartbeats for the same member in the same generation."""
    (tmp_path / "attempts").mkdir()
    conf = ("speculation=true", "speculation.quantile=0.5", "speculation.multiplier=1", "speculation.interval=100ms")
    # Spark starts no speculative attempt on the host of the first one, so not in a local-cluster either
    with standalone(tmp_path, hosts=("127.0.0.1", "127.0.0.2")) as master:
        servers = embedded.bootstrap_servers
        found = run_drained(tmp_path, master, servers, topic, group, job=SPECULATION_JOB, conf=conf)
    attempts = {path.name for path in (tmp_path / "attempts").iterdir()}
    stages = {name.removesuffix("-1") for name in attempts if name.endswith("-1")}
    # the first attempt ends after the second one has begun
    assert len(stages) >= 4 and attempts >= {f"{stage}-0" for stage in stages}, attempts
    # whichever attempt ends first is the one whose rows are written
    assert {row["attempt"] for row in found if row["partition"] >= 2} == {0, 1}
    assert {row["attempt"] for row in found if row["partition"] < 2} == {0}
    offsets = [path.read_text().splitlines()[-1] for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")]
    # the members of the query may have joined in two rounds, but not again
    assert len({json.loads(line)["@group"]["generation"] for line in offsets}) == 1
    assert "GenerationMismatchError" not in (tmp_path / "job.log").read_text()


def run_parallelism_job(directory, servers, topic, group, command, *arguments, **settings):
    """Returns the numbers of tasks that the job prints, and the reason of the number of members in the log."""
    create_topic(servers, topic, 8)
    produce(servers, topic, [(n % 8, None, b"%d" % n) for n in range(80)])
    command = [*command, PARALLELISM_JOB, servers, topic, group, directory, *arguments]
    job = subprocess.run(
        list(map(str, command)), env=environment(**settings), capture_output=True, text=True, timeout=400
    )
    assert job.returncode == 0, job.stderr[-3000:]
    (reason,) = re.findall(r"INFO \[group=\S+ driver=\d+\] (\d+ members for 8 partitions: .*)", job.stderr) or [None]
    return json.loads(job.stdout.splitlines()[-1]), reason


def test_members_follow_the_parallelism_without_a_call(embedded, topic, group, tmp_path):
    servers = embedded.bootstrap_servers
    found, reason = run_parallelism_job(tmp_path, servers, topic, group, [sys.executable], "local[3]")
    # the batch read is too small for more than one task
    assert found == {"batch": 1, "stream": 3}
    assert reason == "3 members for 8 partitions: spark.master=local[3]."


@pytest.mark.soak
@pytest.mark.parametrize(
    ("master", "settings", "expected", "reason"),
    [
        ("local-cluster[2,3,1024]", ["executor.memory=512m"], 6, "spark.master=local-cluster[2,3,1024]."),
        ("standalone", ["cores.max=2", "executor.cores=1"], 2, "spark.cores.max=2, spark.executor.cores=1."),
        ("standalone", [], 8, "spark.master={master} without a number of executors or cores, so one for each "),
    ],
)
def test_members_follow_the_parallelism_of_a_cluster(
    embedded, topic, group, tmp_path, master, settings, expected, reason
):
    command = [Path(sys.executable).parent / "spark-submit", "--driver-memory", "512m"]
    for setting in ("ui.enabled=false", *settings):
        command += ["--conf", f"spark.{setting}"]
    servers, url = embedded.bootstrap_servers, master
    if master == "standalone":
        with standalone(tmp_path) as url:
            found = run_parallelism_job(tmp_path, servers, topic, group, [*command, "--master", url])
    else:
        command += ["--master", master]
        home = str(linked_home(tmp_path / "spark"))
        found = run_parallelism_job(tmp_path, servers, topic, group, command, SPARK_HOME=home)
    assert found[0] == {"batch": 1, "stream": expected}
    assert found[1].startswith(f"{expected} members for 8 partitions: {reason.format(master=url)}")


@pytest.mark.soak
def test_members_follow_the_parallelism_of_a_connect_server(embedded, topic, group, tmp_path):
    with connect_server(tmp_path) as remote:
        servers, path = embedded.bootstrap_servers, os.pathsep.join(sys.path)
        found = run_parallelism_job(tmp_path, servers, topic, group, [sys.executable], remote, PYTHONPATH=path)
        log = (tmp_path / "server.log").read_text()
    assert found == ({"batch": 1, "stream": 2}, None)
    assert "2 members for 8 partitions: spark.master=local[2]." in log


@contextmanager
def connect_server(directory):
    """Yields the URL of a server of Spark Connect with two cores."""
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in ("grpc.binding.port=0", "grpc.binding.address=127.0.0.1"):
        command += ["--conf", f"spark.connect.{setting}"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2", "spark-internal"]
    # the memory of a daemon is that of this driver, too
    settings = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "1g", "PYTHONPATH": str(JOB.parents[2])}
    server = Daemon(directory / "server.log", *command, **settings)
    try:
        yield f"sc://127.0.0.1:{server.wait_for(r'(?:SparkConnectService. on port |started at: [^ ]*:)([0-9]+)')}"
    finally:
        stop_process(server.process, 20)


def test_client_of_spark_connect_reads_streams_and_drains(embedded, topic, group, tmp_path):
    for name in (topic, f"{topic}-copy"):
        create_topic(embedded.bootstrap_servers, name, PARTITIONS)
    produce(embedded.bootstrap_servers, topic, [(n % PARTITIONS, None, b"%04d" % n) for n in range(RECORDS)])
    with connect_server(tmp_path) as remote:
        command = [sys.executable, CONNECT_CLIENT, remote, embedded.bootstrap_servers, topic, group, tmp_path]
        variables = environment(PYTHONPATH=os.pathsep.join(sys.path))
        client = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True, timeout=300)
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
    positions = sorted((row["partition"], row["offset"]) for row in rows(tmp_path))
    assert positions == sorted(set(positions)) and len(positions) == found["rows"]
