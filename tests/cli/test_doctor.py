"""``groupsource doctor``: each check with real sockets, good and bad."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition
from support.clients import advertise, fake_broker
from support.clusters import Cluster
from support.commits import commit_as
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli import doctor_checks, doctor_machine
from spark_groupsource.cli.doctor_findings import Check, Status, run_checks
from spark_groupsource.cli.main import main
from spark_groupsource.client.admin import GroupDescription
from spark_groupsource.common.net import Address
from spark_groupsource.errors import NetworkError
from spark_groupsource.model import Node
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.messages import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

GOOD_WORKER = {
    **{"python": [3, 11], "own": [3, 11], "path": "python3", "spark": "4.2.0", "home": "/spark"},
    **{"source": "groupsource", "error": None, "has_admission_control": True},
}


@pytest.fixture(autouse=True)
def no_machine_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start processes, and have a test of their own."""
    monkeypatch.setattr("spark_groupsource.cli.doctor.MACHINE_CHECKS", ())


def run(bootstrap_servers: str, *arguments: object) -> Result:
    command = ["doctor", "--bootstrap-server", bootstrap_servers, "--timeout", "2000", *map(str, arguments)]
    return CliRunner().invoke(main, command)


def findings(bootstrap_servers: str, *arguments: object) -> dict[str, list[dict[str, str]]]:
    """The lines of each check."""
    result = run(bootstrap_servers, "--json", *arguments)
    found: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(result.stdout):
        found.setdefault(finding["check"], []).append(finding)
    assert result.exit_code == any(f["status"] == "bad" for lines in found.values() for f in lines)
    return found


def only_bad(found: dict[str, list[dict[str, str]]]) -> tuple[str, str]:
    """Returns check and whole line of the only bad finding."""
    bad = [finding for lines in found.values() for finding in lines if finding["status"] == "bad"]
    assert len(bad) == 1, found
    return bad[0]["check"], f"{bad[0]['text']} {bad[0]['fix']}"


def properties(path: Path, **settings: str) -> Path:
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    return path


