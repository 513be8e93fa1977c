"""Leaders and coordinators that move, nodes and whole brokers that vanish and come back, under a running query."""

import json

import pytest
from real_kafka import RealKafka
from stream_bench import PARTITIONS, Bench
from support.clusters import BROKER_CONFIG, Cluster
from support.waiting import wait_until

from spark_groupsource import stop_gracefully
from spark_groupsource.broker.server import EmbeddedBroker

pytestmark = pytest.mark.spark

NODES = 3


def generation_of(query):
    (source,) = query.lastProgress["sources"]
    return json.loads(source["endOffset"])["@group"]["generation"]


def read_on(bench, count=40):
    bench.produce(count)
    bench.wait_committed(120)


def test_query_follows_leaders_coordinator_and_nodes(spark, topic, group, tmp_path):
    with EmbeddedBroker(config=BROKER_CONFIG, brokers=NODES) as broker:
        bench = Bench(spark, Cluster("embedded", broker.bootstrap_servers), topic, group, tmp_path)
        query = bench.start("a", **{"kafka.session.timeout.ms": "20000"})
        read_on(bench)
        generation = generation_of(query)
        for number in range(PARTITIONS):
            broker.move_leader(topic, number, broker.leader(topic, number).node_id % NODES + 1)
        read_on(bench)
        broker.move_coordinator(group, broker.coordinator(group) % NODES + 1)
        read_on(bench)
        gone = broker.coordinator(group)
        broker.stop_node(gone)
        read_on(bench)
        broker.start_node(gone)
        read_on(bench)
        assert generation_of(query) == generation
        stop_gracefully(query, 60)
        assert bench.values("a") == list(range(bench.produced))
        bench.close()


class Embedded:
    """An embedded broker that can be stopped and started again on its port and data, as `RealKafka` can be."""

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
def test_query_bears_a_broker_that_is_down_and_back(spark, topic, group, tmp_path, name):
    with Embedded(tmp_path / "data") if name == "embedded" else RealKafka(BROKER_CONFIG) as broker:
        bench = Bench(spark, Cluster(name, broker.bootstrap_servers), topic, group, tmp_path)
        query = bench.start("a", **{"kafka.session.timeout.ms": "30000"})
        read_on(bench)
        broker.kill()
        asked = len(query.recentProgress)
        assert query.isActive
        broker.restart()
        read_on(bench)
        assert query.isActive and len(query.recentProgress) > asked
        wait_until(lambda: len(bench.members()) == 2, "both members are in the group", 60)
        stop_gracefully(query, 60)
        assert bench.values("a") == list(range(bench.produced))
        bench.close()
