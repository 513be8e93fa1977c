"""The pods of docs/kubernetes.md: signals, grace period, read-only root, user, probes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
import yaml
from support.certificates import CA, KEY, SERVER
from support.kubernetes_api import KubernetesApi, kubernetes_api
from support.pods import REPOSITORY, Container, Node, missing_tools, running
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

PAGE = REPOSITORY / "docs" / "kubernetes.md"
JOBS = {f"/opt/jobs/{name}": REPOSITORY / "jobs" / name for name in ("land_parquet.py", "job_support.py")}
PARTITIONS, RECORDS, BATCH = 4, 1_200, 40
GROUP, TOPIC = "landing", "flights"
SMALL_BATCHES = ("--max-offsets", str(BATCH), "--trigger", "200 milliseconds")
SESSION_TIMEOUT_S = 6
MISSING = missing_tools()

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(MISSING != "", reason=MISSING or "-"),
]


@cache
def manifests() -> dict[str, dict[str, Any]]:
    """The manifests of the page, by ``kind/name``."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    found = [manifest for block in blocks for manifest in yaml.safe_load_all(block)]
    return {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in found}


class Driver:
    """The StatefulSet of the page, with one pod after the other on the same volume."""

    def __init__(self, directory: Path, broker: EmbeddedBroker) -> None:
        secret = {**manifests()["Secret/kafka-client"]["stringData"], "ca.crt": CA, "password": "hush"}
        secret["client.properties"] += f"session.timeout.ms={SESSION_TIMEOUT_S}000\n"
        passwd = manifests()["ConfigMap/landing-passwd"]["data"]
        objects = {"secret/kafka-client": secret, "configMap/landing-passwd": passwd}
        self.data = directory / "claim"
        self.address = broker.bootstrap_servers
        self.node = Node(directory, JOBS, objects, {"data": self.data})
        self._started = 0
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
        settings |= {"sasl.password": "hush", "ssl.ca.pem": CA, "bootstrap.servers": broker.bootstrap_servers}
        parsed = ClientSettings.parse(settings)
        self._client = ClusterClient(parsed.bootstrap, parsed)

    def close(self) -> None:
        self._client.close()

    def pod(self, *arguments: str) -> dict[str, Any]:
        stateful_set = json.loads(json.dumps(manifests()["StatefulSet/landing"]).replace("kafka:9092", self.address))
        template: dict[str, Any] = stateful_set["spec"]["template"]
        spec = template["spec"]
        container = spec["containers"][0]
        container["args"] += arguments
        for claim in stateful_set["spec"]["volumeClaimTemplates"]:
            name = claim["metadata"]["name"]
            spec["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": name}})
        self._started += 1
        return {**template, "metadata": {"name": f"landing-{self._started}"}}

    def start(self, pod: dict[str, Any], entry_point: str = "tini") -> AbstractContextManager[Container]:
        return running(self.node.start(pod, entry_point))

    def committed(self) -> dict[int, int]:
        return {p.partition: c.offset for p, c in self._client.fetch_committed(GROUP).items() if c is not None}

    def members(self) -> int:
        return len(describe_groups(self._client, [GROUP])[GROUP].members)

    def wait_for_commits(self, container: Container, count: int) -> None:
        def has_committed() -> bool:
            assert container.status is None, container.log.read_text()[-3000:]
            return sum(self.committed().values()) >= count

        wait_until(has_committed, f"{count} committed", 240, 0.2)

    def positions(self) -> list[tuple[int, int]]:
        """The rows that Spark's file sink has committed."""
        log = self.data / "flights" / "_spark_metadata"
        names = set()
        for file in log.glob("[0-9]*"):
            for line in file.read_text().splitlines()[1:]:
                names.add(json.loads(line)["path"].partition("/data/flights/")[2])
        files = [str(self.data / "flights" / name) for name in names]
        rows = pyarrow.dataset.dataset(files).to_table(["kafka_partition", "kafka_offset"]).to_pylist()
        return sorted((row["kafka_partition"], row["kafka_offset"]) for row in rows)

    def check_rows_equal_commits(self) -> None:
        assert self.positions() == [(p, n) for p, end in sorted(self.committed().items()) for n in range(end)]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    store = tmp_path / "server.pem"
    store.write_text(KEY + SERVER)
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="hush";'
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(store),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
    }
    with EmbeddedBroker(config=config, topics={TOPIC: PARTITIONS}) as broker:
        for partition in range(PARTITIONS):
            rows = [{"carrier": "UA", "delay": n} for n in range(RECORDS // PARTITIONS)]
            broker.produce(TOPIC, rows, partition)
        started = Driver(tmp_path, broker)
        yield started
        started.close()


def submit_command(address: str, directory: Path) -> list[str]:
    """The command of the page, with another address of the brokers; its template is a file of the page."""
    (block,) = [b for b in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "k8s://" in b]
    template = directory / "pod.yaml"
    template.write_text(yaml.safe_dump(manifests()["Pod/landing-template"]))
    words = shlex.split(block.replace("\\\n", " ").replace("kafka:9092", address).replace("pod.yaml", str(template)))
    return [str(Path(sys.executable).parent / words[0]), *words[1:]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def submit(command: list[str], api: KubernetesApi, *settings: str) -> None:
    """Submits an application to a substitute of Kubernetes' API server."""
    command = [api.url if word.startswith("k8s://") else word for word in command]
    where = next(n for n, word in enumerate(command) if word.startswith("local://"))
    more = [word for setting in settings for word in ("--conf", f"spark.{setting}")]
    variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "HADOOP_USER_NAME": "spark"}
    words = [*command[:where], *more, *command[where:]]
    run = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.mark.soak
def test_application_in_cluster_mode_reads_in_executor_pods_and_drains(driver: Driver, tmp_path: Path) -> None:
    driver.node.claims["landing"] = driver.data
    # without a cluster network, the ports of all pods are those of this machine
    settings = [f"driver.port={free_port()}", f"driver.blockManager.port={free_port()}", "executor.memory=512m"]
    with kubernetes_api(driver.node) as api:
        command = [*submit_command(driver.address, tmp_path), *SMALL_BATCHES]
        submit(command, api, *settings, f"kubernetes.driver.master={api.url.removeprefix('k8s://')}")
        (key,) = [key for key in api.objects if key.startswith("pods/") and key.endswith("-driver")]
        pod = wait_until(lambda: api.containers.get(key), "the driver pod")
        driver.wait_for_commits(pod, 4 * BATCH)
        executors = [other for name, other in api.containers.items() if name != key]
        assert len(executors) == 2 and all(executor.status is None for executor in executors)
        check_stopped(driver, pod)
        wait_until(lambda: all(executor.status is not None for executor in executors), "the executors end", 60)
        assert "hush" not in json.dumps(api.objects)
    assert 4 * BATCH <= len(driver.positions()) < RECORDS


def test_objects_of_an_application_have_references_to_secrets_alone(tmp_path: Path) -> None:
    with kubernetes_api() as api:
        command = [*submit_command("kafka:9092", tmp_path), "--log-level", "from-an-argument"]
        reference = "kubernetes.driver.secretKeyRef.KAFKA_PASSWORD=kafka-client:password"
        submit(command, api, reference, "my.password=from-a-setting")
        kinds = {key.partition("/")[0]: value for key, value in api.objects.items()}
        assert api.unknown == [] and kinds.keys() == {"pods", "services", "configmaps", "networkpolicies"}
    spec = kinds["pods"]["spec"]
    container = spec["containers"][0]
    assert container["args"][:3] == ["driver", "--properties-file", "/opt/spark/conf/spark.properties"]
    assert "/etc/kafka/client.properties" in container["args"]
    assert {"name": "kafka", "secret": {"secretName": "kafka-client"}} in spec["volumes"]
    variable = {"secretKeyRef": {"key": "password", "name": "kafka-client"}}
    assert {"name": "KAFKA_PASSWORD", "valueFrom": variable} in container["env"]
    # the template's
    assert spec["terminationGracePeriodSeconds"] == 90 and spec["securityContext"]["runAsUser"] == 185
    assert container["securityContext"]["readOnlyRootFilesystem"] and container["workingDir"] == "/tmp"
    # the heap and spark.driver.memoryOverhead
    assert container["resources"]["limits"]["memory"] == "1792Mi"
    # what is text in the command is text in the objects
    assert "from-an-argument" in container["args"]
    assert any("my.password=from-a-setting" in text for text in config_texts(api))


def config_texts(api: KubernetesApi) -> list[str]:
    return [text for key, value in api.objects.items() if "configmaps/" in key for text in value["data"].values()]


def check_stopped(driver: Driver, pod: Container) -> None:
    """Ends a pod by SIGTERM, and checks that it has drained within its grace period."""
    started_s = time.monotonic()
    assert pod.stop() == 128 + signal.SIGTERM, pod.log.read_text()[-3000:]
    print(f"drained in {time.monotonic() - started_s:.1f} s")
    assert driver.members() == 0
    driver.check_rows_equal_commits()


@pytest.mark.parametrize(
    "entry_point", ["tini", *(pytest.param(name, marks=pytest.mark.soak) for name in ("shell", "command"))]
)
def test_driver_pod_drains_within_its_grace_period_and_continues(driver: Driver, entry_point: str) -> None:
    with driver.start(driver.pod(*SMALL_BATCHES), entry_point) as pod:
        driver.wait_for_commits(pod, 4 * BATCH)
        for required in ("alive", "joined"):
            probe = pod.run("groupsource", "doctor", "--queries", required, "--json")
            (line,) = json.loads(probe.stdout)
            assert probe.returncode == 0 and "of group 'landing' is running" in line["text"], probe
        assert pod.run("touch", "/opt/file").stderr.endswith("Read-only file system\n")
        check_stopped(driver, pod)
        print("memory", {kind: (path / "memory.max_usage_in_bytes").read_text() for kind, path in pod.cgroups.items()})
    assert 4 * BATCH <= len(driver.positions()) < RECORDS
    with driver.start(driver.pod(), entry_point) as pod:
        driver.wait_for_commits(pod, RECORDS)
        check_stopped(driver, pod)
    assert len(driver.positions()) == RECORDS


@pytest.mark.soak
def test_killed_driver_pod_leaves_its_members_and_loses_nothing(driver: Driver) -> None:
    with driver.start(driver.pod(*SMALL_BATCHES)) as pod:
        driver.wait_for_commits(pod, 4 * BATCH)
        pod.send(signal.SIGKILL)
        wait_until(lambda: pod.status is not None, "the pod ends")
        # the reader process, which would leave the group, was killed with the pod
        assert driver.members() == 2
    killed_s = time.monotonic()
    with driver.start(driver.pod()) as pod:
        driver.wait_for_commits(pod, RECORDS)
        assert time.monotonic() - killed_s > SESSION_TIMEOUT_S / 2, "the members of the killed pod were not waited for"
        check_stopped(driver, pod)
    assert len(driver.positions()) == RECORDS


def test_user_id_without_a_passwd_entry_under_a_read_only_root(driver: Driver) -> None:
    pod = driver.pod()
    container = pod["spec"]["containers"][0]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "passwd"]
    with driver.start(pod) as refused:
        wait_until(lambda: refused.status is not None, "Spark ends", 60)
        assert refused.status == 1 and "basedir must be absolute: ?/" in refused.log.read_text()
