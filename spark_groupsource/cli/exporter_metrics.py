"""Metrics of topics and groups in the Prometheus text format.

Names, labels and meanings are those of kafka_exporter (github.com/danielqsj/kafka_exporter), whose dashboards work.
Metrics of members are those of Kafka's consumer, named as jmx_exporter does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from spark_groupsource.client.admin import GroupDescription, describe_groups, list_topics
from spark_groupsource.client.cluster.cluster_client import ClusterClient, TopicInfo
from spark_groupsource.client.membership.coordinator_metrics import COORDINATOR_METRICS
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.offsets.cluster_reads import (
    group_lag,
    log_end_offsets,
    log_start_offsets,
    selected_groups,
)
from spark_groupsource.monitor.offsets.lag import LagRow
from spark_groupsource.monitor.selection import NameSelection

_PARTITION = ("topic", "partition")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_NO_OFFSET = -1


class Family(NamedTuple):
    """One metric: Prometheus type, help text, names of the labels."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value; `labels` in the order of the family; `suffix` and `le` for the samples of a histogram."""

    name: str
    labels: tuple[str, ...]
    value: float
    suffix: str = ""
    le: str | None = None


CONSUMER_METRICS: Mapping[str, str] = {
    name: f"kafka_consumer_consumer_coordinator_metrics_{name.replace('-', '_')}" for name in COORDINATOR_METRICS
}
"""Kafka's name -> metric, as jmx_exporter names the bean consumer-coordinator-metrics of kafka.consumer by default."""

FAMILIES: Mapping[str, Family] = {
    "kafka_brokers": Family("gauge", "Number of brokers in the cluster."),
    "kafka_broker_info": Family("gauge", "1 for each broker.", ("id", "address")),
    "kafka_topic_partitions": Family("gauge", "Number of partitions of a topic.", ("topic",)),
    "kafka_topic_partition_current_offset": Family("gauge", "High watermark of a partition.", _PARTITION),
    "kafka_topic_partition_oldest_offset": Family("gauge", "Log start offset of a partition.", _PARTITION),
    "kafka_topic_partition_leader": Family("gauge", "Broker id of the leader of a partition.", _PARTITION),
    "kafka_topic_partition_replicas": Family("gauge", "Number of replicas of a partition.", _PARTITION),
    "kafka_topic_partition_in_sync_replica": Family("gauge", "Number of in-sync replicas of a partition.", _PARTITION),
    "kafka_topic_partition_leader_is_preferred": Family(
        "gauge", "1 if the leader of a partition is its preferred replica.", _PARTITION
    ),
    "kafka_topic_partition_under_replicated_partition": Family(
        "gauge", "1 if a partition has fewer in-sync replicas than replicas.", _PARTITION
    ),
    "kafka_consumergroup_current_offset": Family(
        "gauge", "Committed offset of a group in a partition, -1 without one.", _GROUP_PARTITION
    ),
    "kafka_consumergroup_current_offset_sum": Family(
        "gauge", "Sum of the committed offsets of a group in a topic.", ("consumergroup", "topic")
    ),
    "kafka_consumergroup_lag": Family(
        "gauge", "High watermark minus committed offset, -1 without a committed offset.", _GROUP_PARTITION
    ),
    "kafka_consumergroup_lag_sum": Family(
        "gauge", "Sum of the lag of a group in a topic.", ("consumergroup", "topic")
    ),
    "kafka_consumergroup_members": Family("gauge", "Number of members of a group.", ("consumergroup",)),
    "groupsource_rebalances_total": Family(
        "counter", "Completed rebalances of a group by cause, as far back as its history is known.", ("group", "cause")
    ),
    "groupsource_rebalance_phase_seconds": Family(
        "histogram", "Duration of a phase of a rebalance.", ("group", "phase")
    ),
    **{
        CONSUMER_METRICS[name]: Family(
            "counter" if name.endswith("-total") else "gauge",
            text,
            ("consumergroup", "client_id", "query", "reader_pid"),
        )
        for name, text in COORDINATOR_METRICS.items()
    },
    "groupsource_exporter_up": Family(
        "gauge", "1 if the last read of this part succeeded, and the cluster has responded since.", ("part",)
    ),
    "groupsource_exporter_errors_total": Family("counter", "Failed reads of this part.", ("part",)),
    "groupsource_exporter_read_seconds": Family("gauge", "Duration of the last read of this part.", ("part",)),
}
"""Every exported metric."""


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Returns the samples in the text format, version 0.0.4, grouped by metric."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, family in FAMILIES.items():
        if name in by_name:
            lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
            lines += [_line(sample, family) for sample in by_name[name]]
    return "".join(f"{line}\n" for line in lines)


