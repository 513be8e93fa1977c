"""HDFS and YARN with one node, from Hadoop's minicluster jar.

    with HadoopCluster(directory) as hadoop:
        environment = {"HADOOP_CONF_DIR": str(hadoop.configuration)}

The jar has the servers; PySpark bundles the classes of clients of the same release and everything else that is
needed. NameNode, DataNode, ResourceManager and NodeManager are a JVM each, on the loopback interface, and end with the
thread that started them. Containers are processes of this user below `directory`.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyspark
from child_processes import start_process, stop_process
from kafka_jars import Artifact, UnavailableError, fetch, java
from real_kafka import free_address
from support.waiting import wait_until

JARS = Path(pyspark.__file__).parent / "jars"
_START_TIMEOUT_S = 180
_STOP_TIMEOUT_S = 20
# minutes on a busy machine: the tools start a JVM each
_TOOL_TIMEOUT_S = 900
_SERVER = "org.apache.hadoop"
# certificates of web proxies, which the ResourceManager creates at its start; the jar has no copy of them
_CERTIFICATES = [
    Artifact("org.bouncycastle", name, "1.82", intransitive=True)
    for name in ("bcprov-jdk18on", "bcpkix-jdk18on", "bcutil-jdk18on")
]
# in the order in which they are started
_DAEMONS = {
    "namenode": "hdfs.server.namenode.NameNode",
    "datanode": "hdfs.server.datanode.DataNode",
    "resourcemanager": "yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "yarn.server.nodemanager.NodeManager",
}
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")
_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
"""


def hadoop_version() -> str:
    """Returns the release of the Hadoop client that PySpark bundles."""
    found = [re.fullmatch(r"hadoop-client-api-([\d.]+)\.jar", path.name) for path in JARS.glob("hadoop-client-api-*")]
    versions = [match[1] for match in found if match]
    if not versions:
        raise UnavailableError(f"No hadoop-client-api jar in {JARS}. Install PySpark from PyPI.")
    return versions[0]


def minicluster_jars() -> Path:
    """Returns the directory of the servers' jar, downloaded on first use.

    Raises: UnavailableError.
    """
    version = hadoop_version()
    servers = Artifact(_SERVER, "hadoop-client-minicluster", version, intransitive=True)
    return fetch(f"hadoop-minicluster-{version}", (servers, *_CERTIFICATES))


