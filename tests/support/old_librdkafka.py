"""Old releases of confluent-kafka: installation and a client program.

As a program, this file prints the results of `run_client` as JSON; its argument is a JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# release -> the newest Python that it has wheels for
RELEASES = {"2.0.2": (3, 11), "2.3.0": (3, 12), "2.6.0": (3, 13)}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TIMEOUT_S = 120


def installed(release: str) -> Path:
    """The cache directory with a release, installed with pip if necessary.

    Raises: UnavailableError if the package index is missing.
    """
    from kafka_jars import UnavailableError, cached_directory

    def install(work: Path) -> Path:
        target = work / "site"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        run = subprocess.run(
            [*command, "--target", str(target), f"confluent-kafka=={release}"], capture_output=True, text=True
        )
        if run.returncode:
            raise UnavailableError(f"Installing confluent-kafka {release} failed: {run.stderr.strip()[-500:]}")
        return target

    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return cached_directory(f"confluent-kafka-{release}-python{python}", install)


def run_with(release: str, **arguments: Any) -> dict[str, Any]:
    """Runs `run_client` in a process with a release; returns its results."""
    environment = {**os.environ, "PYTHONPATH": str(installed(release))}
    run = subprocess.run(
        [sys.executable, __file__, json.dumps(arguments)],
        capture_output=True, text=True, env=environment, timeout=_TIMEOUT_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4_000:]
    returned: dict[str, Any] = json.loads(run.stdout)
    assert returned["release"] == release
    return returned


def run_client(settings: dict[str, Any], topic: str, group: str, transactions: bool = True) -> dict[str, Any]:
    """Produces with each codec to the partition of its number, reads in a group, then runs two transactions.

    `transactions`: whether to run them; the first one aborts a record, the second commits one and an offset.
    """
    import confluent_kafka
    from confluent_kafka import Consumer, Producer, TopicPartition

    for number, codec in enumerate(CODECS):
        producer = Producer({**settings, "compression.codec": codec, "linger.ms": 5, "enable.idempotence": number % 2})
        for record in range(3):
            producer.produce(topic, b"%d " % record + b"x" * 500, partition=number)
        assert producer.flush(30) == 0
    reading = {**settings, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(reading)
    consumer.subscribe([topic])
    seen = _read(consumer, 3 * len(CODECS))
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition(topic, number) for number in range(len(CODECS))], 30)
    returned = {
        "release": confluent_kafka.version()[0],
        "seen": sorted(seen),
        "committed": [each.offset for each in committed],
    }
    if transactions:
        producer = Producer({**settings, "transactional.id": f"{topic}-id"})
        producer.init_transactions(30)
        for commits, value in ((False, b"aborted"), (True, b"kept")):
            producer.begin_transaction()
            producer.produce(topic, value, partition=0)
            if commits:
                offsets = [TopicPartition(topic, 1, 2)]
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            (producer.commit_transaction if commits else producer.abort_transaction)(30)
        (moved,) = consumer.committed([TopicPartition(topic, 1)], 30)
        reader = Consumer({**reading, "isolation.level": "read_committed"})
        reader.assign([TopicPartition(topic, 0, 3)])
        returned["transactional"] = [_read(reader, 1), moved.offset]
        reader.close()
    consumer.close()
    return returned


def _read(consumer: Any, count: int) -> list[str]:
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(30)
        assert message is not None and not message.error(), (values, message and message.error())
        values.append(f"{message.partition()} {message.value()[:7].decode()}")
    return values


if __name__ == "__main__":
    print(json.dumps(run_client(**json.loads(sys.argv[1]))))