def _line(sample: Sample, family: Family) -> str:
    pairs = [*zip(family.labels, sample.labels), *([] if sample.le is None else [("le", sample.le)])]
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    value = int(sample.value) if sample.value == int(sample.value) else sample.value
    return f"{sample.name}{sample.suffix}{{{labels}}} {value}" if labels else f"{sample.name}{sample.suffix} {value}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def lag_samples(cluster: ClusterClient, topics: NameSelection | None, groups: NameSelection | None) -> list[Sample]:
    """Reads brokers, topics and groups. Raises: BrokerError, NetworkError."""
    found = [t for t in list_topics(cluster, internal=True).values() if topics is None or topics.matches(t.name)]
    partitions = [TopicPartition(topic.name, number) for topic in found for number in topic.partitions]
    starts, ends = log_start_offsets(cluster, partitions), log_end_offsets(cluster, partitions)
    nodes = cluster.metadata(()).nodes
    samples = [Sample("kafka_brokers", (), len(nodes))]
    samples += [Sample("kafka_broker_info", (str(n.node_id), f"{n.host}:{n.port}"), 1) for n in nodes.values()]
    for topic in found:
        samples += _topic_samples(topic, starts, ends)
    by_name = {topic.name: topic for topic in found}
    described = describe_groups(cluster, selected_groups(cluster, groups))
    existing = [group for group in described.values() if group.state != "Dead"]
    rows = group_lag(cluster, existing)
    for group in existing:
        samples += _group_samples(group, rows[group.group_id], by_name)
    return samples


def _topic_samples(
    topic: TopicInfo, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[Sample]:
    yield Sample("kafka_topic_partitions", (topic.name,), len(topic.partitions))
    for number, p in sorted(topic.partitions.items()):
        labels = (topic.name, str(number))
        tp = TopicPartition(topic.name, number)
        if tp in ends:
            yield Sample("kafka_topic_partition_current_offset", labels, ends[tp])
        if tp in starts:
            yield Sample("kafka_topic_partition_oldest_offset", labels, starts[tp])
        if p.leader_id >= 0:
            yield Sample("kafka_topic_partition_leader", labels, p.leader_id)
        yield Sample("kafka_topic_partition_replicas", labels, len(p.replicas))
        yield Sample("kafka_topic_partition_in_sync_replica", labels, len(p.in_sync))
        is_preferred = p.replicas[:1] == (p.leader_id,)
        yield Sample("kafka_topic_partition_leader_is_preferred", labels, is_preferred)
        is_short = len(p.in_sync) < len(p.replicas)
        yield Sample("kafka_topic_partition_under_replicated_partition", labels, is_short)


def _group_samples(
    group: GroupDescription, rows: Iterable[LagRow], topics: Mapping[str, TopicInfo]
) -> Iterator[Sample]:
    """As kafka_exporter with ``--offset.show-all``: every partition of the topics with a committed offset."""
    name = group.group_id
    yield Sample("kafka_consumergroup_members", (name,), len(group.members))
    by_topic: dict[str, dict[int, LagRow]] = {}
    for row in rows:
        if row.committed is not None and row.topic_partition.topic in topics:
            by_topic.setdefault(row.topic_partition.topic, {})[row.topic_partition.partition] = row
    for topic, committed in sorted(by_topic.items()):
        for number in sorted(topics[topic].partitions):
            labels = (name, topic, str(number))
            known = committed.get(number)
            offset = known.committed.offset if known and known.committed else _NO_OFFSET
            yield Sample("kafka_consumergroup_current_offset", labels, offset)
            if known is None or known.lag is not None:
                lag = known.lag if known and known.lag is not None else _NO_OFFSET
                yield Sample("kafka_consumergroup_lag", labels, lag)
        offsets = sum(row.committed.offset for row in committed.values() if row.committed)
        yield Sample("kafka_consumergroup_current_offset_sum", (name, topic), offsets)
        yield Sample("kafka_consumergroup_lag_sum", (name, topic), sum(row.lag or 0 for row in committed.values()))
