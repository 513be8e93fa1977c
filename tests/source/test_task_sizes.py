"""The bytes of read tasks, and the addresses that they carry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer
from support.clients import advertise, client_settings, fake_broker, open_cluster

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.common.net import Address
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.source.tasks.task_partition import GroupInputPartition, TaskMembership
from spark_groupsource.wire.messages import FindCoordinatorResponse, MetadataResponse

TOPIC = "orders"
ID = "8f14e45f-ceea-467f-a0e6-b2f1d3c4a5b6"


def host(number: int) -> str:
    return f"broker-{number}.kafka.svc.cluster.local"


@contextmanager
def cluster_of(brokers: int, partitions: int) -> Iterator[ClusterClient]:
    """A client with metadata: broker `p % brokers` leads partition `p`, the last one coordinates group `g`."""

    def metadata(request: Any, version: int) -> Any:
        broker = MetadataResponse.MetadataResponseBroker
        topic = MetadataResponse.MetadataResponseTopic
        rows = [
            topic.MetadataResponsePartition(
                error_code=0,
                partition_index=number,
                leader_id=number % brokers,
                leader_epoch=5,
                replica_nodes=[],
                isr_nodes=[],
                offline_replicas=[],
            )
            for number in range(partitions)
        ]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[broker(node_id=n, host=host(n), port=9092, rack=None) for n in range(brokers)],
            cluster_id="c",
            controller_id=0,
            topics=[topic(error_code=0, name=TOPIC, is_internal=False, partitions=rows)],
        )

    def find(request: Any, version: int) -> Any:
        row = FindCoordinatorResponse.Coordinator(
            key="g", node_id=brokers - 1, host=host(brokers - 1), port=9092, error_code=0, error_message=None
        )
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=[row])

    def versions(request: Any, version: int) -> Any:
        return advertise(ApiVersions=(0, 3), Metadata=(0, 9), FindCoordinator=(0, 4))

    responses = {"ApiVersions": versions, "Metadata": metadata, "FindCoordinator": find}
    with fake_broker(**responses) as broker, open_cluster(str(broker.address)) as client:
        client.find_coordinators(["g"])
        client.metadata([TOPIC])
        yield client


def task_bytes(client: ClusterClient, partitions: int, tasks: int) -> int:
    """Returns the bytes of all tasks of a micro-batch, as Spark pickles them."""
    settings = client_settings(f"{host(0)}:9092")
    membership = TaskMembership("g", f"app-0-{ID}", 7, None, 3_000)
    each, total = partitions // tasks, 0
    for first in range(0, partitions, each):
        read = [TopicPartition(TOPIC, number) for number in range(first, first + each)]
        task = GroupInputPartition(
            ranges=[OffsetRange(p, 123_456_789, 123_457_890) for p in read],
            settings=settings,
            fail_on_data_loss=True,
            membership=membership,
            topic_ids={TOPIC: ID},
            leader_epochs={p: 5 for p in read},
            known_brokers=client.task_brokers(read, "g"),
            group_id="g",
        )
        total += len(CPickleSerializer().dumps(task))
    return total


def test_size_of_the_tasks_does_not_grow_with_the_cluster() -> None:
    sizes = {}
    for brokers in (30, 300):
        with cluster_of(brokers, 10_000) as client:
            sizes[brokers] = task_bytes(client, 10_000, 1_000)
    assert sizes[300] < 1.1 * sizes[30]
    assert sizes[300] < 2_600_000


@pytest.mark.parametrize(
    ("partitions", "group", "expected"),
    [
        ([4, 7, 14], "g", [4, 7, 9]),
        ([4, 5, 6, 7], None, [4, 5, 6, 7]),
        # enough to find the cluster while two brokers are down
        ([4], "g", [0, 4, 9]),
        ([4], "of another coordinator", [0, 1, 4]),
        ([99], None, [0, 1, 2]),
    ],
)
def test_task_has_its_leaders_and_the_coordinator(
    partitions: list[int], group: str | None, expected: list[int]
) -> None:
    with cluster_of(10, 20) as client:
        found = client.task_brokers([TopicPartition(TOPIC, number) for number in partitions], group)
    assert found == tuple(sorted(Address(host(number), 9092) for number in expected))
