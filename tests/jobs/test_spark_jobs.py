"""The jobs for copying: Parquet, windows, a database, replay."""

from __future__ import annotations

import json
import os
import re
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
import replay_range
import route_records
import upsert_database
import windowed_aggregates
from child_processes import start_process, stop_process
from click import ClickException
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from job_database import Changes, Database
from kafka_jars import spark_connector_jars
from support.databases import KINDS, database_url, rows_of_query
from support.read_back import read_back
from support.topics import create_topic
from support.waiting import wait_until

JOBS = Path(job_support.__file__).parent
DAY_MS = 1_700_006_400_000  # 2023-11-15T00:00:00Z
SCHEMA = "carrier STRING, delay INT"
# what the worker daemon of Spark prints when the JVM has closed its socket: the failed flush with a line of its own, or
# as the end of the worker, by a setting of Spark (`killWorkerOnFlushFailure`), or only its first line, if the daemon
# was killed while it printed; every other traceback is an error
FLUSH_FAILURE = re.compile(
    r"(?:PySpark daemon failed to flush the output to the worker process:\nTraceback .*\n(?: .*\n)+"
    r"|Traceback .*\n  File .*/pyspark/daemon\.py\", line \d+, in manager\n(?:    .*\n)+"
    r"  File .*/pyspark/daemon\.py\", line \d+, in worker\n    outfile\.flush\(\)\n(?:    [~^]+\n)?)"
    r"(?:BrokenPipeError|ConnectionResetError): .*\n"
    r"|Traceback [^\n]*\n?\Z"
)


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


def submit(job: str, options: list[str], log: Path) -> subprocess.Popen[str]:
    """Starts a job with spark-submit in a process group of its own, with long paths as in a container of YARN."""
    temporary = log.parent / ("temporary" * 12)
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]"]
    command += ["--driver-java-options", f"-Djava.io.tmpdir={temporary}"]
    command += ["--conf", "spark.sql.shuffle.partitions=2", str(JOBS / job), *options]
    with open(log, "a") as out:
        return start_process(command, out, subprocess.STDOUT, {**environment, "SPARK_LOCAL_IP": "127.0.0.1"})


