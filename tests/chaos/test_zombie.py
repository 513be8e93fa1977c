"""An application that is stopped within a batch for longer than its session, and resumes after it was fenced."""

import signal
import subprocess

import pytest
from chaos.deliveries import DeliveryTracker, ForeignOutput, Output
from chaos.foreign_member import ForeignMember
from chaos.submitted_application import SubmittedApplication, signal_all
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.settings import ClientSettings

PARTITIONS = 4
SESSION_TIMEOUT_S = 6  # the default of group.min.session.timeout.ms
# records so large that a task cannot have read all of its batch while the first waits at the gate
RECORDS, SIZE_BYTES, MAX_OFFSETS = 4_000, 4_096, 1_000


def values(first, count):
    return [(n % PARTITIONS, None, str(n).encode().ljust(SIZE_BYTES)) for n in range(first, first + count)]


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.slow
def test_zombie_writes_and_commits_nothing_after_its_generation_has_ended(cluster, topic, group, tmp_path):
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, PARTITIONS)
    produce(servers, topic, values(0, RECORDS))
    settings = ClientSettings.parse({"bootstrap.servers": servers})
    client = Cluster(settings.bootstrap, settings)
    gate, waiting = tmp_path / "gate", tmp_path / "gate.waiting"
    arguments = ["--bootstrap-servers", servers, "--topic", topic, "--group", group, "--max-offsets", MAX_OFFSETS]
    arguments += ["--session-timeout-s", SESSION_TIMEOUT_S]
    zombie = SubmittedApplication("zombie", tmp_path, 1, [*arguments, "--gate", gate, "--once"])
    output, deliveries = Output("zombie", zombie.directory), DeliveryTracker()
    deliveries.add(output)

    def commits():
        return {p.partition: c for p, c in client.fetch_committed(group).items() if c is not None}

    def offsets():
        return {p: c.offset for p, c in commits().items()}

    def written():
        return deliveries.missing({}) or output.batches

    def all_committed(count):
        return sum(offsets().values()) == count

    successor = None
    try:
        wait_until(
            lambda: zombie.process.poll() is not None or sum(offsets().values()) > 0, "a first batch is committed", 120
        )
        assert zombie.process.poll() is None
        gate.touch()
        wait_until(waiting.exists, "a batch is being read", 120, 0.05)
        stopped = zombie.all_processes()
        signal_all(stopped, signal.SIGSTOP)
        held, lost_batch = written(), zombie.last_batch()
        assert lost_batch == held + 1

        successor = ForeignMember(servers, group, topic, tmp_path / "successor", SESSION_TIMEOUT_S * 1000)
        deliveries.add(ForeignOutput("successor", successor.rows))
        wait_until(lambda: all_committed(RECORDS), "the other member commits all records", 120, 0.1)
        left = commits()
        deliveries.check_commits(offsets())

        gate.unlink()
        signal_all(stopped, signal.SIGCONT)
        wait_until(lambda: zombie.process.poll() is not None, "the zombie exits", 60, 0.1)
        (failure,) = zombie.failures()
        assert zombie.process.returncode == 3
        assert f"failed in batch {lost_batch}: " in failure and "GenerationMismatchError" in failure, failure
        assert written() == held
        assert commits() == left

        # restarted, it reads its logged batch without what the other member has committed, and continues after it
        successor.stop()
        produce(servers, topic, values(RECORDS, 100))
        zombie.start()
        wait_until(lambda: all_committed(RECORDS + 100), "the remaining records are committed", 120, 0.1)
        zombie.process.terminate()
        zombie.end()
        deliveries.check_commits(offsets())
        assert not deliveries.missing(offsets())
        assert not deliveries.repeats()
    except AssertionError:
        subprocess.run(["tail", "-n", "40", zombie.log], check=True)
        raise
    finally:
        if successor is not None:
            successor.stop()
        zombie.close()
        client.close()
