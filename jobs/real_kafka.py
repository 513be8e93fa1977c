"""Single-node Apache Kafka on the loopback interface, for tests and demo.

    with RealKafka() as kafka:
        print(kafka.bootstrap_servers)

As a script, it downloads Kafka, prints ``listening on HOST:PORT`` and runs until SIGTERM or SIGINT:

    python jobs/real_kafka.py [--listen HOST:PORT] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from child_processes import start_process, stop_process
from kafka_jars import KAFKA_VERSION, UnavailableError, java, kafka_jars

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import Address, dial, listen, parse_listen_address, receive_into, send_all
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.wire import messages
from spark_groupsource.wire.frames import decode_response, encode_request, frame_length

START_TIMEOUT_MS = 60_000
STOP_TIMEOUT_S = 20
TOOL_TIMEOUT_S = 60
_ATTEMPTS = 3
# for a tool that runs for a second, the optimizing compiler costs more than it saves
_SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_METADATA_VERSION = 4  # every supported Kafka serves it
# a misspelled topic name must be an error, not a new topic
_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "false",
    # the controller would write a record each half second, which is half of what an idle node does
    "metadata.max.idle.interval.ms": "0",
}
# without a configuration, log4j prints errors to standard output, into the output of the tools
LOGGING = """\
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.stderr.ref = stderr
"""

ToolRun = subprocess.CompletedProcess[str]


class RealKafka:
    """A KRaft broker and controller in one Java process, with its data in a temporary directory.

    If ``setpriv`` is installed, the process receives SIGTERM when the thread that started it ends, so that it does not
    outlive a crashed test run: start it from a thread that lives as long as the broker is needed.

    Args:
        config: broker settings, which override the defaults above.
        listen_on: address of the listener; None selects a free port of 127.0.0.1.
        cluster_id: id of the cluster that this node belongs to; None for a cluster of one node.
        release: release of Kafka 4 or later.
    """

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        listen_on: Address | None = None,
        cluster_id: str | None = None,
        release: str = KAFKA_VERSION,
    ) -> None:
        self.release = release
        self._config = dict(config or {})
        self._listen_on = listen_on
        self._cluster_id = cluster_id or random_cluster_id()
        self._clock = SystemClock()
        self._directory: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._address: Address | None = None
        self._class_path = ""
        self._java = ""

    def __enter__(self) -> RealKafka:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the running broker."""
        if self._address is None:
            raise UnavailableError("Kafka is not running. Call start() first.")
        return str(self._address)

    @property
    def process_id(self) -> int | None:
        """The process of the broker, None while it is stopped."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process of the broker has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The output of the broker so far."""
        path = self._directory / "broker.log" if self._directory else None
        return path.read_text(errors="replace") if path and path.exists() else ""

    @property
    def data_directory(self) -> Path:
        """The log directory of the broker."""
        if self._directory is None:
            raise UnavailableError("Kafka is not running. Call start() first.")
        return self._directory / "data"

    def start(self) -> None:
        """Downloads Kafka if necessary, starts it, and returns when it serves requests.

        Raises: UnavailableError if Java or a jar is missing or Kafka does not start, with the end of its log.
        """
        try:
            for _ in range(_ATTEMPTS):
                self.launch()
                # another process can take the free port before Kafka binds it
                if self._await_ready() or self._listen_on is not None:
                    break
            self.check_ready()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """As `start`, but does not wait: no node of a cluster is ready before the others run. `check_ready` waits."""
        self._java = java()
        self._class_path = str(kafka_jars(self.release) / "*")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="groupsource-kafka-"))
            atexit.register(self.stop)
        properties = self._write_properties()
        self._format(properties)
        self._spawn(properties)

    def check_ready(self) -> None:
        """Waits until the broker serves requests. Raises: UnavailableError with the end of its log."""
        if self._address is None and not self._await_ready():
            raise UnavailableError(f"Kafka did not start. Last lines of its log:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """Stops the broker, with SIGKILL after 20 s, and deletes its data."""
        process, self._process, self._address = self._process, None, None
        if process is not None:
            stop_process(process, STOP_TIMEOUT_S)
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """Sends SIGKILL; the data is kept for `restart`."""
        if self._process is None:
            raise UnavailableError("Kafka is not running. Call start() first.")
        self._process.kill()
        stop_process(self._process, STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Starts a killed broker on the same data and port; returns when it serves requests.

        Raises: UnavailableError.
        """
        if self._directory is None:
            raise UnavailableError("Kafka was never started. Call start() first.")
        self._spawn(self._directory / "server.properties")
        if not self._await_ready():
            raise UnavailableError(f"Kafka did not restart. Last lines of its log:\n{self.log[-2000:]}")

    def tool(self, main_class: str, *arguments: str, timeout_s: float = TOOL_TIMEOUT_S) -> ToolRun:
        """See `run_tool`; the tool is that of the release of the broker."""
        return run_tool(main_class, *arguments, timeout_s=timeout_s, release=self.release)

    def _spawn(self, properties: Path) -> None:
        assert self._directory is not None
        log = (self._directory / "broker.log").open("a")
        with log:
            command = [*_java_prefix(self._java, self._class_path, "-Xmx512m", _broker_options()), "kafka.Kafka"]
            self._process = start_process([*command, str(properties)], log, log)

    def _await_ready(self) -> bool:
        assert self._process is not None
        deadline_ms = self._clock.now_ms() + START_TIMEOUT_MS
        while self._clock.now_ms() < deadline_ms:
            if self._process.poll() is not None:
                return False
            if _is_ready(self._client_address):
                self._address = self._client_address
                return True
            self._clock.sleep_ms(100)
        stop_process(self._process, STOP_TIMEOUT_S)
        return False

    def _write_properties(self) -> Path:
        assert self._directory is not None
        shutil.rmtree(self._directory / "data", ignore_errors=True)
        self._client_address = self._listen_on or free_address()
        controller = free_address()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self._client_address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self._client_address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._directory / "data"),
            **_DEFAULTS,
            **self._config,
        }
        path = self._directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, properties: Path) -> None:
        run = self.tool("kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(properties))
        if run.returncode != 0:
            raise UnavailableError(f"Kafka rejected its settings: {(run.stderr or run.stdout).strip()[-1500:]}")


def random_cluster_id() -> str:
    """A new cluster id; it does not start with a hyphen, because it is an argument of a tool."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)


def java_command(main_class: str, *arguments: str, release: str = KAFKA_VERSION) -> list[str]:
    """The command line of one of Kafka's tools, for any broker."""
    return [*_java_prefix(java(), str(kafka_jars(release) / "*")), main_class, *arguments]


def run_tool(
    main_class: str,
    *arguments: str,
    timeout_s: float = TOOL_TIMEOUT_S,
    stdin: str | None = None,
    release: str = KAFKA_VERSION,
) -> ToolRun:
    """Runs one of Kafka's tools on any broker, for example
    ``run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", "localhost:9092", "--list")``.

    The caller checks the exit status.
    """
    command = java_command(main_class, *arguments, release=release)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, input=stdin)


