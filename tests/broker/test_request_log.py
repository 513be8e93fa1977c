"""Request log of the broker: one line per request, without secrets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from support.clients import group_client, open_cluster, settle
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.request_log import RequestLog, shortened
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.frames import encode_request, read_request_header
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    IncrementalAlterConfigsRequest,
    JoinGroupRequest,
    MetadataRequest,
)


def entries(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    assert all(" DEBUG Completed request:{" in line for line in lines)
    return [json.loads(line.partition("Completed request:")[2]) for line in lines]


def requests_of(path: Path, api: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(path) if entry["requestHeader"]["requestApiKeyName"] == api]


def test_line_has_the_names_of_kafka_and_the_time_until_the_response() -> None:
    lines: list[tuple[str, int]] = []
    now_ns = [5_000_000]
    log = RequestLog(lambda: now_ns[0], lambda line, level=0, /: lines.append((line, level)))
    request = HeartbeatRequest(group_id="g\x7f\n", generation_id=3, member_id="m-1", group_instance_id=None)
    frame = memoryview(bytes(encode_request(request, 4, 17, "client")))[4:]
    header, position = read_request_header(frame)
    context = ApiRequestContext(1, int(ApiKey.HEARTBEAT), 4, "client", "127.0.0.1", 0, 9, "SASL_SSL", "User:a")
    log.received(context, frame, header, position)
    now_ns[0] += 2_500_000
    log.completed(1, HeartbeatResponse(throttle_time_ms=0, error_code=27))
    log.completed(1, HeartbeatResponse(throttle_time_ms=0, error_code=27))
    ((line, level),) = lines
    assert level == logging.DEBUG and line.isprintable()
    assert json.loads(line.removeprefix("Completed request:")) == {
        "requestHeader": {
            "requestApiKeyName": "HEARTBEAT", "requestApiKey": 12, "requestApiVersion": 4, "correlationId": 17,
            "clientId": "client",
        },
        "request": {"groupId": "g\x7f\n", "generationId": 3, "memberId": "m-1", "groupInstanceId": None},
        "node": 0,
        "connection": "127.0.0.1-9",
        "listener": "SASL_SSL",
        "principal": "User:a",
        "response": {"throttleTimeMs": 0, "errorCode": 27},
        "totalTimeMs": 2.5,
    }  # fmt: skip


def test_lists_and_texts_are_shortened_and_values_are_left_out() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=f"t{n}" + "x" * 300) for n in range(1_000)]
    found = shortened(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
    assert len(found["topics"]) == 6 and found["topics"][5] == "and 995 more"
    assert found["topics"][0]["name"].endswith("x...") and len(found["topics"][0]["name"]) == 203
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"secret")
    joined = shortened(JoinGroupRequest(group_id="g", protocols=[protocol]))
    assert joined["protocols"] == [{"name": "range"}]
    config = IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
        name="ssl.keystore.password", config_operation=0, value="secret"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="0", configs=[config]
    )
    altered = shortened(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert altered["resources"][0]["configs"] == [{"name": "ssl.keystore.password"}] and "secret" not in str(altered)


@pytest.mark.slow
def test_embedded_broker_logs_the_requests_of_clients(tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    users = ["SCRAM-SHA-256=[name=ada,password=verysecret]"]
    config = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    login = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "ada",
        "sasl.password": "verysecret",
    }  # fmt: skip
    with EmbeddedBroker(topics={"t": 2}, config=config, add_scram=users, log_requests=path) as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "writer", **login}
        producer = Producer(client)
        producer.produce("t", b"hidden value")
        assert producer.flush(30) == 0
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion("bob", credential, b"othersecret")
        admin = AdminClient(client)
        admin.alter_user_scram_credentials([change])["bob"].result(30)
        wait_until(lambda: requests_of(path, "ALTER_USER_SCRAM_CREDENTIALS"), "the request is logged")
    (produced,) = requests_of(path, "PRODUCE")
    assert produced["principal"] == "User:ada" and produced["requestHeader"]["clientId"] == "writer"
    (topic,) = produced["request"]["topicData"]
    assert topic["partitionData"][0]["recordsSizeInBytes"] > 60 and produced["totalTimeMs"] > 0
    assert requests_of(path, "ALTER_USER_SCRAM_CREDENTIALS")[0]["request"] == {
        "deletions": [], "upsertions": [{"name": "bob"}]
    }  # fmt: skip
    text = path.read_text()
    assert not [each for each in ("verysecret", "othersecret", "hidden value", "SASL_AUTH") if each in text]


def test_requests_of_a_group_show_generation_and_member(tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    with EmbeddedBroker(topics={"t": 2}, log_requests=path) as broker:
        with open_cluster(broker.bootstrap_servers) as client:
            group = group_client(client, "g", "t")
            (member,) = settle(group).members
            group.commit({TopicPartition("t", 0): OffsetAndMetadata(0)})
            group.close()
    # those of a broker that stops are written, too
    commit = requests_of(path, "OFFSET_COMMIT")[-1]
    assert commit["request"]["groupId"] == "g" and commit["request"]["memberId"] == member.member_id
    assert commit["response"]["topics"][0]["partitions"] == [{"partitionIndex": 0, "errorCode": 0}]
    joined = requests_of(path, "JOIN_GROUP")[-1]["response"]
    assert (joined["generationId"], joined["leader"]) == (1, member.member_id)
    assert len({entry["connection"] for entry in entries(path)}) > 1


def test_without_the_option_there_is_no_log_and_with_true_the_logger_has_the_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the broker has no request log")

    with monkeypatch.context() as patched:
        patched.setattr(RequestLog, "__init__", fail)
        with EmbeddedBroker() as broker, open_cluster(broker.bootstrap_servers) as client:
            client.metadata(None, refresh=True)
    logger = "kafka.request.logger"
    assert not [record for record in caplog.records if record.name == logger]
    with caplog.at_level(logging.DEBUG, logger), EmbeddedBroker(log_requests=True) as broker:
        with open_cluster(broker.bootstrap_servers) as client:
            client.metadata(None, refresh=True)
    assert [record for record in caplog.records if record.name == logger and '"METADATA"' in record.getMessage()]


def test_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log_requests: .*absent.* cannot be written"):
        EmbeddedBroker(log_requests=tmp_path / "absent" / "file").start()
    with pytest.raises(ConfigurationError, match="Argument log_requests must be"):
        EmbeddedBroker(log_requests=3)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("has_file", [False, True])
def test_command_writes_to_standard_error_or_a_file(tmp_path: Path, has_file: bool) -> None:
    path = tmp_path / "requests.log"
    option = f"--log-requests={path}" if has_file else "--log-requests"
    command = [sys.executable, "-m", "spark_groupsource.cli", "broker", "--listen", "127.0.0.1:0", "--data-dir"]
    with open(tmp_path / "stderr", "wb") as output:
        process = subprocess.Popen([*command, str(tmp_path / "data"), option], stdout=subprocess.PIPE, stderr=output)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().removeprefix("listening on ").strip()
            with open_cluster(address) as client:
                client.metadata(None, refresh=True)
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert process.returncode == 0
    assert requests_of(path if has_file else tmp_path / "stderr", "METADATA")
    assert not has_file or not (tmp_path / "stderr").read_text()
