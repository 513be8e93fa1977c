"""Kills jobs/upsert_database.py during batches and counts the records in its database.

    PYTHONPATH=jobs:tests python tests/chaos/database_kills.py --kills 10 --database postgresql --kafka --seed 7

The job reads a topic that grows, in small batches. When the offsets in the database show a random amount of progress,
all processes of the job are killed, and it is started again with the same checkpoint. At the end the rows, their
counters and the offsets in the database are compared with the records. The seed determines the progress at each kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import job_support
from child_processes import start_process
from confluent_kafka import Producer
from real_kafka import RealKafka
from support import startup
from support.databases import database_url, rows_of_query
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker

JOB = Path(job_support.__file__).with_name("upsert_database.py")
TOPIC, GROUP, PARTITIONS, KEYS = "updates", "upsert", 3, 40
RECORDS_PER_KILL = 600
START_AND_PROGRESS_S = 600
# on a busy machine, Spark's limits for the start of its Python processes are exceeded now and then
STARTS = 5


class Records:
    """The records sent so far: the last value and the number of the records of each key."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers})
        self.sent = 0

    def send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self._producer.produce(TOPIC, json.dumps({"n": number}).encode(), f"k{number % KEYS}")
        assert self._producer.flush(30) == 0
        self.sent += count

    def expected(self) -> list[tuple[str, int, int]]:
        """Key, last value and number of records of each row."""
        numbers = {key: range(key, self.sent, KEYS) for key in range(min(KEYS, self.sent))}
        return sorted((f"k{key}", found[-1], len(found)) for key, found in numbers.items())


def applied(url: str) -> int:
    """The number of records in the database, 0 before the job has created its tables."""
    try:
        return int(rows_of_query(url, "SELECT coalesce(sum(next_offset), 0) FROM kafka_offsets")[0][0])
    except Exception:
        return 0


@contextmanager
def job(servers: str, url: str, directory: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The job in processes of its own, which are killed at exit."""
    options = ["--bootstrap-servers", servers, "--topic", TOPIC, "--group", GROUP, "--members", "2", "--key", "key"]
    options += ["--schema", "n INT", "--table", "rows", "--database", url]
    options += ["--checkpoint", str(directory / "checkpoint"), "--max-offsets", "60", "--trigger", "0 seconds", *more]
    with open(directory / "log", "a") as log:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        process = start_process([sys.executable, str(JOB), *options], log, log, environment)
    try:
        yield process
    finally:
        # Python driver, JVM and reader process; Spark's workers end with them
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(directory: Path, servers: str, url: str, kills: int, seed: int) -> int:
    """Returns the number of records. Raises: AssertionError if the database differs from them."""
    randomness = random.Random(seed)
    create_topic(servers, TOPIC, PARTITIONS)
    records = Records(servers)
    for _ in range(kills):
        records.send(RECORDS_PER_KILL)
        goal = applied(url) + randomness.randrange(1, RECORDS_PER_KILL // 2)
        for _ in range(STARTS):
            with job(servers, url, directory) as process:
                what = f"{goal} records are applied, or the job ends"
                wait_until(lambda: applied(url) >= goal or process.poll() is not None, what, START_AND_PROGRESS_S)
                time.sleep(randomness.uniform(0, 0.3))
            if applied(url) >= goal:
                break
        assert applied(url) >= goal, f"the job ended {STARTS} times"
    for _ in range(STARTS):
        with job(servers, url, directory, "--available-now") as process:
            if process.wait(START_AND_PROGRESS_S) == 0:
                break
    assert applied(url) == records.sent
    found = rows_of_query(url, "SELECT key, n, updates FROM rows ORDER BY key")
    differing = [pair for pair in zip(sorted(found), records.expected()) if pair[0] != pair[1]]
    assert len(found) == KEYS and not differing, differing[:5]
    return records.sent


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the database job and check that each record is applied once.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kafka", action="store_true", help="on an Apache Kafka fetched for it")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    startup.configure()
    broker: RealKafka | EmbeddedBroker = RealKafka() if options.kafka else EmbeddedBroker()
    with broker, database_url(options.database) as url, tempfile.TemporaryDirectory() as directory:
        try:
            count = run(Path(directory), broker.bootstrap_servers, url, options.kills, options.seed)
        except BaseException:
            print((Path(directory) / "log").read_text(errors="replace")[-5_000:], file=sys.stderr)
            raise
    print(f"{count} records, {options.kills} kills: each is applied once")


if __name__ == "__main__":
    main()