@contextmanager
def tls_listener() -> Iterator[str]:
    """A listener with TLS, whose cipher needs no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(peer, server_side=True).close()
            except OSError:
                # the listener has sent an alert
                peer.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def test_everything_is_good(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, ((n % 2, None, b"x") for n in range(10)))
    commit_as(cluster.bootstrap_servers, group, [TopicPartition(topic, 0, 2)])
    found = findings(cluster.bootstrap_servers, "--topic", topic, "--group", group)
    statuses = {check: {line["status"] for line in lines} for check, lines in found.items()}
    cluster_checks = [c.name for c in doctor_checks.CLUSTER_CHECKS if c.name not in ("checkpoint", "transaction")]
    assert statuses == dict.fromkeys(cluster_checks, {"good"})
    assert found["offsets"][0]["text"] == "1 committed offsets are within the log: lag 3."


def test_lines_start_with_the_status(embedded: EmbeddedBroker) -> None:
    result = run(embedded.bootstrap_servers, "--topic", "missing-topic")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"good", "bad", "unknown"}
    (bad,) = [line for line in lines if line.startswith("bad ")]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in bad and "Create it" in bad


def test_no_listener_and_unknown_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = findings(f"127.0.0.1:{port},no-such-host.invalid:9092")
    assert (found["dns"][0]["status"], found["dns"][1]["status"]) == ("good", "bad")
    assert "no-such-host.invalid:9092 failed: the host name cannot be resolved" in found["dns"][1]["text"]
    assert found["tcp"][0]["fix"] == "Check that a broker listens there."
    assert found["tls"][0] == {
        "check": "tls", "status": "unknown", "text": "Not checked: tcp is not good.", "fix": "",
    }  # fmt: skip


def test_one_listener_of_two_is_enough_for_the_later_checks(embedded: EmbeddedBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = findings(f"127.0.0.1:{port},{embedded.bootstrap_servers}")
    assert only_bad(found)[0] == "tcp" and found["brokers"][0]["status"] == "good"


@pytest.mark.slow
def test_listener_of_a_controller() -> None:
    row = ApiVersionsResponse.ApiVersion
    keys = [row(api_key=18, min_version=0, max_version=3), row(api_key=62, min_version=0, max_version=4)]
    response = ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)
    with fake_broker(ApiVersions=lambda request, version: response) as controller:
        check, text = only_bad(findings(str(controller.address)))
    assert check == "versions" and "listener of a KRaft controller" in text and "Set bootstrap.servers to" in text


def test_old_broker() -> None:
    with fake_broker(ApiVersions=lambda request, version: advertise(ApiVersions=(0, 3), Metadata=(0, 1))) as broker:
        check, text = only_bad(findings(str(broker.address)))
    assert check == "versions" and "Metadata" in text and "Use a newer broker" in text


def test_tls_port_without_tls_and_plain_port_with_tls(tmp_path: Path, embedded: EmbeddedBroker) -> None:
    with tls_listener() as address:
        check, text = only_bad(findings(address))
    assert check == "versions" and "the listener uses TLS. Set security.protocol to SSL, or" in text
    config = properties(tmp_path / "c", security_protocol="SSL")
    check, text = only_bad(findings(embedded.bootstrap_servers, "--command-config", config))
    assert check == "tls" and "TLS handshake with" in text and "security.protocol" in text


def test_wrong_login(tmp_path: Path) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'
    config = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
    }
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "ann", "sasl_password": "secret"}
    with EmbeddedBroker(config=config) as broker:
        address = broker.bootstrap_servers
        good = properties(tmp_path / "good", **sasl, sasl_mechanism="PLAIN")
        assert "user 'ann' by PLAIN" in findings(address, "--command-config", good)["login"][0]["text"]
        mechanism = properties(tmp_path / "mechanism", **sasl, sasl_mechanism="SCRAM-SHA-256")
        check, text = only_bad(findings(address, "--command-config", mechanism))
        assert check == "login" and "Set sasl.mechanism to one of: PLAIN." in text
        password = properties(tmp_path / "password", **{**sasl, "sasl_password": "x"}, sasl_mechanism="PLAIN")
        check, text = only_bad(findings(address, "--command-config", password))
        assert check == "login" and "Check user name and password." in text
        check, text = only_bad(findings(address))
        assert check == "login" and "Check that the listener uses security.protocol=PLAINTEXT" in text


def test_wrong_advertised_listener() -> None:
    node = MetadataResponse.MetadataResponseBroker(node_id=1, host="no-such-host.invalid", port=9092, rack=None)
    metadata = MetadataResponse(throttle_time_ms=0, brokers=[node], cluster_id="c", controller_id=1, topics=[])
    ranges = {APIS[key].name: (APIS[key].min_version, APIS[key].max_version) for key in doctor_checks.REQUIRED_APIS}
    versions = advertise(ApiVersions=(0, 3), **ranges)
    with fake_broker(ApiVersions=lambda r, v: versions, Metadata=lambda r, v: metadata) as broker:
        check, text = only_bad(findings(str(broker.address), "--topic", "t"))
    assert check == "brokers"
    assert "advertises no-such-host.invalid:9092" in text and "Set advertised.listeners of the broker" in text


def test_invalid_settings(tmp_path: Path) -> None:
    check, text = only_bad(findings("localhost"))
    assert check == "settings" and "'localhost' is not host:port" in text
    config = properties(tmp_path / "c", security_protocl="SSL")
    check, text = only_bad(findings("localhost:1", "--command-config", config))
    assert check == "settings" and "Did you mean security.protocol" in text


def test_checkpoint_that_does_not_exist(embedded: EmbeddedBroker, tmp_path: Path) -> None:
    check, text = only_bad(findings(embedded.bootstrap_servers, "--checkpoint", tmp_path))
    assert check == "checkpoint" and "it has no folder offsets" in text


def test_checkpoint_of_another_group_and_of_none() -> None:
    (other,) = doctor_checks.evaluate_checkpoint(doctor_checks.ComparedCheckpoint("mine", "theirs", []))
    assert other.status is Status.BAD and "is that of group 'theirs', not of 'mine'" in other.text
    assert "Use another checkpointLocation" in other.fix
    (unknown,) = doctor_checks.evaluate_checkpoint(doctor_checks.ComparedCheckpoint("", None, []))
    assert (unknown.status, unknown.fix) == (Status.UNKNOWN, "Give --group.")


def test_checkpoint_that_cannot_be_read(embedded: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id": "q"}')
    for content, fact in (("v1\n{}\nnot JSON", "0"), ("v9\n{}", "v9"), ("", "0")):
        (tmp_path / "offsets" / "0").write_text(content)
        check, text = only_bad(findings(embedded.bootstrap_servers, "--checkpoint", tmp_path))
        assert check == "checkpoint" and str(tmp_path) in text and fact in text, text


def test_missing_permissions() -> None:
    """Each check that a permission is missing for names it; the others go on."""
    topic = MetadataResponse.MetadataResponseTopic(error_code=29, name="t", is_internal=False, partitions=[])

    def metadata(request: Any, version: int) -> MetadataResponse:
        node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port(), rack=None)
        topics = [topic] if request.topics else []
        return MetadataResponse(throttle_time_ms=0, brokers=[node], cluster_id="c", controller_id=1, topics=topics)

    def coordinator(request: Any, version: int) -> FindCoordinatorResponse:
        nowhere = {"node_id": -1, "host": "", "port": -1}
        return FindCoordinatorResponse(throttle_time_ms=0, error_code=30, error_message=None, **nowhere)

    ranges = {APIS[key].name: (APIS[key].min_version, APIS[key].max_version) for key in doctor_checks.REQUIRED_APIS}
    versions = advertise(ApiVersions=(0, 3), **{**ranges, "FindCoordinator": (0, 3)})
    handlers = {"ApiVersions": lambda r, v: versions, "Metadata": metadata, "FindCoordinator": coordinator}
    with fake_broker(**handlers) as broker:

        def port() -> int:
            return broker.address.port

        found = findings(str(broker.address), "--topic", "t", "--group", "g")
    for check, grant in (("topic", "DESCRIBE and READ on the topic"), ("group", "--group"), ("offsets", "--group")):
        (line,) = found[check]
        assert line["status"] == "bad" and grant in line["fix"], line
    assert "TOPIC_AUTHORIZATION_FAILED" in found["topic"][0]["text"]
    assert found["__consumer_offsets"][0]["status"] == "unknown"


def test_java_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/java")
    (java,) = [check for check in doctor_machine.MACHINE_CHECKS if check.name == "java"]
    (found,) = run_checks([replace(java, needs="")], None)
    assert found.status is Status.BAD and "/no/java/bin/java" in found.text
    assert found.fix == "Install Java 17 or later and set JAVA_HOME."


def test_offsets_outside_of_the_log() -> None:
    first, second, gone = (("t", number) for number in range(3))
    found = doctor_checks.GroupPositions(
        "g", {first: 1, second: 9, gone: 4}, {first: 5, second: 0}, {first: 9, second: 7}
    )
    results = list(doctor_checks.evaluate_offsets(found))  # type: ignore[arg-type]
    assert [r.status for r in results] == [Status.BAD, Status.BAD, Status.UNKNOWN]
    assert "below the log start offset" in results[0].text and "above the log end offset" in results[1].text


@pytest.mark.parametrize(
    ("state", "protocol_type", "status"),
    [
        ("Dead", "", Status.UNKNOWN),
        ("Empty", "consumer", Status.GOOD),
        ("Stable", "connect", Status.BAD),
        ("PreparingRebalance", "consumer", Status.UNKNOWN),
    ],
)
def test_states_of_a_group(state: str, protocol_type: str, status: Status) -> None:
    group = GroupDescription("g", state, protocol_type, "range", (), Node(1, "h", 1))
    (result,) = doctor_checks.evaluate_group(doctor_checks.DescribedGroup(group))
    assert result.status is status and (status is Status.GOOD or result.fix)


@pytest.mark.parametrize(
    ("latest_ms", "status"), [(None, "unknown"), (1, "unknown"), (99_000, "good"), (106_000, "bad")]
)
def test_clock_of_a_broker(latest_ms: int | None, status: str) -> None:
    (result,) = doctor_checks.evaluate_clock(doctor_checks.Clocks(latest_ms, 100_000))
    assert result.status.value == status


@pytest.mark.parametrize(
    ("evaluate", "facts", "status"),
    [
        (doctor_machine.evaluate_python, GOOD_WORKER, "good"),
        (doctor_machine.evaluate_python, {**GOOD_WORKER, "python": [3, 10]}, "bad"),
        (doctor_machine.evaluate_spark, GOOD_WORKER, "good"),
        (doctor_machine.evaluate_spark, {**GOOD_WORKER, "spark": "3.5.1"}, "bad"),
        (doctor_machine.evaluate_spark, {**GOOD_WORKER, "spark": "4.0.1", "has_admission_control": False}, "good"),
        (doctor_machine.evaluate_spark, {**GOOD_WORKER, "spark": None}, "unknown"),
        (doctor_machine.evaluate_source, GOOD_WORKER, "good"),
        (doctor_machine.evaluate_source, {**GOOD_WORKER, "source": None, "error": "ImportError: x"}, "bad"),
        (doctor_machine.evaluate_java, 'openjdk version "17.0.9" 2023-10-17', "good"),
        (doctor_machine.evaluate_java, 'java version "1.8.0_202"', "bad"),
        (doctor_machine.evaluate_java, "?", "unknown"),
        (doctor_machine.evaluate_sockets, "spark.python.unix.domain.socket.enabled true", "good"),
        (doctor_machine.evaluate_sockets, None, "good"),
        (doctor_machine.evaluate_archive, True, "good"),
        (doctor_machine.evaluate_archive, None, "good"),
        (doctor_machine.evaluate_archive, False, "unknown"),
    ],
)
def test_machine(evaluate: Any, facts: Any, status: str) -> None:
    (result,) = evaluate(facts)
    assert result.status.value == status and (status == "good" or result.fix)


@pytest.mark.parametrize(
    ("settings", "on_linux", "elsewhere"),
    [
        ("#ENABLED true", "good", "unknown"),
        ("ENABLED false", "good", "unknown"),
        ("spark.master yarn\nENABLED  true", "bad", "bad"),
        ("--master yarn --conf ENABLED=true --name x", "bad", "bad"),
        ("spark.master yarn\n# short\nspark.python.unix.domain.socket.dir /tmp\nENABLED true", "good", "good"),
        ("spark.master yarn", "good", "unknown"),
        ("spark.master local\nENABLED true", "good", "good"),
    ],
)
def test_unix_sockets_are_needed_off_linux_and_in_a_short_directory_on_yarn(
    settings: str, on_linux: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for is_linux in (True, False):
        monkeypatch.setattr(doctor_machine, "CAN_ACKNOWLEDGE_NOW", is_linux)
        defaults = settings.replace("ENABLED", "spark.python.unix.domain.socket.enabled")
        (result,) = doctor_machine.evaluate_sockets(defaults)
        assert result.status is Status.GOOD or "Set " in result.fix
        found.append(result.status.value)
    assert found == [on_linux, elsewhere]


def test_spark_without_admission_control_is_named() -> None:
    (result,) = doctor_machine.evaluate_spark({**GOOD_WORKER, "spark": "4.1.2", "has_admission_control": False})
    assert (result.status, "without admission control" in result.text) == (Status.GOOD, True)


@pytest.mark.slow
def test_machine_checks_run_here() -> None:
    found = run_checks(doctor_machine.MACHINE_CHECKS, None)
    assert [f.check for f in found] == ["python", "spark", "java", "data source", "unix sockets", "pyspark archive"]
    # the others depend on the configuration of this machine
    assert [f.status for f in found[:4]] == [Status.GOOD] * 4, found


def test_python_of_the_workers_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/python")
    found = run_checks(doctor_machine.MACHINE_CHECKS, None)
    assert [f.status.value for f in found] == ["bad"] + ["unknown"] * 5
    assert "Set PYSPARK_PYTHON" in found[0].fix


def test_an_error_without_a_remedy_gets_that_of_its_check() -> None:
    def fail(target: None, facts: Any) -> None:
        raise NetworkError(f"TLS handshake with {Address('127.0.0.1', 1)} failed: no response within 5 ms.")

    (found,) = run_checks([Check("tls", fail, lambda facts: [], fix="Check it.")], None)
    assert found.fix == "Check it." and found.text.endswith("127.0.0.1:1 failed: no response within 5 ms.")
