"""Kills of a query that writes exactly once, at every step."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import AdminClient
from support.clients import open_cluster
from support.clusters import Cluster
from support.sink_application import (
    PARTITIONS,
    RECORDS,
    STEPS,
    KilledError,
    SinkApplication,
    check,
    read_output,
    run_out,
)
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups

pytestmark = [pytest.mark.slow, pytest.mark.one_cluster]


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
    # each record is in one state, that of the application which has published it
    states = [Counter(application.state) for application in applications]
    assert sum(states, Counter()) == {str(number): RECORDS // PARTITIONS for number in range(PARTITIONS)}


def test_a_reset_while_a_batch_is_logged_and_not_published_is_followed(
    filled: Cluster, topic: str, group: str, output: str, tmp_path: Path
) -> None:
    application = SinkApplication(tmp_path, filled.bootstrap_servers, topic, group, output)
    assert application.trigger() == 40
    application.kill_at = "read"
    with pytest.raises(KilledError):
        application.trigger()
    admin = AdminClient({"bootstrap.servers": filled.bootstrap_servers})
    with open_cluster(filled.bootstrap_servers) as client:
        wait_until(lambda: not describe_groups(client, [group])[group].members, "the group is empty", 60, 0.1)
    offsets = [Offset(topic, number, 5) for number in range(PARTITIONS)]
    (altered,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)]).values()
    altered.result(30)
    # nothing of the logged batch, and then everything from the reset on
    assert [application.trigger() for _ in range(5)] == [0, 40, 40, 40, 30]
    assert application.trigger() == 0
    application.stop()
    counts = Counter(read_output(filled, output))
    repeated = {f"{number % PARTITIONS}-{number}" for number in range(10, 40)}
    assert {value for value, count in counts.items() if count == 2} == repeated
    assert set(counts.values()) == {1, 2} and len(counts) == RECORDS
