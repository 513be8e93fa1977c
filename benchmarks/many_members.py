"""Members of one process: threads, joins, commits, idle processor time.

    python benchmarks/many_members.py [MEMBERS [PARTITIONS]]

The embedded broker runs in another process. A short round before the measured one imports and compiles everything.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection

from spark_groupsource import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.client.settings import ClientSettings, GroupSettings
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

TOPIC, GROUP = "load", "many"
IDLE_S = 10


def serve(pipe: Connection, partitions: int) -> None:
    """Runs the broker until the pipe is closed."""
    allow_many_files()
    with EmbeddedBroker(topics={TOPIC: partitions}) as broker:
        pipe.send(broker.bootstrap_servers)
        try:
            while True:
                pipe.recv()
                pipe.send(time.process_time())
        except EOFError:
            return


def allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def broker_s(pipe: Connection | None) -> float:
    """Returns the processor time of the broker so far."""
    if pipe is None:
        return 0.0
    pipe.send(None)
    spent: float = pipe.recv()
    return spent


def measure(address: str, members: int, partitions: int, pipe: Connection | None) -> None:
    """Prints the figures; nothing without a pipe."""
    settings = ClientSettings.parse({"bootstrap.servers": address})
    before_mb, threads = resident_mb(), threading.active_count()
    group = GroupSettings(f"{GROUP}-{members}", topics=(TOPIC,), members=members, client_id="app")
    with ClusterClient(settings.bootstrap, settings) as cluster, GroupClient(cluster, group) as client:
        broker_busy_s = broker_s(pipe)
        began, busy = time.perf_counter(), time.process_time()
        while not client.poll(60_000).is_stable:
            pass
        joined_s, joined_busy_s = time.perf_counter() - began, time.process_time() - busy
        broker_joined_s = broker_s(pipe) - broker_busy_s
        owned = client.view.partitions
        assert len(owned) == partitions
        took = []
        for number in range(3):
            offsets = {TopicPartition(*tp): OffsetAndMetadata(number) for tp in owned}
            began, busy = time.perf_counter(), time.process_time()
            client.commit(offsets)
            took.append((time.perf_counter() - began, time.process_time() - busy))
        if pipe is None:
            return
        time.sleep(3)
        broker_busy_s = broker_s(pipe)
        busy = time.process_time()
        time.sleep(IDLE_S)
        busy_s = time.process_time() - busy
        broker_busy_s = broker_s(pipe) - broker_busy_s
        print(f"{members:,} members, {partitions:,} partitions")
        print(f"threads            {threading.active_count() - threads:,}")
        print(f"join               {joined_s:.2f} s, processor {joined_busy_s:.2f} s, broker's {broker_joined_s:.2f} s")
        print(f"commit             {min(took)[0]:.2f} s, processor {min(took)[1]:.2f} s")
        idle, broker_idle = 100 * busy_s / IDLE_S, 100 * broker_busy_s / IDLE_S
        print(f"idle               {idle:.1f} % of a processor, broker {broker_idle:.1f} %")
        print(f"resident memory    {resident_mb() - before_mb:+.0f} MB")
        assert client.view.is_stable, "a member was removed"
        began = time.perf_counter()
    print(f"leave              {time.perf_counter() - began:.2f} s")


def main() -> None:
    members = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    partitions = int(sys.argv[2]) if len(sys.argv) > 2 else 10 * members
    allow_many_files()
    ours, theirs = multiprocessing.Pipe()
    broker = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, partitions), daemon=True)
    broker.start()
    theirs.close()
    address = ours.recv()
    measure(address, 2, partitions, None)
    measure(address, members, partitions, ours)
    ours.close()
    broker.join(10)


if __name__ == "__main__":
    main()
