"""An application that is stopped in mid-batch for longer than its session, and wakes when others have its work."""

import signal
import subprocess

import pytest
from chaos.applications import Application, signal_all
from chaos.foreign import ForeignMember
from chaos.ledger import ForeignOutput, Ledger, Output
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.settings import ClientSettings

PARTITIONS = 4
SESSION_TIMEOUT_S = 6  # the least that a broker allows unless told otherwise
# records so large that a task cannot have read all of its batch while the first waits at the gate
RECORDS, SIZE_BYTES, MAX_OFFSETS = 4_000, 4_096, 1_000


def values(first, count):
    return [(n % PARTITIONS, None, str(n).encode().ljust(SIZE_BYTES)) for n in range(first, first + count)]


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_zombie_writes_nothing_of_its_lost_generation_and_moves_no_offset(cluster, topic, group, tmp_path):
    servers = cluster.bootstrap_servers
    create_topic(servers, topic, PARTITIONS)
    produce(servers, topic, values(0, RECORDS))
    settings = ClientSettings.parse({"bootstrap.servers": servers})
    client = Cluster(settings.bootstrap, settings)
    gate, waiting = tmp_path / "gate", tmp_path / "gate.waiting"
    arguments = ["--bootstrap-servers", servers, "--topic", topic, "--group", group, "--max-offsets", MAX_OFFSETS]
    arguments += ["--session-timeout-s", SESSION_TIMEOUT_S]
    zombie = Application("zombie", tmp_path, 1, [*arguments, "--gate", gate, "--once"])
    output, ledger = Output("zombie", zombie.directory), Ledger()
    ledger.add(output)

    def commits():
        return {p.partition: c for p, c in client.fetch_committed(group).items() if c is not None}

    def offsets():
        return {p: c.offset for p, c in commits().items()}

    def written():
        return ledger.missing({}) or output.batches

    def all_committed(count):
        return sum(offsets().values()) == count

    taker = None
    try:
        wait_until(
            lambda: zombie.process.poll() is not None or sum(offsets().values()) > 0, "a first batch is committed", 120
        )
        assert zombie.process.poll() is None
        gate.touch()
        wait_until(waiting.exists, "a batch is being read", 120, 0.05)
        stopped = zombie.everything()
        signal_all(stopped, signal.SIGSTOP)
        held, lost_batch = written(), zombie.last_batch()
        assert lost_batch == held + 1

        taker = ForeignMember(servers, group, topic, tmp_path / "taker", SESSION_TIMEOUT_S * 1000)
        ledger.add(ForeignOutput("taker", taker.rows))
        wait_until(lambda: all_committed(RECORDS), "the other member has done the work", 120, 0.1)
        left = commits()
        ledger.check_commits(offsets())

        gate.unlink()
        signal_all(stopped, signal.SIGCONT)
        wait_until(lambda: zombie.process.poll() is not None, "the zombie ends", 60, 0.1)
        (failure,) = zombie.failures()
        assert zombie.process.returncode == 3
        assert f"failed in batch {lost_batch}: " in failure and "GenerationMismatchError" in failure, failure
        assert written() == held
        assert commits() == left

        # started again it repeats the batch that its checkpoint holds, and goes on after what the others did
        taker.stop()
        produce(servers, topic, values(RECORDS, 100))
        zombie.start()
        wait_until(lambda: all_committed(RECORDS + 100), "the rest is done", 120, 0.1)
        zombie.process.terminate()
        zombie.end()
        ledger.check_commits(offsets())
        assert not ledger.missing(offsets())
        repeats = ledger.repeats()
        assert {repeat.again for repeat in repeats if repeat.again.source == "zombie"} == {("zombie", lost_batch)}
        assert 0 < len(repeats) <= MAX_OFFSETS
    except AssertionError:
        subprocess.run(["tail", "-n", "40", zombie.log], check=True)
        raise
    finally:
        if taker is not None:
            taker.stop()
        zombie.close()
        client.close()
