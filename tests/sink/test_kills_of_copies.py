"""Kills of a query that writes exactly once, at every step."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from support.clients import open_cluster
from support.clusters import Cluster
from support.sink_application import STEPS, KilledError, SinkApplication
from support.topics import create_topic, produce

pytestmark = pytest.mark.slow

PARTITIONS = 2
RECORDS = 160


def read_output(cluster: Cluster, topic: str) -> list[str]:
    """Returns the values that a read_committed consumer sees, up to the last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    from confluent_kafka import KafkaError
    from confluent_kafka import TopicPartition as Assigned

    consumer.assign([Assigned(topic, number, 0) for number in range(PARTITIONS)])
    found, ended = [], 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "no record and no end of the partition within 30 s"
        if message.error() is None:
            found.append(message.value().decode())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended += 1
    consumer.close()
    return found


def run_out(application: SinkApplication) -> None:
    """Runs triggers until one has no records."""
    for _ in range(200):
        if not application.trigger() and application.commits == len(application.offsets):
            return
    raise AssertionError("the application does not come to an end")


def check(cluster: Cluster, topic: str, group: str, output: str) -> None:
    """Checks that each record is in the output once, and that the group's offsets are at the end of the input."""
    counts = Counter(read_output(cluster, output))
    expected = {f"{number % PARTITIONS}-{number}" for number in range(RECORDS)}
    repeated = {value: count for value, count in counts.items() if count > 1}
    assert (sorted(expected - counts.keys()), repeated) == ([], {})
    with open_cluster(cluster.bootstrap_servers) as client:
        committed = client.fetch_committed(group)
    assert {p.partition: c.offset for p, c in committed.items() if c is not None and p.topic == topic} == {
        number: RECORDS // PARTITIONS for number in range(PARTITIONS)
    }


@pytest.fixture
def output(topic: str) -> str:
    return f"{topic}-out"


@pytest.fixture
def filled(cluster: Cluster, topic: str, output: str) -> Cluster:
    """A cluster whose topic has records, and an empty topic for the output."""
    for name in (topic, output):
        create_topic(cluster.bootstrap_servers, name, PARTITIONS)
    values = [(number % PARTITIONS, None, f"{number % PARTITIONS}-{number}".encode()) for number in range(RECORDS)]
    produce(cluster.bootstrap_servers, topic, values)
    return cluster


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_neither_loses_nor_repeats(
    filled: Cluster, topic: str, group: str, output: str, step: str, tmp_path: Path
) -> None:
    application = SinkApplication(tmp_path, filled.bootstrap_servers, topic, group, output)
    assert application.trigger() == 40
    application.kill_at = step
    if step == "lost response":
        application.trigger()
    else:
        with pytest.raises(KilledError):
            application.trigger()
    run_out(application)
    application.stop()
    check(filled, topic, group, output)
    assert application.state == {str(number): RECORDS // PARTITIONS for number in range(PARTITIONS)}


def test_two_applications_of_a_group_killed_at_random_steps(
    filled: Cluster, topic: str, group: str, output: str, tmp_path: Path
) -> None:
    draw = random.Random(1)
    short = {"maxOffsetsPerTrigger": "10"}
    applications = [
        SinkApplication(tmp_path, filled.bootstrap_servers, topic, group, output, **short) for _ in range(2)
    ]
    for _ in range(8):
        application = draw.choice(applications)
        application.kill_at = draw.choice(STEPS)
        try:
            application.trigger()
        except KilledError:
            pass
        application.kill_at = None
    for application in applications:
        run_out(application)
    for application in applications:
        run_out(application)
        application.stop()
    check(filled, topic, group, output)
