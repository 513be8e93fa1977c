"""Benchmark of table lag: time for a group with thousands of partitions.

    python benchmarks/lag.py [--bootstrap-servers HOST:PORT | --kafka] [--partitions 10000]

Every partition has records that the group has not read. Without an address, an embedded broker is started in a process
of its own, or a real Kafka, where the values are compared with those of kafka-consumer-groups. The best of several
rounds counts, because other load on the machine only slows a round down; the processor time is that of the client.
"""

from __future__ import annotations

import argparse
import sys
import time
from uuid import uuid4

from coordinator import embedded  # puts jobs/ on the path
from real_kafka import RealKafka

from spark_groupsource.client.admin import NewTopic, create_partitions, create_topics
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.monitor.tables.arrow_tables import arrow_schema, record_batches
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.estimates import ESTIMATES
from spark_groupsource.monitor.tables.table_rows import TableQuery, read_rows
from spark_groupsource.records.encode import Record

ROUNDS = 5
LAG = TABLES["lag"]
COLUMNS = frozenset(column.name for column in LAG.columns)
OFFSETS = COLUMNS.difference(ESTIMATES)
VARIANTS = {"offsets": OFFSETS, "with time": OFFSETS | {"lag_ms"}, "all columns": COLUMNS}


def wait_for_partitions(cluster: ClusterClient, topic: str, count: int) -> None:
    """Returns when the topic has the partitions."""
    while len(cluster.metadata([topic], refresh=True).partitions_of(topic)) < count:
        time.sleep(1)


def prepare(cluster: ClusterClient, topic: str, group: str, partitions: int) -> None:
    """Creates the topic, writes a batch of five records to each partition and commits offset 1 of each."""
    # Kafka changes at most 10,000 records of metadata per request
    first = min(partitions, 5_000)
    for count in dict.fromkeys((first, partitions)):
        try:
            if count == first:
                create_topics(cluster, [NewTopic(topic, first)])
            else:
                create_partitions(cluster, {topic: partitions})
        except BrokerError as error:
            # thousands of partitions take longer than the timeout of the request
            print(error, file=sys.stderr)
        wait_for_partitions(cluster, topic, count)
    producer = BatchProducer(cluster)
    timestamp_ms = int(time.time() * 1_000)
    records = [Record(None, b"x" * 100, timestamp_ms)] * 5
    producer.send(
        batch for number in range(partitions) for batch in encoded(TopicPartition(topic, number), records)
    )
    for start in range(0, partitions, 1_000):
        numbers = range(start, min(partitions, start + 1_000))
        cluster.commit(group, {TopicPartition(topic, number): OffsetAndMetadata(1) for number in numbers})


def measure(cluster: ClusterClient, group: str, partitions: int) -> None:
    """Prints the best time of each variant."""
    for name, columns in VARIANTS.items():
        best = best_cpu = float("inf")
        for _ in range(ROUNDS):
            started, started_cpu = time.perf_counter(), time.process_time()
            query = TableQuery("lag", columns, parse_selection("group", group))
            rows = sum(batch.num_rows for batch in record_batches(read_rows(cluster, query), arrow_schema(LAG)))
            assert rows == partitions
            best = min(best, time.perf_counter() - started)
            best_cpu = min(best_cpu, time.process_time() - started_cpu)
        print(f"{name:<12} {partitions:,} partitions: {best:.2f} s, {best_cpu:.2f} s processor time")


def compare(kafka: RealKafka, cluster: ClusterClient, group: str) -> None:
    """Compares the offsets and the lag of every partition with the output of Kafka's tool."""
    arguments = ("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group, "--timeout", "600000")
    tool = kafka.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *arguments, timeout_s=900)
    theirs = sorted(line.split()[1:6] for line in tool.stdout.splitlines() if line.startswith(f"{group} "))
    query = TableQuery("lag", OFFSETS, parse_selection("group", group))
    names = ("topic", "partition", "current_offset", "log_end_offset", "lag")
    ours = sorted([str(row[name]) for name in names] for row in read_rows(cluster, query))
    assert ours == theirs, f"{len(ours)} rows, kafka-consumer-groups has {len(theirs)}: {tool.stderr[-500:]}"
    print(f"kafka-consumer-groups prints the same {len(theirs):,} rows")


def run(address: str, partitions: int, kafka: RealKafka | None = None) -> None:
    """Measures against one cluster."""
    settings = ClientSettings.parse({"bootstrap.servers": address})
    topic, group = f"lag-{uuid4().hex[:8]}", f"lag-{uuid4().hex[:8]}"
    with ClusterClient(settings.bootstrap, settings) as cluster:
        prepare(cluster, topic, group, partitions)
        measure(cluster, group, partitions)
        if kafka is not None:
            compare(kafka, cluster, group)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure table lag.")
    parser.add_argument("--bootstrap-servers", default="")
    parser.add_argument("--kafka", action="store_true", help="start a real Kafka and compare with its tool")
    parser.add_argument("--partitions", type=int, default=10_000)
    options = parser.parse_args()
    if options.bootstrap_servers:
        run(options.bootstrap_servers, options.partitions)
        return
    if options.kafka:
        with RealKafka() as kafka:
            run(kafka.bootstrap_servers, options.partitions, kafka)
        return
    with embedded() as target:
        run(target.address, options.partitions)


if __name__ == "__main__":
    main()
