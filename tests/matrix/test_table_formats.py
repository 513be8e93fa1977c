"""Delta Lake and Iceberg tables written by a job that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import job_support
import pytest
from child_processes import start_process, stop_process
from support.clusters import Cluster
from support.query_harness import PARTITIONS, QueryHarness
from support.table_formats import FORMATS, missing_format, rows_of_table, submit_arguments, table_options
from support.topics import produce
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = Path(job_support.__file__).with_name("write_table.py")
TUTORIAL = JOB.parents[1] / "docs" / "tutorial.md"
KEYS, ROUND = 7, 300
# after the first commit, then drained
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
START_S = 240


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> str:
    reason = missing_format(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_table_has_each_record_once_after_kills(
    embedded: Any, topic: str, group: str, tmp_path: Path, table_format: str, mode: str
) -> None:
    servers, warehouse = embedded.bootstrap_servers, tmp_path / "warehouse"
    harness = QueryHarness(None, Cluster("embedded", servers), topic, group, tmp_path)
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": submit_arguments(table_format, warehouse),
    }
    command = [sys.executable, str(JOB), "--bootstrap-servers", servers, "--topic", topic, "--group", group]
    command += ["--members", "2", "--schema", "n INT", "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--max-offsets", "100", "--trigger", "0 seconds", *table_options(table_format, warehouse)]
    command += ["--key", "key"] if mode == "merge" else []
    total = 0
    for sent in SIGNALS:
        numbers = range(total, total + ROUND)
        # the records of a key are in one partition
        records = [(n % KEYS, json.dumps({"n": n}).encode()) for n in numbers]
        produce(servers, topic, [(key % PARTITIONS, b"k%d" % key, value) for key, value in records])
        goal = total + (100 if sent == signal.SIGKILL else ROUND)
        total += ROUND
        with open(tmp_path / "log", "a") as log:
            process = start_process(command, log, log, environment)
        try:
            wait_until(lambda: process.poll() is not None or harness.committed() >= goal, f"{goal} commits", START_S)
            assert process.poll() is None, (tmp_path / "log").read_text()[-5_000:]
            # driver, JVM and reader process
            os.killpg(process.pid, sent)
            wait_until(lambda: process.poll() is not None, "the job ends", 60)
        finally:
            stop_process(process, 5)
    assert harness.committed() == total
    harness.close()
    rows = rows_of_table(table_format, warehouse, environment)
    if mode == "append":
        assert sorted(row["n"] for row in rows) == list(range(total))
    else:
        last = {f"k{n % KEYS}": n for n in range(total)}
        assert sorted((row["key"], row["n"]) for row in rows) == sorted(last.items())


@pytest.mark.timeout(900)
def test_two_applications_of_the_tutorial_land_in_one_delta_table(
    embedded: Any, topic: str, group: str, tmp_path: Path
) -> None:
    reason = missing_format("delta")
    if reason:
        pytest.skip(reason)
    servers, warehouse = embedded.bootstrap_servers, tmp_path / "warehouse"
    page = TUTORIAL.read_text()
    (application,) = re.findall(r"^cat > landing.py <<'END'\n(.*?)^END$", page, re.M | re.S)
    (line,) = re.findall(r"^```python\n(writer = .*)\n```$", page, re.M)
    text, count = re.subn(r"^writer = flights.*$", line, application, flags=re.M)
    assert count == 1
    names = {
        "landed/flights": str(warehouse / "written"),
        "checkpoints/": f"{tmp_path}/checkpoints/",
        '"flights"': f'"{topic}"',
        '"landing"': f'"{group}"',
    }
    for name, replacement in names.items():
        assert text.count(name) == 1
        text = text.replace(name, replacement)
    (tmp_path / "landing.py").write_text(text)
    harness = QueryHarness(None, Cluster("embedded", servers), topic, group, tmp_path)
    flights = [json.dumps({"flight": n, "carrier": "UA", "delay": n % 60}).encode() for n in range(ROUND)]
    produce(servers, topic, [(n % PARTITIONS, None, flight) for n, flight in enumerate(flights)])
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "GROUPSOURCE_BOOTSTRAP_SERVER": servers,
        "PYSPARK_SUBMIT_ARGS": submit_arguments("delta", warehouse),
    }
    running = []
    try:
        for name in ("a", "b"):
            with open(tmp_path / f"{name}.log", "w") as log:
                command = [sys.executable, str(tmp_path / "landing.py"), name]
                running.append(start_process(command, log, log, environment))
        wait_until(lambda: harness.committed() == ROUND, "all flights are landed", START_S)
    finally:
        for process in running:
            stop_process(process, 60)
    harness.close()
    rows = rows_of_table("delta", warehouse, environment)
    assert sorted(row["flight"] for row in rows) == list(range(ROUND))