def popen_tool(main_class: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts one of Kafka's tools; standard output is a pipe, standard error is discarded. The caller stops it."""
    return start_process(java_command(main_class, *arguments), subprocess.PIPE, subprocess.DEVNULL)


def _broker_options() -> list[str]:
    """JVM options of a broker: the optimizing compiler, unless KAFKA_JVM_PERFORMANCE_OPTS is set."""
    return os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseSerialGC").split()


def _java_prefix(
    executable: str, class_path: str, heap: str = "-Xmx256m", options: Sequence[str] = _SHORT_LIVED
) -> list[str]:
    logging = Path(class_path).parent.with_name("log4j2.properties")
    if not logging.exists():
        partial = logging.with_name(f"log4j2-{uuid.uuid4().hex}.tmp")
        partial.write_text(LOGGING)
        partial.rename(logging)
    return [
        executable,
        heap,
        *options,
        f"-Dlog4j2.configurationFile={logging}",
        # the last value of a property counts
        *os.environ.get("KAFKA_OPTS", "").split(),
        "-cp",
        class_path,
    ]


def free_address() -> Address:
    """An address of 127.0.0.1 whose port is free now."""
    with listen(Address("127.0.0.1", 0)) as probe:
        return Address("127.0.0.1", probe.getsockname()[1])


def _is_ready(address: Address) -> bool:
    """True when the cluster metadata contains the broker; the port is open before that."""
    request = messages.MetadataRequest(topics=[], allow_auto_topic_creation=False)
    try:
        with dial(address, 2_000) as connection:
            send_all(connection, encode_request(request, _METADATA_VERSION, 1, "groupsource"), 2_000)
            prefix = bytearray(4)
            receive_into(connection, memoryview(prefix), 5_000)
            frame = bytearray(frame_length(bytes(prefix), 1 << 20))
            receive_into(connection, memoryview(frame), 5_000)
            return bool(decode_response(memoryview(frame), request, _METADATA_VERSION, 1).brokers)
    except GroupSourceError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one node of Apache Kafka on loopback until SIGTERM.")
    parser.add_argument("--listen", default=None, metavar="HOST:PORT", help="default: a free port of 127.0.0.1")
    parser.add_argument("config", nargs="*", metavar="KEY=VALUE", help="broker settings")
    options = parser.parse_args(arguments)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        address = parse_listen_address(options.listen, "--listen") if options.listen else None
        invalid = [entry for entry in options.config if "=" not in entry]
        if invalid:
            raise ConfigurationError(f"Settings must be KEY=VALUE, got {invalid[0]!r}.")
        with RealKafka(dict(entry.split("=", 1) for entry in options.config), address) as kafka:
            print(f"listening on {kafka.bootstrap_servers}", flush=True)
            stopped.wait()
    except (UnavailableError, ConfigurationError) as error:
        print(f"real_kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
