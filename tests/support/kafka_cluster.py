"""Several nodes of a real Apache Kafka, with a group coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from real_kafka import RealKafka, free_address, random_cluster_id
from support.waiting import wait_until

from spark_groupsource.model import coordinator_partition

OFFSETS_TOPIC = "__consumer_offsets"
# a killed broker is fenced after its session, and its leaders move
_CONFIG = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class KafkaCluster:
    """Brokers that are KRaft controllers, too; a context manager. With three nodes, one may be down.

    Node N is in the rack ``rack-N``.
    """

    def __init__(self, nodes: int = 3, config: Mapping[str, str] | None = None) -> None:
        controllers = {number: free_address() for number in range(1, nodes + 1)}
        voters = ",".join(f"{number}@{address}" for number, address in controllers.items())
        cluster_id = random_cluster_id()
        self.nodes: dict[int, RealKafka] = {}
        for number, controller in controllers.items():
            client = free_address()
            own = {
                "node.id": str(number),
                "broker.rack": f"rack-{number}",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
            }
            self.nodes[number] = RealKafka({**_CONFIG, **(config or {}), **own}, client, cluster_id)

    def __enter__(self) -> KafkaCluster:
        try:
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                node.check_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.stop()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def coordinator(self, group: str) -> int:
        """The node that leads the partition of a group in `__consumer_offsets`."""
        partitions = self._admin().list_topics(OFFSETS_TOPIC, timeout=10).topics[OFFSETS_TOPIC].partitions
        return int(partitions[coordinator_partition(group, len(partitions))].leader)

    def wait_in_sync(self, topics: Sequence[str]) -> list[TopicPartition]:
        """Returns the partitions of topics, once all replicas are in sync."""
        admin = self._admin()

        def in_sync() -> list[TopicPartition]:
            known = [admin.list_topics(topic, timeout=10).topics[topic] for topic in topics]
            if any(len(p.isrs) < len(self.nodes) for found in known for p in found.partitions.values()):
                return []
            return [TopicPartition(str(found.topic), number) for found in known for number in found.partitions]

        return wait_until(in_sync, "all replicas are in sync", 60, 0.2)

    def elect_preferred(self, topics: Sequence[str]) -> None:
        """Moves the leaders of topics to their preferred replicas, once all replicas are in sync."""
        admin = self._admin()  # its requests end with the object
        admin.elect_leaders(ElectionType.PREFERRED, self.wait_in_sync(topics)).result(30)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
