"""Failures of queries that write exactly once, without kills.

`docs/writing.md` has the table; the kills are in `test_kills_of_copies.py` and `test_drivers_of_one_query.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from chaos.brokers import Broker, EmbeddedBrokerProcess, RealKafkaBroker
from chaos.proxy import Proxy
from support.clients import open_cluster
from support.clusters import Cluster
from support.removed_members import remove_members
from support.sink_application import (
    PARTITIONS,
    RECORDS,
    KilledError,
    SinkApplication,
    check,
    fill,
    read_output,
    run_out,
)
from support.topics import create_topic, delete_topic
from support.waiting import wait_until

from spark_groupsource.client.admin import delete_groups, describe_groups
from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.errors import TransactionAbortedError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.positions.published_progress import WriterProgress, progress_group
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication, publish

pytestmark = [pytest.mark.slow, pytest.mark.one_cluster]

BATCH = 40


@pytest.fixture
def application(
    cluster: Cluster, topic: str, group: str, output: str, tmp_path: Path
) -> Iterator[SinkApplication]:
    """An application that has published its first batch of 40 records."""
    fill(cluster, topic, output)
    found = SinkApplication(tmp_path, cluster.bootstrap_servers, topic, group, output)
    assert found.trigger() == BATCH
    yield found
    found.stop()


@pytest.mark.parametrize("step", ["sent", "joined", "ended"])
def test_a_replay_with_another_number_of_tasks(
    application: SinkApplication, cluster: Cluster, topic: str, group: str, output: str, step: str
) -> None:
    application.kill_at = step
    with pytest.raises(KilledError):
        application.trigger()
    application.tasks = 3
    run_out(application)
    check(cluster, topic, group, output)


def test_a_query_without_its_checkpoint_continues_at_the_offsets_of_the_group(
    application: SinkApplication, cluster: Cluster, topic: str, group: str, output: str
) -> None:
    application.kill()
    application.offsets, application.commits, application.query_id = [], 0, uuid4().hex
    run_out(application)
    check(cluster, topic, group, output)


@pytest.mark.parametrize("step", ["planned", "read", "published"])
def test_an_output_topic_that_is_recreated_gets_the_next_batch(
    application: SinkApplication, cluster: Cluster, output: str, step: str
) -> None:
    def recreate(reached: str) -> None:
        if reached == step:
            application.reached = lambda _: None  # type: ignore[method-assign]
            delete_topic(cluster.bootstrap_servers, output)
            create_topic(cluster.bootstrap_servers, output, PARTITIONS)

    application.reached = recreate  # type: ignore[method-assign]
    run_out(application)
    counts = Counter(read_output(cluster, output))
    lost = BATCH if step != "published" else 2 * BATCH
    assert (len(counts), set(counts.values())) == (RECORDS - lost, {1})


def test_a_member_that_is_removed_meanwhile_aborts_the_transaction(
    application: SinkApplication, cluster: Cluster, topic: str, group: str, output: str
) -> None:
    def remove(reached: str) -> None:
        if reached == "sent":
            application.reached = lambda _: None  # type: ignore[method-assign]
            with open_cluster(cluster.bootstrap_servers) as client:
                members = describe_groups(client, [group])[group].members
                remove_members(client, group, [member.member_id for member in members])

    application.reached = remove  # type: ignore[method-assign]
    with pytest.raises(TransactionAbortedError):
        application.trigger()
    assert len(read_output(cluster, output)) == BATCH
    with open_cluster(cluster.bootstrap_servers) as client:
        committed = [found.offset for found in client.fetch_committed(group).values() if found is not None]
    assert sum(committed) == BATCH
    application.kill()
    run_out(application)
    check(cluster, topic, group, output)


# --- transactions without a source ---


class _Sources:
    """Sources of a batch, whose offsets are added after `event`, once."""

    def __init__(self, event: Callable[[], None] = lambda: None) -> None:
        self._event = event
        self.joined = 0

    def ends(self) -> dict[str, str]:
        return {"r": "d"}

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        self.joined += 1
        if self.joined == 1:
            self._event()
        return JoinedOffsets(self.ends(), None)


def _publication(output: str, number: int, timeout_ms: int = 60_000) -> Publication:
    batches = [EncodedBatch(TopicPartition(output, 0), encode_batch([Record(None, b"%d" % number, 0)]), 1)]
    return Publication(f"T-{output}", batches, "q", number, output, ProducerSettings(transaction_timeout_ms=timeout_ms))


def _stable_end(client: ClusterClient, output: str) -> int:
    at = TopicPartition(output, 0)
    return client.list_offsets({at: LATEST}, read_committed=True)[at].offset


def test_a_transaction_that_takes_too_long_is_published_again(cluster: Cluster, output: str) -> None:
    create_topic(cluster.bootstrap_servers, output, PARTITIONS)
    with open_cluster(cluster.bootstrap_servers) as client:

        def is_aborted() -> bool:
            return _stable_end(client, output) == 2

        # Kafka looks for such transactions every 10 s
        sources = _Sources(lambda: wait_until(is_aborted, "the coordinator aborts the transaction", 60, 0.1) and None)
        assert publish(client, _publication(output, 1, timeout_ms=500), sources)
    assert (sources.joined, read_output(cluster, output)) == (2, ["1"])


def test_a_batch_may_repeat_once_its_progress_is_forgotten(cluster: Cluster, output: str) -> None:
    create_topic(cluster.bootstrap_servers, output, PARTITIONS)
    with open_cluster(cluster.bootstrap_servers) as client:
        assert publish(client, _publication(output, 1), _Sources())
        assert not publish(client, _publication(output, 1), _Sources())
        # as after offsets.retention.minutes
        delete_groups(client, [progress_group(f"T-{output}")])
        assert publish(client, _publication(output, 1), _Sources())
    assert read_output(cluster, output) == ["1", "1"]


@pytest.mark.parametrize("kind", [EmbeddedBrokerProcess, pytest.param(RealKafkaBroker, marks=pytest.mark.kafka)])
def test_a_coordinator_that_is_killed_within_a_transaction_continues_it(
    kind: Callable[[Path, Proxy], Broker], output: str, tmp_path: Path
) -> None:
    proxy = Proxy()
    broker = kind(tmp_path, proxy)
    broker.start()

    def restart() -> None:
        broker.kill()
        broker.start()

    try:
        create_topic(proxy.address, output, PARTITIONS)
        with open_cluster(proxy.address) as client:
            assert publish(client, _publication(output, 1), _Sources(restart))
            assert not publish(client, _publication(output, 1), _Sources())
        assert read_output(Cluster("restarted", proxy.address), output) == ["1"]
    finally:
        broker.stop()
        proxy.close()
