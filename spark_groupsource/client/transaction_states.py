"""State of transactions at their coordinators and in logs (KIP-664)."""

from __future__ import annotations

from typing import Iterable, NamedTuple

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.cluster.routing import TransactionalId
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition, by_topic
from spark_groupsource.wire.messages import DescribeProducersRequest, DescribeTransactionsRequest


class TransactionState(NamedTuple):
    """State of a transactional id at its coordinator; `started_ms` is in epoch milliseconds, -1 without a transaction.

    `partitions` are those of the open transaction, partitions of ``__consumer_offsets`` among them.
    """

    transactional_id: str
    state: str
    producer: ProducerIdAndEpoch
    started_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]


class OpenTransaction(NamedTuple):
    """A transaction that is open in the log of a partition: `start_offset` is that of its first record."""

    topic_partition: TopicPartition
    producer: ProducerIdAndEpoch
    start_offset: int
    last_timestamp_ms: int


def describe_transaction(cluster: ClusterClient, transactional_id: str) -> TransactionState | None:
    """Returns the state of a transactional id; None if it does not exist.

    Raises: BrokerError, NetworkError; UnsupportedVersionError for a broker before 3.0.
    """
    response = cluster.call_coordinator(
        TransactionalId(transactional_id),
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        errors=lambda r: [state.error_code for state in r.transaction_states],
    )
    (found,) = response.transaction_states
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    if found.error_code:
        raise BrokerError(found.error_code, f"Describing transactional id '{transactional_id}'")
    return TransactionState(
        transactional_id,
        found.transaction_state,
        ProducerIdAndEpoch(found.producer_id, found.producer_epoch),
        found.transaction_start_time_ms,
        found.transaction_timeout_ms,
        tuple(sorted(TopicPartition(row.topic, number) for row in found.topics for number in row.partitions)),
    )


def open_transactions(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Returns the transactions that are open in the logs of partitions, by partition.

    Raises: BrokerError, NetworkError; UnsupportedVersionError for a broker before 2.8.
    """
    wanted = sorted(partitions)
    view = cluster.metadata({tp.topic for tp in wanted})
    by_leader: dict[int, list[TopicPartition]] = {}
    for tp in wanted:
        by_leader.setdefault(view.leader(tp).node_id, []).append(tp)
    found: list[OpenTransaction] = []
    row = DescribeProducersRequest.TopicRequest
    for node_id, chosen in by_leader.items():
        topics = [row(name=name, partition_indexes=numbers) for name, numbers in by_topic(chosen).items()]
        for topic in cluster.call_node(node_id, DescribeProducersRequest(topics=topics)).topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    raise BrokerError(p.error_code, f"Describing the producers of {tp}", p.error_message or "")
                found += [
                    OpenTransaction(
                        tp,
                        ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
                        each.current_txn_start_offset,
                        each.last_timestamp,
                    )
                    for each in p.active_producers
                    if each.current_txn_start_offset >= 0
                ]
    return sorted(found)
