"""Moves the group coordinator under a query and counts delivered records.

    PYTHONPATH=jobs:tests python tests/chaos/coordinator_moves.py --moves 10 [--kafka] [--spark] [--seed 7]

Three nodes; a producer writes during the run. Each move stops the node of the coordinator, waits until the query has
committed what was produced, starts the node again and moves the coordinator back to it. On a real Kafka the node is
killed with SIGKILL, or suspended with SIGSTOP, and a clean election moves the coordinator back. At the end the rows
must be all offsets of the topic, each once. The reader is called directly, or by Spark with a file sink (`--spark`).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from chaos.numbered_producer import NumberedProducer
from support.clusters import BROKER_CONFIG, Cluster
from support.direct_readers import StreamQuery
from support.file_sink import committed_rows
from support.kafka_cluster import OFFSETS_TOPIC, KafkaCluster
from support.query_harness import PARTITIONS, QueryHarness
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.process import reader_process

NODES = 3
TOPIC, GROUP = "moves", "moves"
# three nodes of a real Kafka on a busy machine
WAIT_S = 300
SESSION_TIMEOUT_MS = "20000"
# Spark waits for 10 s until the process of a worker has started, which a busy machine exceeds
NO_WORKER = "Python worker failed to connect back"

Rows = Counter[tuple[int, int]]
"""(partition, offset) of the delivered records."""


class Nodes(Protocol):
    """Interface of both clusters."""

    bootstrap_servers: str

    def coordinator(self) -> int:
        """The node that coordinates the group."""

    def stop(self, node: int, randomness: random.Random) -> str:
        """Stops a node, so that others become leaders of its partitions; returns how."""

    def restore(self, node: int) -> None:
        """Starts a stopped node and makes it the coordinator."""


class EmbeddedNodes:
    def __init__(self, stack: ExitStack) -> None:
        self._broker = stack.enter_context(EmbeddedBroker(config=BROKER_CONFIG, brokers=NODES))
        self.bootstrap_servers = self._broker.bootstrap_servers

    def coordinator(self) -> int:
        return self._broker.coordinator(GROUP)

    def stop(self, node: int, randomness: random.Random) -> str:
        self._broker.stop_node(node)
        return "stopped"

    def restore(self, node: int) -> None:
        self._broker.start_node(node)
        self._broker.move_coordinator(GROUP, node)


class KafkaNodes:
    def __init__(self, stack: ExitStack) -> None:
        self._cluster = stack.enter_context(KafkaCluster(NODES, BROKER_CONFIG))
        self.bootstrap_servers = self._cluster.bootstrap_servers
        self._suspended: int | None = None

    def coordinator(self) -> int:
        return self._cluster.coordinator(GROUP)

    def stop(self, node: int, randomness: random.Random) -> str:
        kafka = self._cluster.nodes[node]
        if kafka.process_id is None or randomness.random() < 0.5:
            kafka.kill()
            return "killed"
        self._suspended = kafka.process_id
        os.killpg(self._suspended, signal.SIGSTOP)
        return "suspended"

    def restore(self, node: int) -> None:
        suspended, self._suspended = self._suspended, None
        if suspended is None:
            self._cluster.nodes[node].restart()
        else:
            os.killpg(suspended, signal.SIGCONT)
        self._cluster.elect_preferred([TOPIC, OFFSETS_TOPIC])


class DirectQuery:
    """A reader that a thread calls as Spark does; a failed query is restarted from its checkpoint."""

    def __init__(self, servers: str, assignor: str) -> None:
        reader_process.install_signal_handlers = lambda terminate: None
        self._cluster = Cluster("", servers)
        self._options = {
            "subscribe": TOPIC,
            "kafka.group.id": GROUP,
            "startingOffsets": "earliest",
            "members": "2",
            "kafka.session.timeout.ms": SESSION_TIMEOUT_MS,
            "kafka.partition.assignment.strategy": assignor,
        }
        self._delivered: Rows = Counter()
        self.failures: list[GroupSourceError] = []
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> Rows:
        self._ended.set()
        self._thread.join(60)
        self.check()
        return self._delivered

    def _run(self) -> None:
        checkpoint: dict[str, object] = {}
        try:
            while not self._ended.is_set():
                with StreamQuery(self._cluster, self._options) as query:
                    query.start = checkpoint
                    try:
                        while not self._ended.wait(0.02):
                            rows = query.trigger()
                            checkpoint = query.start
                            self._delivered.update((row["partition"], row["offset"]) for row in rows)
                    except GroupSourceError as error:
                        self.failures.append(error)
        except BaseException as error:  # raised by `check`
            self._failure = error


class SparkQuery:
    """A query of Spark with a file sink."""

    def __init__(self, harness: QueryHarness, assignor: str) -> None:
        self._harness = harness
        self._settings: dict[str, Any] = {
            "kafka.session.timeout.ms": SESSION_TIMEOUT_MS,
            "kafka.partition.assignment.strategy": assignor,
        }
        self._query = harness.start("a", **self._settings)
        self.failures: list[GroupSourceError] = []

    def check(self) -> None:
        failure = None if self._query.isActive else self._query.exception()
        if failure is not None and NO_WORKER in str(failure):
            print(f"restarting the query: {NO_WORKER}", flush=True)
            self._query = self._harness.start("a", **self._settings)
            return
        assert self._query.isActive, failure

    def stop(self) -> Rows:
        stop_gracefully(self._query, 60)
        rows = committed_rows(self._harness.directory / "a" / "rows")
        assert rows is not None
        return Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist()))


def run(directory: Path, moves: int, seed: int, *, kafka: bool, spark: bool = False, assignor: str = "range") -> None:
    """Raises: AssertionError when a record is missing or repeated, or the query does not continue."""
    randomness = random.Random(seed)
    with ExitStack() as stack:
        nodes: Nodes = (KafkaNodes if kafka else EmbeddedNodes)(stack)
        cluster = Cluster("kafka" if kafka else "embedded", nodes.bootstrap_servers)
        # the partitions of a stopped node need another leader
        session = _session(stack) if spark else None
        harness = QueryHarness(session, cluster, TOPIC, GROUP, directory, replication_factor=-1)
        harness.client.close()
        # of the checks, not of the query: a suspended node must not delay them
        settings = {"bootstrap.servers": nodes.bootstrap_servers, "request.timeout.ms": "3000"}
        harness.client = ClusterClient(nodes.bootstrap_servers, ClientSettings.parse(settings))
        stack.callback(harness.close)
        producer = NumberedProducer(nodes.bootstrap_servers, TOPIC, PARTITIONS, 200)
        query = SparkQuery(harness, assignor) if spark else DirectQuery(nodes.bootstrap_servers, assignor)

        def ends() -> dict[int, int]:
            found = harness.client.list_offsets({TopicPartition(TOPIC, n): LATEST for n in range(PARTITIONS)})
            return {p.partition: each.offset for p, each in found.items()}

        def settle(what: str) -> None:
            total = sum(ends().values())

            def is_committed() -> bool:
                query.check()
                return harness.committed() >= total

            wait_until(is_committed, f"everything is committed after {what}", WAIT_S, 0.1)

        settle("the start")
        for number in range(1, moves + 1):
            node = nodes.coordinator()
            time.sleep(randomness.uniform(0, 1))
            began = time.monotonic()
            how = nodes.stop(node, randomness)
            settle(f"node {node} was {how}")
            stopped_s, began = time.monotonic() - began, time.monotonic()
            nodes.restore(node)
            settle(f"node {node} was started")
            moved_s = time.monotonic() - began
            times = f"committed {stopped_s:.1f} s and {moved_s:.1f} s later"
            print(f"move {number}: node {node} {how}; {times}", flush=True)
        producer.stop()
        settle("the last move")
        found = query.stop()
        expected = Counter((number, offset) for number, end in ends().items() for offset in range(end))
        missing, repeated = expected - found, found - expected
        failures = f"{len(query.failures)} query failures {[str(error) for error in query.failures[:3]]}"
        assert not missing and not repeated, f"missing {missing}, repeated {repeated}, {failures}"
        assert len(producer.acknowledged) <= found.total()
        print(f"{found.total()} records, {2 * moves} moves: each delivered once; {failures}", flush=True)


def _session(stack: ExitStack) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    stack.callback(spark.stop)
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description="Move the coordinator of a group and check the records.")
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kafka", action="store_true", help="on three nodes of a real Apache Kafka")
    parser.add_argument("--spark", action="store_true", help="by Spark, with a file sink")
    parser.add_argument("--assignor", default="range")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="groupsource-moves-") as directory:
        run(
            Path(directory),
            options.moves,
            options.seed,
            kafka=options.kafka,
            spark=options.spark,
            assignor=options.assignor,
        )


if __name__ == "__main__":
    main()
