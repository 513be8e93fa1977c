"""Clusters whose brokers are killed, frozen and cut off.

A fault of one broker begins at a request of a client, mostly one of a transaction, and most last longer than the client
repeats its requests: then the client does not know what became of its operation.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from chaos.brokers import CONFIG, Broker, EmbeddedBrokerProcess, RealKafkaBroker
from chaos.proxy import Moment, Proxy
from support.kafka_cluster import KafkaCluster

from histories.clients import API_TIMEOUT_S
from spark_groupsource.wire.api_keys import ApiKey

FAULT_S = (0.25 * API_TIMEOUT_S, 2 * API_TIMEOUT_S)
"""Range of the duration of a fault: from shorter than a request of a client to longer than all its repetitions."""
# the longest one is longer than the session of a broker, so that its leaders move
_FROZEN_S = 6.0
_APIS = (
    ApiKey.END_TXN, ApiKey.END_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN,
)  # fmt: skip
_MOMENT_S = 10.0


class FaultyCluster(Protocol):
    """A running cluster; `faults` are the kinds that `inject` knows, and it returns when the fault is over."""

    bootstrap_servers: str
    faults: Sequence[str]

    def inject(self, fault: str, draw: random.Random) -> None: ...

    def stop(self) -> None: ...


class OneBroker:
    """One broker behind a proxy."""

    faults = ("none", "kill", "freeze", "cut", "hold", "lost responses")

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
        if fault == "none":
            return
        moment = Moment(draw.choice(_APIS), draw.random() < 0.5)
        # without such a request, for example because no client works, there is no fault
        if self._proxy.begin_at(moment, partial(self._begin, fault), _MOMENT_S):
            time.sleep(draw.uniform(*FAULT_S))
            self._end(fault)

    def _begin(self, fault: str) -> None:
        if fault == "kill":
            # no response is received that the broker sent before
            self._proxy.cut()
            self._broker.signal(signal.SIGKILL)
        elif fault == "freeze":
            self._broker.signal(signal.SIGSTOP)
        elif fault == "cut":
            self._proxy.cut()
        elif fault == "hold":
            self._proxy.hold()
        else:
            self._proxy.hold(only_responses=True)

    def _end(self, fault: str) -> None:
        if fault == "kill":
            self._broker.kill()
            self._broker.start()
        elif fault == "freeze":
            self._broker.signal(signal.SIGCONT)
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
