"""Records histories of clients of a broker with faults.

    PYTHONPATH=jobs:tests python tests/histories/record.py --histories 1000 --seed 7 [--kafka]

One broker serves all histories of a run, each with a topic of its own. A history with anomalies is printed, and ends
the run with status 1.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from uuid import uuid4

from chaos.brokers import Broker, EmbeddedBrokerProcess, RealKafkaBroker
from chaos.proxy import Proxy
from support.clients import open_cluster
from support.topics import create_topic

from histories.checker import Anomaly, find_anomalies
from histories.clients import Client, LibrdkafkaReader, Recorder, clients
from histories.history import History
from spark_groupsource.client.records.transactions import Transactions

PARTITIONS = 2
_FAULTS = ("none", "kill", "freeze", "cut", "hold")
_END_S = 90.0


class Faults:
    """Faults of one broker; one is injected while the clients run."""

    def __init__(self, broker: Broker, proxy: Proxy) -> None:
        self._broker, self._proxy = broker, proxy

    def inject(self, fault: str, draw: random.Random) -> None:
        if fault == "kill":
            self._broker.kill()
            self._broker.start()
        elif fault == "freeze":
            self._broker.signal(signal.SIGSTOP)
            time.sleep(draw.uniform(0.1, 1.5))
            self._broker.signal(signal.SIGCONT)
        elif fault == "cut":
            self._proxy.drop(draw.uniform(0.3, 1.0), draw)
        elif fault == "hold":
            self._proxy.hold()
            time.sleep(draw.uniform(0.1, 1.5))
            self._proxy.release()


def record(faults: Faults, bootstrap_servers: str, seed: int, duration_s: float = 1.5) -> tuple[str, History]:
    """Records one history; returns the fault that was injected, and the history.

    Raises: AssertionError if the logs cannot be read to their ends.
    """
    draw = random.Random(seed)
    recorder = Recorder(f"h{uuid4().hex[:10]}", PARTITIONS)
    create_topic(bootstrap_servers, recorder.topic, PARTITIONS)
    fault = draw.choice(_FAULTS)
    with open_cluster(bootstrap_servers, default_api_timeout_ms="6000", request_timeout_ms="2000") as cluster:
        running = list(clients(recorder, bootstrap_servers, cluster, seed))
        ended = threading.Event()
        threads = [threading.Thread(target=_run, args=(client, ended), daemon=True) for client in running]
        for thread in threads:
            thread.start()
        time.sleep(duration_s * draw.uniform(0.2, 0.6))
        faults.inject(fault, draw)
        time.sleep(duration_s * 0.5)
        ended.set()
        for thread in threads:
            thread.join(_END_S)
            assert not thread.is_alive(), "a client did not end"
    with open_cluster(bootstrap_servers) as cluster:
        # a transaction that is open hides what comes after it
        for name in "abc":
            Transactions(cluster, f"{recorder.topic}-{name}").init(1_000)
    last = LibrdkafkaReader(recorder, bootstrap_servers, "end")
    deadline_s = time.monotonic() + _END_S
    is_complete = last.read_to_end(lambda: time.monotonic() > deadline_s)
    for client in [*running, last]:
        client.close()
    assert is_complete, "the logs could not be read to their ends"
    return fault, recorder.history


def _run(client: Client, ended: threading.Event) -> None:
    while not ended.is_set():
        client.step()


def run(directory: Path, *, histories: int, seed: int, kafka: bool = False) -> int:
    """Records and checks histories; returns the number of operations.

    Raises: AssertionError with the anomalies of the first history that has some.
    """
    proxy = Proxy()
    broker: Broker = (RealKafkaBroker if kafka else EmbeddedBrokerProcess)(directory, proxy)
    broker.start()
    faults, total = Faults(broker, proxy), 0
    try:
        for number in range(seed, seed + histories):
            fault, history = record(faults, proxy.address, number)
            anomalies = find_anomalies(history)
            total += len(history)
            assert not anomalies, _report(number, fault, anomalies, history)
            if number % 50 == 0 or histories < 50:
                print(f"history {number}: {fault}, {len(history)} operations", flush=True)
    finally:
        broker.stop()
        proxy.close()
    return total


def _report(seed: int, fault: str, anomalies: list[Anomaly], history: History) -> str:
    lines = [f"history {seed} ({fault}) has {len(anomalies)} anomalies:"]
    lines += [f"  {kind}: {text}" for kind, text in anomalies[:20]]
    lines += [f"  {number}: {operation}" for number, operation in enumerate(history)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kafka", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            total = run(Path(directory), histories=options.histories, seed=options.seed, kafka=options.kafka)
        except AssertionError as error:
            print(error)
            return 1
    print(f"{options.histories} histories with {total} operations, no anomaly")
    return 0


if __name__ == "__main__":
    sys.exit(main())
