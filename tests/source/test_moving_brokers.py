"""Moved leaders and coordinators, stopped nodes, restarted brokers under a query."""

import json

import pytest
from real_kafka import RealKafka
from support.clusters import BROKER_CONFIG, Cluster
from support.query_harness import PARTITIONS, QueryHarness
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.spark

NODES = 3


def generation_of(query):
    (source,) = query.lastProgress["sources"]
    return json.loads(source["endOffset"])["@group"]["generation"]


def produce_and_wait(harness, count=40):
    harness.produce(count)
    harness.wait_committed(120)


def test_query_follows_leaders_coordinator_and_nodes(spark, topic, group, tmp_path):
    with EmbeddedBroker(config=BROKER_CONFIG, brokers=NODES) as broker:
        harness = QueryHarness(spark, Cluster("embedded", broker.bootstrap_servers), topic, group, tmp_path)
        query = harness.start("a", **{"kafka.session.timeout.ms": "20000"})
        produce_and_wait(harness)
        generation = generation_of(query)
        for number in range(PARTITIONS):
            broker.move_leader(topic, number, broker.leader(topic, number).node_id % NODES + 1)
        produce_and_wait(harness)
        broker.move_coordinator(group, broker.coordinator(group) % NODES + 1)
        produce_and_wait(harness)
        stopped = broker.coordinator(group)
        broker.stop_node(stopped)
        produce_and_wait(harness)
        broker.start_node(stopped)
        produce_and_wait(harness)
        assert generation_of(query) == generation
        stop_gracefully(query, 60)
        assert harness.values("a") == list(range(harness.produced))
        harness.close()


class RestartableBroker:
    """An embedded broker that restarts on its port and data, as `RealKafka` does."""

    def __init__(self, directory):
        self._directory, self._port = directory, 0

    def __enter__(self):
        self.restart()
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def bootstrap_servers(self):
        return self._broker.bootstrap_servers

    def restart(self):
        self._broker = EmbeddedBroker(self._directory, config=BROKER_CONFIG, port=self._port)
        self._broker.start()
        self._port = int(self._broker.bootstrap_servers.rpartition(":")[2])

    def kill(self):
        self._broker.stop()


@pytest.mark.parametrize("name", ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_query_continues_after_a_broker_restart(spark, topic, group, tmp_path, name):
    with RestartableBroker(tmp_path / "data") if name == "embedded" else RealKafka(BROKER_CONFIG) as broker:
        harness = QueryHarness(spark, Cluster(name, broker.bootstrap_servers), topic, group, tmp_path)
        query = harness.start("a", **{"kafka.session.timeout.ms": "30000"})
        produce_and_wait(harness)
        broker.kill()
        reports = len(query.recentProgress)
        assert query.isActive
        broker.restart()
        produce_and_wait(harness)
        assert query.isActive and len(query.recentProgress) > reports
        wait_until(lambda: len(harness.members()) == 2, "both members are in the group", 60)
        stop_gracefully(query, 60)
        assert harness.values("a") == list(range(harness.produced))
        harness.close()
