"""Apache Kafka of earlier releases, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from child_processes import start_process, stop_process
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka_jars import Artifact, UnavailableError, fetch, java
from real_kafka import RealKafka, free_address
from support.waiting import wait_until

# the first release that is supported, the first one whose transactions know group members, the last ones of 2.x and
# 3.x; ZooKeeper 3.4 does not run with Java 17
_WITH_ZOOKEEPER = {
    "2.1.1": (
        Artifact("org.apache.kafka", "kafka_2.12", "2.1.1"),
        Artifact("org.apache.zookeeper", "zookeeper", "3.5.9"),
    ),
    "2.5.1": (Artifact("org.apache.kafka", "kafka_2.13", "2.5.1"),),
    "2.8.2": (Artifact("org.apache.kafka", "kafka_2.13", "2.8.2"),),
    "3.9.1": (Artifact("org.apache.kafka", "kafka_2.13", "3.9.1"),),
}
# the release before that of all other tests
_WITHOUT_ZOOKEEPER = ("4.3.0",)
RELEASES = (*_WITH_ZOOKEEPER, *_WITHOUT_ZOOKEEPER)
_STOP_TIMEOUT_S = 20
_START_TIMEOUT_S = 90


class OldKafka:
    """One broker of a release, and its ZooKeeper if it needs one, on the loopback interface.

    Attributes: `release`; `bootstrap_servers`, ``host:port`` of the broker.
    """

    def __init__(self, release: str) -> None:
        self.release = release
        self.bootstrap_servers = ""
        self._directory = tempfile.TemporaryDirectory(prefix=f"groupsource-kafka-{release}-")
        self._processes: list[subprocess.Popen[str]] = []
        self._kraft: RealKafka | None = None

    def __enter__(self) -> OldKafka:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._kraft is not None:
            self._kraft.stop()
        # a broker waits for its ZooKeeper
        while self._processes:
            stop_process(self._processes.pop(), _STOP_TIMEOUT_S)
        self._directory.cleanup()

    def _start(self) -> None:
        if self.release in _WITHOUT_ZOOKEEPER:
            settings = {"offsets.topic.num.partitions": "4", "log.retention.ms": "-1"}
            self._kraft = RealKafka(settings, release=self.release)
            self._kraft.start()
            self.bootstrap_servers = self._kraft.bootstrap_servers
        else:
            self._start_with_zookeeper()

    def _start_with_zookeeper(self) -> None:
        jars = fetch(f"kafka-{self.release}-broker", _WITH_ZOOKEEPER[self.release])
        directory, zookeeper, broker = Path(self._directory.name), free_address(), free_address()
        settings = {
            "broker.id": "1",
            "zookeeper.connect": str(zookeeper),
            "listeners": f"PLAINTEXT://{broker}",
            "log.dirs": str(directory / "data"),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "auto.create.topics.enable": "false",
            "log.retention.ms": "-1",
        }
        properties = directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        data = str(directory / "zookeeper")
        self._spawn(jars, "org.apache.zookeeper.server.ZooKeeperServerMain", str(zookeeper.port), data)
        process = self._spawn(jars, "kafka.Kafka", str(properties))
        admin = AdminClient({"bootstrap.servers": str(broker), "log_level": 0})

        def is_ready() -> bool:
            if process.poll() is not None:
                raise UnavailableError(f"Kafka {self.release} did not start:\n{self._log()}")
            try:
                return bool(admin.list_topics(timeout=1).brokers)
            except KafkaException:
                return False

        wait_until(is_ready, f"Kafka {self.release} serves requests", _START_TIMEOUT_S)
        self.bootstrap_servers = str(broker)

    def _spawn(self, jars: Path, main_class: str, *arguments: str) -> subprocess.Popen[str]:
        command = [java(), "-Xmx384m", *os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split()]
        command += ["-cp", str(jars / "*"), main_class, *arguments]
        with (Path(self._directory.name) / "log").open("a") as log:
            process = start_process(command, log, log)
        self._processes.append(process)
        return process

    def _log(self) -> str:
        return (Path(self._directory.name) / "log").read_text(errors="replace")[-2_000:]