def committed(servers: str, group: str, topic: str) -> int:
    """The committed offset of partition 0; negative without a commit, and before the coordinator has loaded."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition(topic, 0)], 10)[0].offset)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return -1
    finally:
        consumer.close()


def rows_of(directory: Path) -> list[dict[str, Any]]:
    table = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive").to_table()
    return [dict(row) for row in table.to_pylist()]


@pytest.mark.parametrize("module", [land_parquet, replay_range, route_records, upsert_database, windowed_aggregates])
def test_help_names_the_common_options(module: Any) -> None:
    result = CliRunner().invoke(module.main, ["--help"])
    assert result.exit_code == 0
    common = {"--bootstrap-servers", "--topic", "--checkpoint", "--command-config"}
    assert common | (set() if module is replay_range else {"--group"}) <= set(result.output.split())


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
        for row in sorted(rows_of(tmp_path / "out"), key=lambda row: row["kafka_offset"])
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


def test_a_window_is_written_once_when_the_watermark_has_passed_it(
    spark: Any, servers: str, topic: str, group: str, tmp_path: Path
) -> None:
    create_topic(servers, topic)
    minute = 60_000
    options = [*arguments(servers, topic, group, tmp_path), "--schema", SCHEMA, "--by", "carrier", "--value", "delay"]
    options += ["--output", str(tmp_path / "out")]
    # 16 closes the window of minutes 0 to 10 at a watermark of 5 minutes; the second run gets a late record for it
    minutes = [(1, "UA", 10), (9, "UA", 20), (2, "AA", 5), (16, "UA", 7)]
    send(servers, topic, *((None, {"carrier": c, "delay": d}, DAY_MS + at * minute) for at, c, d in minutes))
    send(servers, topic, (None, b"no JSON", DAY_MS), (None, None, DAY_MS))
    windowed_aggregates.main.main(options, standalone_mode=False)
    send(servers, topic, *((None, {"carrier": "UA", "delay": 1}, DAY_MS + at * minute) for at in (3, 30)))
    windowed_aggregates.main.main(options, standalone_mode=False)
    found = [(row["start"].minute, *list(row.values())[2:]) for row in rows_of(tmp_path / "out")]
    assert sorted(found) == [(0, "AA", 1, 5.0, 5, 5), (0, "UA", 2, 15.0, 10, 20), (10, "UA", 1, 7.0, 7, 7)]


@pytest.mark.spark
@pytest.mark.soak
def test_windows_of_a_job_that_is_killed_contain_every_record_once(
    spark: Any, servers: str, topic: str, group: str, tmp_path: Path
) -> None:
    # Kafka deletes records of 2023 otherwise
    create_topic(servers, topic, config={"retention.ms": "-1"})
    options = [*arguments(servers, topic, group, tmp_path)[:-1], "--schema", SCHEMA, "--by", "carrier"]
    options += ["--value", "delay", "--window", "1 minute", "--watermark", "1 minute"]
    options += ["--output", str(tmp_path / "out")]
    expected: dict[tuple[int, str], list[int]] = {}
    values = [({"carrier": ("UA", "AA")[n % 3 == 0], "delay": n % 1_009}, DAY_MS + n * 500) for n in range(6_000)]
    for value, time in values:
        expected.setdefault((time // 60_000, str(value["carrier"])), []).append(int(value["delay"]))
    for number, sent in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
        send(servers, topic, *((None, value, time) for value, time in values[number * 2_000 : (number + 1) * 2_000]))
        process = submit("windowed_aggregates.py", [*options, "--max-offsets", "200"], tmp_path / "log")
        try:
            wait_until(lambda: committed(servers, group, topic) >= number * 2_000 + 600, "the job commits", 120)
            os.killpg(process.pid, sent)
            wait_until(lambda: process.poll() is not None, "the job ends", 60)
        finally:
            stop_process(process, 5)
    send(servers, topic, (None, {"carrier": "UA", "delay": 0}, DAY_MS + 86_400_000))
    windowed_aggregates.main.main([*options, "--available-now"], standalone_mode=False)
    # Spark reads the files that its sink has committed
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("unix_millis(start)", "carrier", "count", "mean")
    found = sorted((at // 60_000, carrier, count, round(mean * count)) for at, carrier, count, mean in rows.collect())
    assert found == sorted((*key, len(delays), sum(delays)) for key, delays in expected.items())


@pytest.mark.parametrize("database", KINDS)
def test_batch_delivered_again_after_a_crash_is_not_applied_twice(
    spark: Any, servers: str, topic: str, group: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(servers, topic)
    (tmp_path / "carriers.csv").write_text("carrier,name\nUA,United\nAA,American\n")
    options = [*arguments(servers, topic, group, tmp_path), "--schema", "carrier STRING, delay INT, tags ARRAY<INT>"]
    options += ["--key", "flight", "--lookup", str(tmp_path / "carriers.csv"), "--on", "carrier"]
    options += ["--table", "flights", "--database"]
    apply = Database.apply

    def apply_and_crash(self: Database, changes: Changes, before: Any) -> bool:
        apply(self, changes, before)
        raise OSError("the process is killed between the database and the checkpoint")

    send(servers, topic, ("1", {"carrier": "UA", "delay": 1}, DAY_MS), ("1", {"carrier": "UA", "delay": 2}, DAY_MS))
    send(servers, topic, ("2", {"carrier": "AA", "delay": 3}, DAY_MS), (None, {"carrier": "AA"}, DAY_MS))
    with database_url(database) as url:
        monkeypatch.setattr(Database, "apply", apply_and_crash)
        with pytest.raises(ClickException):
            upsert_database.main.main([*options, url], standalone_mode=False)
        assert committed(servers, group, topic) < 4
        monkeypatch.undo()
        send(servers, topic, ("1", {"carrier": "B6", "tags": [1]}, DAY_MS), ("2", None, DAY_MS), ("3", b"{", DAY_MS))
        upsert_database.main.main([*options, url], standalone_mode=False)
        columns = "flight, carrier, delay, tags, name, updates"
        assert rows_of_query(url, f"SELECT {columns} FROM flights ORDER BY 1") == [("1", "B6", None, "[1]", None, 3)]
        assert rows_of_query(url, "SELECT next_offset FROM kafka_offsets") == [(7,)]
        assert committed(servers, group, topic) == 7


def test_replay_writes_the_range_and_continues_after_a_signal(
    spark: Any, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(servers, topic, 2)
    hour = 3_600_000
    times = [DAY_MS - 1, DAY_MS, DAY_MS + hour - 1, DAY_MS + hour, DAY_MS + 2 * hour - 1, DAY_MS + 2 * hour]
    send(servers, topic, *((None, n, time) for n, time in enumerate(times)))
    options = ["--bootstrap-servers", servers, "--topic", topic, "--checkpoint", str(tmp_path / "checkpoint")]
    options += ["--from", "2023-11-15", "--until", "2023-11-15T03:00+01:00", "--output", str(tmp_path / "out")]
    read = replay_range.records_of

    def read_and_signal(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return read(*given)

    def written() -> list[tuple[str, bytes]]:
        return sorted((row["slice"], row["value"]) for row in rows_of(tmp_path / "out"))

    with monkeypatch.context() as patch:
        patch.setattr(replay_range, "records_of", read_and_signal)
        with pytest.raises(SystemExit, match="143"):
            replay_range.main.main(options, standalone_mode=False)
    first = [("20231115T000000.000Z", b"1"), ("20231115T000000.000Z", b"2")]
    assert written() == first
    for _ in range(2):
        replay_range.main.main(options, standalone_mode=False)
        assert written() == [*first, ("20231115T010000.000Z", b"3"), ("20231115T010000.000Z", b"4")]


@pytest.mark.spark
@pytest.mark.slow
def test_replay_under_spark_submit_ends_after_the_slice_in_progress(embedded: Any, topic: str, tmp_path: Path) -> None:
    servers = embedded.bootstrap_servers
    create_topic(servers, topic)
    send(servers, topic, *((None, n, DAY_MS + n * 60_000) for n in range(300)))
    options = ["--bootstrap-servers", servers, "--topic", topic, "--checkpoint", str(tmp_path / "checkpoint")]
    options += ["--from", "2023-11-15", "--until", "2023-11-15T05:00", "--slice-minutes", "1"]
    process = submit("replay_range.py", [*options, "--output", str(tmp_path / "out")], tmp_path / "log")
    try:
        wait_until((tmp_path / "checkpoint" / "slices.json").exists, "a slice is done", 120)
        # as Ctrl-C in a terminal does, and service managers do
        os.killpg(process.pid, signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, "the job ends", 60)
    finally:
        stop_process(process, 5)
    text = (tmp_path / "log").read_text()
    assert process.returncode in (143, -15) and "run the same command to continue" in text, text
    assert "Traceback" not in FLUSH_FAILURE.sub("", text) and "Exception" not in text, text
    done = len(json.loads((tmp_path / "checkpoint" / "slices.json").read_text())["done"])
    assert sorted(int(row["value"]) for row in rows_of(tmp_path / "out")) == list(range(done)) and done < 300


@pytest.mark.soak
def test_replay_appends_to_a_topic(spark: Any, servers: str, topic: str, tmp_path: Path) -> None:
    for name in (topic, f"{topic}-again"):
        create_topic(servers, name)
    for jar in spark_connector_jars():
        spark.sql(f"ADD JAR '{jar}'").collect()
    send(servers, topic, ("a", 1, DAY_MS), (None, None, DAY_MS + 1), ("b", 2, DAY_MS + 60_000))
    options = ["--bootstrap-servers", servers, "--topic", topic, "--checkpoint", str(tmp_path / "checkpoint")]
    options += ["--from", "2023-11-15", "--until", "2023-11-15T00:01", "--to-topic", f"{topic}-again"]
    replay_range.main.main(options, standalone_mode=False)
    read = spark.read.format("groupsource").option("kafka.bootstrap.servers", servers)
    rows = read.option("subscribe", f"{topic}-again").load().select("key", "value").collect()
    assert [(row.key, row.value) for row in rows] == [(b"a", b"1"), (None, None)]


@pytest.mark.parametrize("is_transactional", [False, True])
def test_records_are_enriched_and_routed_by_topic(
    spark: Any, servers: str, topic: str, group: str, tmp_path: Path, is_transactional: bool
) -> None:
    late, other, dead = (f"{topic}-{name}" for name in ("late", "other", "dead"))
    for name in (topic, late, other, dead):
        create_topic(servers, name, 1)
    send(
        servers,
        topic,
        ("1", {"carrier": "UA", "delay": 90}, DAY_MS),
        ("2", {"carrier": "XX", "delay": 1}, DAY_MS),
        ("3", {"carrier": "UA"}, DAY_MS),
        ("4", None, DAY_MS),
        ("5", b"{", DAY_MS),
    )
    carriers = tmp_path / "carriers.csv"
    carriers.write_text("carrier,name\nUA,United\n")
    options = ["--schema", SCHEMA, "--lookup", str(carriers), "--on", "carrier", "--dead-letters", dead]
    options += ["--to", f"case when delay > 60 then '{late}' when delay is not null then '{other}' end"]
    options += ["--transactional-id", f"{group}-routing"] if is_transactional else []
    result = CliRunner().invoke(route_records.main, [*arguments(servers, topic, group, tmp_path), *options])
    assert result.exit_code == 0, result.output
    found = {name: read_back(servers, name, 1)[0] for name in (late, other)}
    assert found == {
        late: [(b"1", b'{"carrier":"UA","delay":90,"name":"United"}', [])],
        other: [(b"2", b'{"carrier":"XX","delay":1}', [])],
    }
    assert [(key, value) for key, value, _ in read_back(servers, dead, 1)[0]] == [(b"5", b"{")]
    assert committed(servers, group, topic) == 5


def test_only_the_flush_failure_of_the_worker_daemon_is_expected() -> None:
    frame = '  File "/site-packages/pyspark/daemon.py", line 95, in worker\n    outfile.flush()\n    ~~~~~~~~~~~~~^^\n'
    traceback = f"Traceback (most recent call last):\n{frame}BrokenPipeError: [Errno 32] Broken pipe\n"
    flush_failure = f"PySpark daemon failed to flush the output to the worker process:\n{traceback}"
    assert FLUSH_FAILURE.sub("", f"before\n{flush_failure}\nafter\n{flush_failure}") == "before\n\nafter\n"
    manager = (
        '  File "/site-packages/pyspark/daemon.py", line 264, in manager\n    code = worker(sock, authenticated)\n'
    )
    end_of_worker = traceback.replace(frame, f"{manager}           ^^^^^^\n{frame}")
    assert FLUSH_FAILURE.sub("", f"before\n{end_of_worker}after\n") == "before\nafter\n"
    assert FLUSH_FAILURE.sub("", "before\nTraceback (most recent call last):\n") == "before\n"
    worker_error = f"Traceback (most recent call last):\n{frame}ValueError: 1\n"
    for log in (
        traceback,
        worker_error,
        "Traceback (most recent call last):\nValueError: 1\n",
        f"{flush_failure}{worker_error}",
        flush_failure.replace("Broken", "Value"),
        end_of_worker.replace("Broken", "Value"),
        end_of_worker.replace("outfile.flush()", "main()"),
    ):
        assert "Traceback" in FLUSH_FAILURE.sub("", log)


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
    assert "Traceback" not in FLUSH_FAILURE.sub("", log), log
    # what is written is what is committed
    offsets = sorted(row["kafka_offset"] for row in rows_of(tmp_path / "out"))
    assert offsets == list(range(committed(servers, group, topic)))
