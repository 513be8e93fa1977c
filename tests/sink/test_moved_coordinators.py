"""A transaction whose coordinator fails between its records and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import pytest
from support.clients import open_cluster
from support.clusters import BROKER_CONFIG
from support.kafka_cluster import KafkaCluster
from support.read_back import read_back
from support.topics import create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.routing import TransactionalId
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.positions.published_progress import WriterProgress, progress_group, read_progress
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication, publish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Stop = Callable[[int], None]


@contextmanager
def embedded_nodes() -> Iterator[tuple[str, Stop]]:
    with EmbeddedBroker(config=BROKER_CONFIG, brokers=3) as broker:
        yield broker.bootstrap_servers, broker.stop_node


@contextmanager
def kafka_nodes() -> Iterator[tuple[str, Stop]]:
    with KafkaCluster(3, BROKER_CONFIG) as kafka:
        yield kafka.bootstrap_servers, lambda node: kafka.nodes[node].kill()


class FailingCoordinator:
    """Sources without offsets; the coordinator of the transaction is stopped when its records are written."""

    def __init__(self, cluster: ClusterClient, transactional_id: str, stop: Stop) -> None:
        self._cluster, self._transactional_id, self._stop = cluster, transactional_id, stop
        self.stopped: list[int] = []

    def ends(self) -> Mapping[str, str]:
        return {}

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        if not self.stopped:
            self.stopped.append(self._cluster.find_coordinator(TransactionalId(self._transactional_id)).node_id)
            self._stop(self.stopped[0])
        return JoinedOffsets({}, None)


@pytest.mark.parametrize("nodes", [embedded_nodes, pytest.param(kafka_nodes, marks=[pytest.mark.soak])])
def test_a_coordinator_that_is_killed_before_the_end_leaves_each_record_once(
    nodes: Callable[[], AbstractContextManager[tuple[str, Stop]]], topic: str
) -> None:
    with nodes() as (servers, stop), open_cluster(servers) as cluster:
        create_topic(servers, topic, 3)
        sources = FailingCoordinator(cluster, f"T-{topic}", stop)
        for number in range(2):
            batches = [
                EncodedBatch(TopicPartition(topic, p), encode_batch([Record(None, b"%d" % number, 0)]), 1)
                for p in range(3)
            ]
            assert publish(cluster, Publication(f"T-{topic}", batches, "q", number, topic), sources)
        assert len(sources.stopped) == 1
        assert cluster.find_coordinator(TransactionalId(f"T-{topic}")).node_id != sources.stopped[0]
        (progress,) = read_progress(cluster.fetch_committed(progress_group(f"T-{topic}")).values())
        assert progress.batch == 1
        running = ",".join(str(cluster.node_address(node)) for node in cluster.metadata(()).nodes.values())
        found = read_back(running, topic, 3)
    assert {p: [value for _, value, _ in records] for p, records in found.items()} == dict.fromkeys(
        range(3), [b"0", b"1"]
    )
