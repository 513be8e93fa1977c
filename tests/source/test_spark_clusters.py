"""Query on Spark clusters: standalone and ``local-cluster``."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest
from child_processes import stop_process
from support.spark_daemons import Daemon, run_parallelism_job, written_rows
from support.spark_homes import SPARK_HOME, linked_home
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

JOB = Path(__file__).with_name("cluster_job.py")
SPECULATION_JOB = JOB.with_name("speculation_job.py")
PARTITIONS, RECORDS = 4, 2_000
# records of one batch: the job is stopped before the end of the topic
MIN_COMMITTED = 160
PID_NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]


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
    found = written_rows(directory)
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


def test_members_follow_the_parallelism_without_a_call(embedded, topic, group, tmp_path):
    servers = embedded.bootstrap_servers
    found, reason = run_parallelism_job(tmp_path, servers, topic, group, [sys.executable], "local[3]")
    # the batch read is too small for more than one task
    assert found == {"batch": 1, "stream": 3}
    assert reason == "3 members for 8 partitions: spark.master=local[3]."


@pytest.mark.soak
def test_members_follow_a_master_that_the_code_of_a_submitted_job_sets(embedded, topic, group, tmp_path):
    command = [Path(sys.executable).parent / "spark-submit", "--driver-memory", "512m"]
    found = run_parallelism_job(tmp_path, embedded.bootstrap_servers, topic, group, command, "local[3]")
    assert found == ({"batch": 1, "stream": 3}, "3 members for 8 partitions: spark.master=local[3].")


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
