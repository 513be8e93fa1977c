"""Applications on YARN lose nothing when killed, and show no password."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pyarrow.dataset
import pytest
from support.hadoop_cluster import HadoopCluster
from support.password_topics import PARTITIONS, PASSWORD, RECORDS
from support.yarn_submission import Submission, make_environment, page_command, zip_package

JOB = str(Path(__file__).with_name("yarn_job.py"))
# of six batches
_LIMIT = RECORDS // 6
_LAST = 5
_SECRETS = "${file:secrets.properties:password}"

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(3_000)]


def job(
    options: dict[str, str], topic: str, seconds: float = 0, password: str = _SECRETS, members: str = "2"
) -> list[str]:
    given = {"subscribe": topic, "kafka.group.id": f"group-of-{topic}", "maxOffsetsPerTrigger": str(_LIMIT)}
    given = {**options, **given, "members": members, "kafka.sasl.password": password}
    return [JOB, f"/{topic}", str(seconds), *(f"{name}={value}" for name, value in given.items())]


def batches(hadoop: HadoopCluster, topic: str, directory: Path) -> dict[int, Counter[tuple[int, int]]]:
    """Returns how often each batch has written each position, after checking that together they are the topic."""
    rows = pyarrow.dataset.dataset(hadoop.copy_from_hdfs(f"/{topic}/rows", directory / topic), format="parquet")
    found: dict[int, Counter[tuple[int, int]]] = {}
    for row in rows.to_table().to_pylist():
        found.setdefault(row["batch"], Counter())[row["partition"], row["offset"]] += 1
    # no position in two batches, none missing
    positions = sorted(position for counts in found.values() for position in counts)
    assert positions == [(p, n) for p in range(PARTITIONS) for n in range(RECORDS // PARTITIONS)]
    return found


def repeated(found: dict[int, Counter[tuple[int, int]]]) -> dict[int, int]:
    """Returns the batches that were written more than once, with how often; each as a whole."""
    times = {number: set(counts.values()) for number, counts in found.items()}
    assert all(len(each) == 1 for each in times.values()), times
    return {number: each.pop() for number, each in times.items() if each != {1}}


@pytest.fixture(autouse=True)
def secrets(submit_directory: Path) -> None:
    (submit_directory / "secrets.properties").write_text(f"password={PASSWORD}\n")
    (submit_directory / "password").write_text(PASSWORD)


def test_cluster_mode_with_a_killed_executor_and_unix_sockets(
    hadoop: HadoopCluster, submit_directory: Path, secured: dict[str, str], tmp_path: Path
) -> None:
    # the password as text in the options, read by the job from its own file
    command = page_command("--deploy-mode cluster", "memoryOverhead")
    command = command.replace("--archives", "--files password --archives")
    sockets = {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": "/tmp"}
    arguments = job(secured, "executors", 2, "file password")
    with Submission(hadoop, submit_directory, command, arguments, settings=sockets) as run:
        run.wait_for_batch(1)
        killed = run.processes("YarnCoarseGrainedExecutorBackend")[0]
        os.kill(killed, signal.SIGKILL)
        run.wait_for_batch(3)
        memory = run.memory()
        print(f"driver's container: {sum(memory.values())} MB resident: {memory}")
        run.wait_for_success()
    assert repeated(batches(hadoop, "executors", tmp_path)) == {}
    output = run.container_output()
    assert "launch_container.sh" in output and "batch 0 is written" in output
    assert PASSWORD not in output + run.log


def test_application_master_and_application_are_killed_and_only_batches_in_flight_repeat(
    hadoop: HadoopCluster, submit_directory: Path, secured: dict[str, str], tmp_path: Path
) -> None:
    command = page_command("--files secrets.properties")
    # the batches take as long as the test needs to see them
    slow = job(secured, "masters", 600)
    settings = {"spark.yarn.maxAppAttempts": "2"}
    with Submission(hadoop, submit_directory, command, slow, settings=settings) as run:
        run.wait_for_batch(0)
        (master,) = run.processes("ApplicationMaster")
        os.kill(master, signal.SIGKILL)
        run.wait_for_batch(0, attempt=2)
        hadoop.yarn("application", "-kill", run.application())
        run.wait()
        assert hadoop.application(run.application())["finalStatus"] == "KILLED"
        assert len(hadoop.attempts(run.application())) == 2
    with Submission(hadoop, submit_directory, command, job(secured, "masters")) as restarted:
        restarted.wait_for_success()
    # by the second attempt and by the restart
    assert repeated(batches(hadoop, "masters", tmp_path)) == {0: 3}
    assert PASSWORD not in run.container_output() + restarted.container_output()


def test_client_mode_drains_at_sigterm(
    hadoop: HadoopCluster, submit_directory: Path, secured: dict[str, str], tmp_path: Path
) -> None:
    command = page_command("--deploy-mode client").replace("--archives", "--files secrets.properties --archives")
    # executors find the file in their directory, the reader process in that of the driver
    with Submission(hadoop, submit_directory, command, job(secured, "clients", 5)) as run:
        os.kill(run.wait_for_batch(1), signal.SIGTERM)
        run.wait()
    with Submission(hadoop, submit_directory, command, job(secured, "clients")) as restarted:
        restarted.wait_for_success()
    assert repeated(batches(hadoop, "clients", tmp_path)) == {}


def test_package_as_py_files_and_members_of_the_executors(
    hadoop: HadoopCluster, submit_directory: Path, secured: dict[str, str], tmp_path: Path
) -> None:
    zip_package(submit_directory / "spark_groupsource.zip")
    python = str(make_environment(tmp_path / "dependencies", has_package=False))
    command = page_command("--py-files").replace("--py-files", "--files secrets.properties --py-files")
    with Submission(hadoop, submit_directory, command, job(secured, "zipped", members="auto"), python) as run:
        run.wait_for_success()
    assert f"2 members for {PARTITIONS} partitions: spark.executor.instances=2." in run.container_output()
    assert sorted(batches(hadoop, "zipped", tmp_path)) == list(range(_LAST + 1))
