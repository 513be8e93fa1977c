"""The jobs for copying: landing in Parquet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_support
import land_parquet
import pyarrow.dataset
import pytest
from child_processes import start_process, stop_process
from click import ClickException
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from support.topics import create_topic
from support.waiting import wait_until

JOBS = Path(job_support.__file__).parent
DAY_MS = 1_700_006_400_000  # 2023-11-15T00:00:00Z
SCHEMA = "carrier STRING, delay INT"


@pytest.fixture(
    params=[
        "embedded",
        # both in every run would repeat what other tests show
        pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.soak]),
    ]
)
def servers(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap_servers)


def send(servers: str, topic: str, *records: tuple[str | None, Any, int]) -> None:
    """Produces (key, value, timestamp) to partition 0; a value that is neither None nor bytes is encoded as JSON."""
    producer = Producer({"bootstrap.servers": servers})
    for key, value, timestamp in records:
        encoded = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, encoded, key, 0, timestamp=timestamp)
    assert producer.flush(30) == 0


def arguments(servers: str, topic: str, group: str, directory: Path) -> list[str]:
    found = ["--bootstrap-servers", servers, "--topic", topic, "--group", group, "--members", "1"]
    return [*found, "--checkpoint", str(directory / "checkpoint"), "--available-now"]


def committed(servers: str, group: str, topic: str) -> int:
    """The committed offset of partition 0; negative without a commit."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    offset: int = consumer.committed([TopicPartition(topic, 0)], 10)[0].offset
    consumer.close()
    return offset


def rows_of(directory: Path) -> list[dict[str, Any]]:
    table = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: (row["kafka_partition"], row["kafka_offset"]))


@pytest.mark.parametrize("module", [land_parquet])
def test_help_names_the_common_options(module: Any) -> None:
    result = CliRunner().invoke(module.main, ["--help"])
    assert result.exit_code == 0
    assert {"--bootstrap-servers", "--topic", "--group", "--checkpoint", "--command-config"} <= set(
        result.output.replace(",", " ").split()
    )


def test_settings_of_the_properties_file_are_options_of_the_source(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=other:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    assert job_support.Topic("b:9092", "t", file).options() == {
        "kafka.bootstrap.servers": "b:9092",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "subscribe": "t",
    }


def test_landed_rows_have_columns_position_and_date(
    spark: Any, servers: str, topic: str, group: str, tmp_path: Path
) -> None:
    create_topic(servers, topic)
    send(
        servers, topic,
        ("a", {"carrier": "UA", "delay": 3}, DAY_MS - 1),
        ("b", {"carrier": "AA", "delay": None, "more": 1}, DAY_MS),
        (None, b"no JSON", DAY_MS + 1),
        ("a", None, DAY_MS + 2),
    )  # fmt: skip
    options = [*arguments(servers, topic, group, tmp_path), "--schema", SCHEMA, "--output", str(tmp_path / "out")]
    land_parquet.main.main(options, standalone_mode=False)
    found = [
        tuple(row[name] for name in ("carrier", "delay", "_corrupt_record", "kafka_key", "kafka_offset", "date"))
        for row in rows_of(tmp_path / "out")
    ]
    assert found == [
        ("UA", 3, None, "a", 0, "2023-11-14"),
        ("AA", None, None, "b", 1, "2023-11-15"),
        (None, None, "no JSON", None, 2, "2023-11-15"),
        (None, None, None, "a", 3, "2023-11-15"),
    ]
    assert committed(servers, group, topic) == 4


def test_invalid_schema_is_a_one_line_error(spark: Any, servers: str, topic: str, group: str, tmp_path: Path) -> None:
    options = [*arguments(servers, topic, group, tmp_path), "--schema", "carrier STRNG", "--output", "o"]
    with pytest.raises(ClickException) as caught:
        land_parquet.main.main(options, standalone_mode=False)
    assert "STRNG" in caught.value.message and "\n" not in caught.value.message


@pytest.fixture
def landing(embedded: Any, topic: str, group: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The job in a process of its own, without spark-submit; its log is `tmp_path/log`."""
    create_topic(embedded.bootstrap_servers, topic)
    options = arguments(embedded.bootstrap_servers, topic, group, tmp_path)[:-1]
    command = [sys.executable, str(JOBS / "land_parquet.py"), *options, "--trigger", "200 milliseconds"]
    command += ["--schema", SCHEMA, "--output", str(tmp_path / "out")]
    with open(tmp_path / "log", "w") as log:
        process = start_process(command, log, subprocess.STDOUT, {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    yield process
    stop_process(process, 5)


@pytest.mark.spark
@pytest.mark.slow
def test_sigterm_drains_the_job(
    landing: subprocess.Popen[str], embedded: Any, topic: str, group: str, tmp_path: Path
) -> None:
    servers = embedded.bootstrap_servers
    send(servers, topic, *((None, {"carrier": "UA", "delay": n}, DAY_MS) for n in range(100)))
    wait_until(lambda: committed(servers, group, topic) == 100, "the job commits", 120)
    send(servers, topic, *((None, {"carrier": "UA", "delay": n}, DAY_MS) for n in range(100)))
    landing.send_signal(signal.SIGTERM)
    wait_until(lambda: landing.poll() is not None, "the job ends", 60)
    log = (tmp_path / "log").read_text()
    assert landing.returncode == 0, log
    assert "Traceback" not in log
    # what is written is what is committed
    offsets = [row["kafka_offset"] for row in rows_of(tmp_path / "out")]
    assert offsets == list(range(committed(servers, group, topic)))
