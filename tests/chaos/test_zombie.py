"""A reader or application that resumes after its session expired."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import zombie_reader
from chaos.deliveries import DeliveryTracker, ForeignOutput, Output
from chaos.foreign_member import ForeignMember
from chaos.submitted_application import SubmittedApplication, signal_all
from support.direct_readers import StreamQuery
from support.startup import python_path
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

PARTITIONS = 4


def values(first, count, size_bytes):
    return [(n % PARTITIONS, None, str(n).encode().ljust(size_bytes)) for n in range(first, first + count)]


@pytest.fixture
def commits(cluster, group):
    """Returns a function that returns the committed offset of each partition."""
    settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
    client = ClusterClient(settings.bootstrap, settings)

    def committed():
        return {p.partition: c for p, c in client.fetch_committed(group).items() if c is not None}

    yield committed
    client.close()


def total(commits):
    return sum(commit.offset for commit in commits.values())


@pytest.fixture
def zombie(cluster, topic, group, tmp_path):
    """The process of `zombie_reader.py`; the file of its batch is ``tmp_path / "batch"``."""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": python_path(tests)}
    command = [sys.executable, zombie_reader.__file__, cluster.bootstrap_servers, topic, group, tmp_path / "batch"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    create_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    produce(cluster.bootstrap_servers, topic, values(0, 400, 1_000), batch_num_messages=1)
    with open(tmp_path / "log", "w") as log, subprocess.Popen(command, env=environment, stderr=log, **pipes) as process:
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_stopped_reader_delivers_and_commits_nothing_after_its_generation_has_ended(
    cluster, topic, group, tmp_path, commits, zombie
):
    servers = cluster.bootstrap_servers
    assert zombie.stdout.readline() == "reading\n", (tmp_path / "log").read_text()
    zombie.send_signal(signal.SIGSTOP)
    assert total(commits()) == zombie_reader.MAX_OFFSETS
    with ForeignMember(servers, group, topic, tmp_path / "successor", zombie_reader.SESSION_TIMEOUT_MS):
        wait_until(lambda: total(commits()) == 400, "the other member commits all records", 60, 0.1)
        left = commits()
        zombie.send_signal(signal.SIGCONT)
        zombie.stdin.write("\n")
        zombie.stdin.flush()
        assert zombie.stdout.readline() == "GenerationMismatchError\n"
        assert zombie.wait(30) == 0
        assert commits() == left

    # restarted, it reads its logged batch without what the other member has committed, and continues after it
    produce(servers, topic, values(400, 40, 10))
    start, end = json.loads((tmp_path / "batch").read_text())
    with StreamQuery(cluster, zombie_reader.options(topic, group)) as query:
        assert not [row for task in query.reader.partitions(start, end) for row in query.reader.read(task)]
        query.start = end
        assert sorted(int(row["value"]) for row in query.run().rows) == list(range(400, 440))
    assert total(commits()) == 440


SESSION_TIMEOUT_S = 6  # the default of group.min.session.timeout.ms
# records so large that a task cannot have read all of its batch while the first waits at the gate
RECORDS, SIZE_BYTES, MAX_OFFSETS = 400, 16_384, 100


class Application:
    """The submitted application, what it has written, and a file that makes its records wait."""

    def __init__(self, servers, topic, group, directory):
        self.gate, self.waiting = directory / "gate", directory / "gate.waiting"
        arguments = ["--bootstrap-servers", servers, "--topic", topic, "--group", group, "--max-offsets", MAX_OFFSETS]
        arguments += ["--session-timeout-s", SESSION_TIMEOUT_S, "--gate", self.gate, "--once"]
        self.submitted = SubmittedApplication("zombie", directory, 1, arguments)
        self.output, self.deliveries = Output("zombie", self.submitted.directory), DeliveryTracker()
        self.deliveries.add(self.output)

    def written(self):
        """Returns the number of the last written batch."""
        return self.deliveries.missing({}) or self.output.batches

    def stop_within_batch(self):
        """Stops all its processes while they read a batch, as SIGSTOP does; returns their ids."""
        self.gate.touch()
        wait_until(self.waiting.exists, "a batch is being read", 120, 0.05)
        stopped = self.submitted.all_processes()
        signal_all(stopped, signal.SIGSTOP)
        return stopped

    def resume(self, stopped):
        """Continues the processes and waits until the application has exited."""
        self.gate.unlink()
        signal_all(stopped, signal.SIGCONT)
        wait_until(lambda: self.submitted.process.poll() is not None, "the zombie exits", 60, 0.1)


@pytest.fixture
def application(cluster, topic, group, tmp_path):
    create_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    produce(cluster.bootstrap_servers, topic, values(0, RECORDS, SIZE_BYTES))
    opened = Application(cluster.bootstrap_servers, topic, group, tmp_path)
    yield opened
    opened.submitted.close()


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_zombie_writes_and_commits_nothing_after_its_generation_has_ended(
    cluster, topic, group, tmp_path, commits, application
):
    servers, zombie, deliveries = cluster.bootstrap_servers, application.submitted, application.deliveries

    def offsets():
        return {p: c.offset for p, c in commits().items()}

    wait_until(lambda: zombie.process.poll() is not None or total(commits()) > 0, "a first batch is committed", 120)
    assert zombie.process.poll() is None, zombie.log.read_text()[-3000:]
    stopped = application.stop_within_batch()
    held, lost_batch = application.written(), zombie.last_batch()
    assert lost_batch == held + 1

    with ForeignMember(servers, group, topic, tmp_path / "successor", SESSION_TIMEOUT_S * 1000) as successor:
        deliveries.add(ForeignOutput("successor", successor.rows))
        wait_until(lambda: total(commits()) == RECORDS, "the other member commits all records", 120, 0.1)
        left = commits()
        deliveries.check_commits(offsets())
        application.resume(stopped)
        (failure,) = zombie.failures()
        assert zombie.process.returncode == 3
        assert f"failed in batch {lost_batch}: " in failure and "GenerationMismatchError" in failure, failure
        assert application.written() == held
        assert commits() == left

    # restarted, it reads its logged batch without what the other member has committed, and continues after it
    produce(servers, topic, values(RECORDS, 100, SIZE_BYTES))
    zombie.start()
    wait_until(lambda: total(commits()) == RECORDS + 100, "the remaining records are committed", 120, 0.1)
    zombie.process.terminate()
    zombie.end()
    deliveries.check_commits(offsets())
    assert not deliveries.missing(offsets())
    assert not deliveries.repeats()