class HadoopCluster:
    """The four servers; a context manager.

    Args:
        directory: for configuration, logs and data; the caller removes it.
        memory_mb: memory of all containers together.
    """

    def __init__(self, directory: Path, memory_mb: int = 6_144) -> None:
        self.directory = directory
        self.configuration = directory / "conf"
        self._memory_mb = memory_mb
        self._daemons: dict[str, subprocess.Popen[str]] = {}
        self._resource_manager = free_address()
        self.file_system = f"hdfs://{free_address()}"
        """URI of HDFS, without a path."""

    def __enter__(self) -> HadoopCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the servers and with them the containers."""
        for process in reversed(self._daemons.values()):
            stop_process(process, _STOP_TIMEOUT_S)
        self._daemons.clear()

    @property
    def containers(self) -> Path:
        """Directory of the containers' files: working directories, launch scripts."""
        return self.directory / "local"

    @property
    def container_logs(self) -> Path:
        """Directory of the containers' output, ``APPLICATION/CONTAINER/stdout`` and ``stderr``."""
        return self.directory / "container-logs"

    def application(self, application_id: str) -> dict[str, Any]:
        """Returns what the ResourceManager's REST API has of an application."""
        app: dict[str, Any] = self._rest(f"apps/{application_id}")["app"]
        return app

    def attempts(self, application_id: str) -> list[dict[str, Any]]:
        """Returns the attempts of an application, the first one first."""
        found: list[dict[str, Any]] = self._rest(f"apps/{application_id}/appattempts")["appAttempts"]["appAttempt"]
        return sorted(found, key=lambda attempt: int(attempt["id"]))

    def yarn(self, *arguments: str) -> str:
        """Runs the command ``yarn`` with these arguments, for example ``application -kill ID``; returns its output.

        Raises: AssertionError if it fails.
        """
        main = f"{_SERVER}.yarn.client.cli.ApplicationCLI"
        run = subprocess.run([*self._java(), main, *arguments], capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def copy_from_hdfs(self, path: str, target: Path) -> Path:
        """Copies a directory of HDFS to this machine; returns `target`."""
        main, source = f"{_SERVER}.fs.FsShell", f"{self.file_system}{path}"
        command = [*self._java(), main, "-get", "-ignoreCrc", source, str(target)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S)
        assert run.returncode == 0, run.stdout + run.stderr
        return target

    def _start(self) -> None:
        for name in ("conf", "logs"):
            (self.directory / name).mkdir(parents=True)
        self._write_configuration()
        formatted = subprocess.run(
            [*self._java(), f"{_SERVER}.{_DAEMONS['namenode']}", "-format", "-nonInteractive"],
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
        )
        if formatted.returncode:
            raise UnavailableError(f"The NameNode did not format its directory: {formatted.stderr[-2_000:]}")
        for name, main in _DAEMONS.items():
            with (self.directory / "logs" / f"{name}.log").open("w") as log:
                self._daemons[name] = start_process([*self._java(), f"{_SERVER}.{main}"], log, log)
        wait_until(self._is_ready, f"HDFS and YARN start in {self.directory}", _START_TIMEOUT_S, 0.5)

    def _is_ready(self) -> bool:
        for name, process in self._daemons.items():
            log = (self.directory / "logs" / f"{name}.log").read_text(errors="replace")
            assert process.poll() is None, f"{name} ended: {log[-3_000:]}"
        try:
            nodes = (self._rest("nodes")["nodes"] or {}).get("node", [])
        except OSError:
            return False
        datanode = (self.directory / "logs" / "datanode.log").read_text(errors="replace")
        return any(node["state"] == "RUNNING" for node in nodes) and "Successfully sent block report" in datanode

    def _rest(self, path: str) -> dict[str, Any]:
        address = f"http://{self._resource_manager}/ws/v1/cluster/{path}"
        with urlopen(Request(address, headers={"Accept": "application/json"}), timeout=10) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def _java(self) -> list[str]:
        class_path = f"{self.configuration}:{minicluster_jars()}/*:{JARS}/*"
        logging = f"-Dlog4j2.configurationFile={self.configuration / 'log4j2.properties'}"
        # Hadoop's own log and work files
        properties = [f"-D{name}={self.directory / 'logs'}" for name in ("hadoop.log.dir", "yarn.log.dir")]
        return [java(), *_JVM, logging, *properties, "-cp", class_path]

    def _write_configuration(self) -> None:
        (self.configuration / "log4j2.properties").write_text(_LOGGING)
        core = {"fs.defaultFS": self.file_system, "hadoop.tmp.dir": self.directory / "data"}
        hdfs = {
            "dfs.replication": 1,
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.http-address": free_address(),
            **{f"dfs.datanode.{name}": free_address() for name in ("address", "http.address", "ipc.address")},
        }
        servers = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        yarn = {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.webapp.address": self._resource_manager,
            **{f"yarn.resourcemanager.{name}": free_address() for name in servers},
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.address": free_address(),
            "yarn.nodemanager.localizer.address": free_address(),
            "yarn.nodemanager.webapp.address": free_address(),
            "yarn.nodemanager.local-dirs": self.containers,
            "yarn.nodemanager.log-dirs": self.container_logs,
            "yarn.nodemanager.resource.memory-mb": self._memory_mb,
            "yarn.nodemanager.resource.cpu-vcores": 8,
            # the default, with a check that sees a short peak
            "yarn.nodemanager.pmem-check-enabled": "true",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.container-monitor.interval-ms": 1_000,
            # the launch scripts of ended containers are kept for the tests
            "yarn.nodemanager.delete.debug-delay-sec": 3_600,
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.resourcemanager.am.max-attempts": 4,
        }
        scheduler = {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 0.9,
        }
        sites = {"core-site": core, "hdfs-site": hdfs, "yarn-site": yarn, "capacity-scheduler": scheduler}
        for name, settings in sites.items():
            items = [f"<name>{key}</name><value>{value}</value>" for key, value in settings.items()]
            text = "".join(f"<property>{item}</property>\n" for item in items)
            (self.configuration / f"{name}.xml").write_text(f"<configuration>\n{text}</configuration>\n")
