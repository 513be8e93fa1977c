"""Fetching from the replica of the own rack (KIP-392)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from support.clients import open_cluster
from support.kafka_cluster import KafkaCluster
from support.topics import create_topic, produce

from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.wire.messages import FetchRequest

pytestmark = [pytest.mark.soak, pytest.mark.kafka]

RECORDS = 50
CONFIG = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "2",
}


def test_records_are_fetched_from_the_rack_of_the_client(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    send = BrokerConnection.send

    def record_address(connection: BrokerConnection, request: Any, *arguments: Any, **more: Any) -> Any:
        if isinstance(request, FetchRequest):
            fetched.append(str(connection.address))
        return send(connection, request, *arguments, **more)

    monkeypatch.setattr(BrokerConnection, "send", record_address)
    with KafkaCluster(2, CONFIG) as kafka:
        servers = kafka.bootstrap_servers
        create_topic(servers, topic)
        kafka.wait_in_sync([topic])
        produce(servers, topic, [(0, None, b"%d" % n) for n in range(RECORDS)], batch_num_messages=1)
        leader = AdminClient({"bootstrap.servers": servers}).list_topics(topic, 10).topics[topic].partitions[0].leader
        addresses = {number: node.bootstrap_servers for number, node in kafka.nodes.items()}
        for rack in addresses:
            fetched.clear()
            ranges = [OffsetRange(TopicPartition(topic, 0), 0, RECORDS)]
            with open_cluster(servers, client_rack=f"rack-{rack}", max_partition_fetch_bytes="100") as client:
                blocks = list(PartitionFetcher(client).fetch_blocks(ranges))
            assert not any(block.error for block in blocks) and blocks[-1].next_offset == RECORDS
            # the leader names the replica in its first response
            assert fetched[0] == addresses[leader]
            assert fetched[-1] == addresses[rack] and fetched.count(addresses[rack]) >= RECORDS // 2
