"""Clusters whose brokers are killed, frozen and cut off."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from chaos.brokers import CONFIG, Broker, EmbeddedBrokerProcess, RealKafkaBroker
from chaos.proxy import Proxy
from support.kafka_cluster import KafkaCluster

# longer than the session of a broker, so that its leaders move
_FROZEN_S = 4.0


class FaultyCluster(Protocol):
    """A running cluster; `faults` are the kinds that `inject` knows, and it returns when the fault is over."""

    bootstrap_servers: str
    faults: Sequence[str]

    def inject(self, fault: str, draw: random.Random) -> None: ...

    def stop(self) -> None: ...


class OneBroker:
    """One broker behind a proxy."""

    faults = ("none", "kill", "freeze", "cut", "hold")

    def __init__(self, directory: Path, *, kafka: bool = False, script: Sequence[str] = ()) -> None:
        self._proxy = Proxy()
        self._broker: Broker = (
            RealKafkaBroker(directory, self._proxy)
            if kafka
            else EmbeddedBrokerProcess(directory, self._proxy, script)
        )
        self.bootstrap_servers = self._proxy.address
        self._broker.start()

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

    def stop(self) -> None:
        self._broker.stop()
        self._proxy.close()


class ThreeBrokers:
    """Three nodes of a real Apache Kafka, of which one has a fault."""

    faults = ("none", "kill", "kill", "freeze")

    def __init__(self, directory: Path) -> None:
        self._cluster = KafkaCluster(3, CONFIG)
        self._cluster.__enter__()
        self.bootstrap_servers = self._cluster.bootstrap_servers

    def inject(self, fault: str, draw: random.Random) -> None:
        node = self._cluster.nodes[draw.choice(sorted(self._cluster.nodes))]
        if fault == "kill":
            node.kill()
            time.sleep(draw.uniform(0, _FROZEN_S))
            node.restart()
        elif fault == "freeze":
            assert node.process_id is not None
            os.kill(node.process_id, signal.SIGSTOP)
            time.sleep(draw.uniform(0.1, _FROZEN_S))
            os.kill(node.process_id, signal.SIGCONT)

    def stop(self) -> None:
        self._cluster.__exit__()
