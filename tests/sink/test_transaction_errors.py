"""Errors of the steps of a transaction: repeated, begun again, or raised.

Source: Kafka `TransactionManager` (handlers of its requests, `canRetry`, `maybeTransitionToErrorState`) and `Sender`,
at commit 1eb7644. A fatal error ends a Java producer; its application creates another one, which begins with
InitProducerId.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from uuid import uuid4

import pytest
from support.clients import FakeBroker, open_cluster, open_cluster_at
from support.faulty_broker import LOSE_REQUEST, LOSE_RESPONSE, Fault, faulty_broker
from support.read_back import read_back
from support.topics import create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import UNKNOWN_TOPIC_TIMEOUT_MS, ClusterClient
from spark_groupsource.client.cluster.group_offsets import NO_MEMBER
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import (
    RETRIABLE,
    BrokerError,
    ErrorCode,
    GenerationMismatchError,
    GroupSourceError,
    TransactionAbortedError,
)
from spark_groupsource.model import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.group.transactional_commits import TransactionalCommits
from spark_groupsource.source.positions.published_progress import WriterProgress
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication, publish

E = ErrorCode
FENCED = {E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED}
LOST = {E.UNKNOWN_PRODUCER_ID, E.INVALID_PRODUCER_ID_MAPPING}
OF_MEMBERS = {E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION}


class JavaErrors(NamedTuple):
    """Errors that a Java producer does not retry; `others` is the class of those that it does not name."""

    others: str
    fatal: frozenset[ErrorCode] = frozenset()
    abortable: frozenset[ErrorCode] = frozenset()


JAVA: Mapping[str, JavaErrors] = {
    "InitProducerId": JavaErrors(
        "fatal",
        frozenset(FENCED),
        frozenset({E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE}),
    ),
    "AddPartitionsToTxn": JavaErrors(
        "abortable",
        frozenset({*FENCED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE}),
        frozenset({*LOST, E.TOPIC_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE}),
    ),
    "Produce": JavaErrors(
        "abortable",
        frozenset(
            {
                E.CLUSTER_AUTHORIZATION_FAILED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.PRODUCER_FENCED,
                E.UNSUPPORTED_VERSION,
            }
        ),
        frozenset({*LOST, E.INVALID_PRODUCER_EPOCH, E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.TRANSACTION_ABORTABLE}),
    ),
    "AddOffsetsToTxn": JavaErrors(
        "fatal",
        frozenset({*FENCED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE}),
        frozenset({*LOST, E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE}),
    ),
    "TxnOffsetCommit": JavaErrors(
        "fatal",
        frozenset({*FENCED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.UNSUPPORTED_FOR_MESSAGE_FORMAT}),
        frozenset({*OF_MEMBERS, E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE}),
    ),
    "EndTxn": JavaErrors(
        "fatal",
        frozenset({*FENCED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE}),
        frozenset({*LOST, E.TRANSACTION_ABORTABLE}),
    ),
}  # fmt: skip

# another transaction may succeed; also after what ends a Java producer
BEGUN_AGAIN = {*FENCED, *LOST, E.INVALID_TXN_STATE, E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.TRANSACTION_ABORTABLE}
CODES = (
    *(code for each in JAVA.values() for code in each.fatal | each.abortable),
    E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR,
    E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.NOT_LEADER_OR_FOLLOWER, E.REQUEST_TIMED_OUT,
    E.KAFKA_STORAGE_ERROR, E.UNKNOWN_TOPIC_OR_PARTITION, E.CORRUPT_MESSAGE, E.UNSTABLE_OFFSET_COMMIT,
    E.UNKNOWN_SERVER_ERROR, E.INVALID_REQUEST, E.OFFSET_METADATA_TOO_LARGE, E.INVALID_TXN_STATE, E.MESSAGE_TOO_LARGE,
    E.INVALID_RECORD, E.POLICY_VIOLATION,
)  # fmt: skip


def java_class(api: str, code: ErrorCode) -> str:
    if code in RETRIABLE:
        return "retriable"
    known = JAVA[api]
    return "fatal" if code in known.fatal else "abortable" if code in known.abortable else known.others


def expected_outcome(api: str, code: ErrorCode) -> str:
    if java_class(api, code) == "retriable":
        return "repeated"
    return "begun again" if code in BEGUN_AGAIN else "raised"


class NoSources:
    """The sources of a query without a groupsource source."""

    def ends(self) -> Mapping[str, str]:
        return {}

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        return JoinedOffsets({}, None)


class Publishing:
    """Publishes batches of one record through a proxy; `fault` is that of the next request of its API."""

    def __init__(self, proxy: FakeBroker, cluster: ClusterClient, topic: str) -> None:
        self.fault: Fault = None
        self.proxy, self._cluster = proxy, cluster
        self._transactional_id, self._output = f"T-{uuid4().hex[:8]}", TopicPartition(topic, 0)
        self._number = 0

    def sent(self, api: str) -> int:
        """Returns the number of requests of an API."""
        return sum(name == api for name, _, _ in self.proxy.requests)

    def publish(self, value: bytes, **settings: int) -> None:
        self._number += 1
        batch = EncodedBatch(self._output, encode_batch([Record(None, value, 0)]), 1)
        publication = Publication(
            self._transactional_id, [batch], "q", self._number, settings=ProducerSettings(**settings)  # type: ignore
        )
        publish(self._cluster, publication, NoSources())


@contextmanager
def publishing(embedded: EmbeddedBroker, topic: str, api: str, *, is_once: bool = True) -> Iterator[Publishing]:
    create_topic(embedded.bootstrap_servers, topic, 1)
    opened: list[Publishing] = []

    def fault() -> Fault:
        chosen = opened[0].fault
        if is_once:
            opened[0].fault = None
        return chosen

    short = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "5"}
    with faulty_broker(embedded.bootstrap_servers, fault, api) as proxy, open_cluster(
        str(proxy.address), **short
    ) as cluster:
        opened.append(Publishing(proxy, cluster, topic))
        yield opened[0]


@pytest.mark.slow
@pytest.mark.parametrize("api", JAVA)
def test_each_error_of_a_step_is_repeated_begun_again_or_raised(
    embedded: EmbeddedBroker, topic: str, api: str
) -> None:
    found: dict[ErrorCode, str] = {}
    with publishing(embedded, topic, api) as tried:
        for code in sorted(set(CODES)):
            begun, tried.fault = tried.sent("InitProducerId"), code
            try:
                tried.publish(code.name.encode())
            except BrokerError as error:
                assert error.code == code and api in str(error)
                found[code] = "raised"
            else:
                # a repetition of InitProducerId begins nothing before its success
                is_same = api == "InitProducerId" and code in RETRIABLE
                is_same = is_same or tried.sent("InitProducerId") == begun + 1
                found[code] = "repeated" if is_same else "begun again"
            assert tried.fault is None
    assert found == {code: expected_outcome(api, code) for code in found}
    # what was published is visible once, and nothing of the rest
    values = [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]]
    assert sorted(values) == sorted(code.name.encode() for code, outcome in found.items() if outcome != "raised")


def test_no_error_that_a_java_producer_retries_ends_a_transaction() -> None:
    assert BEGUN_AGAIN.isdisjoint(RETRIABLE)
    # only those of a member end a transaction of Java's producer that another transaction cannot succeed after
    refused = {code for api in JAVA for code in JAVA[api].abortable if expected_outcome(api, code) == "raised"}
    assert {code for code in refused if not code.name.endswith("AUTHORIZATION_FAILED")} == OF_MEMBERS


@pytest.mark.parametrize("fault", [None, E.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize(
    "error",
    [
        GenerationMismatchError(group_id="g", member_id="m", generation_id=1, cause="a rebalance"),
        BrokerError(E.TOPIC_AUTHORIZATION_FAILED, "TxnOffsetCommit"),
    ],
)
def test_the_error_of_an_offset_is_raised_and_its_transaction_aborted(
    embedded: EmbeddedBroker, group: str, fault: Fault, error: GroupSourceError
) -> None:
    class Failing:
        def commit_in_transaction(self, offsets: object, transactions: Transactions) -> None:
            transactions.commit_offsets(group, {TopicPartition(group, 0): OffsetAndMetadata(1, "", -1)})
            raise error

    create_topic(embedded.bootstrap_servers, group, 1)
    ownership = cast(Any, Failing())
    with faulty_broker(embedded.bootstrap_servers, lambda: fault, "EndTxn") as proxy, open_cluster(
        str(proxy.address), default_api_timeout_ms="2000"
    ) as cluster:
        with pytest.raises(type(error)) as raised:
            TransactionalCommits(cluster, f"T-{group}").commit(ownership, {})
        assert raised.value is error
        assert [name for name, _, _ in proxy.requests][-1] == "EndTxn"


def test_a_group_is_added_once_and_only_failed_commits_of_its_members_are_repeated(
    embedded: EmbeddedBroker, topic: str, group: str
) -> None:
    partitions = [TopicPartition(topic, number) for number in range(4)]
    create_topic(embedded.bootstrap_servers, topic, len(partitions))
    faults: Iterator[Fault] = iter([None, E.CONCURRENT_TRANSACTIONS, None, E.COORDINATOR_LOAD_IN_PROGRESS])
    with faulty_broker(
        embedded.bootstrap_servers, lambda: next(faults, None), "TxnOffsetCommit"
    ) as proxy, open_cluster(str(proxy.address)) as cluster:
        transactions = Transactions(cluster, f"T-{group}")
        transactions.init(60_000)
        offsets = {partition: OffsetAndMetadata(partition.partition, "", -1) for partition in partitions}
        rows = [(NO_MEMBER, {partition: offset}) for partition, offset in offsets.items()]
        assert transactions.commit_offsets_each(group, rows) == [None] * len(rows)
        transactions.end(is_committed=True)
        sent = [name for name, _, _ in proxy.requests]
        assert (sent.count("AddOffsetsToTxn"), sent.count("TxnOffsetCommit")) == (1, len(rows) + 2)
        assert cluster.fetch_committed(group) == offsets


@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_RESPONSE])
@pytest.mark.parametrize("api", JAVA)
def test_a_lost_connection_at_any_step_writes_each_record_once(
    embedded: EmbeddedBroker, topic: str, api: str, fault: str
) -> None:
    with publishing(embedded, topic, api) as tried:
        for value in (b"0", b"1"):
            tried.fault = fault
            tried.publish(value)
    assert [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]] == [b"0", b"1"]


def test_a_topic_that_is_unknown_after_an_outage_is_looked_up_again(embedded: EmbeddedBroker, topic: str) -> None:
    """A coordinator that has just started may not have the metadata of the topic yet."""
    create_topic(embedded.bootstrap_servers, topic, 1)
    faults: Iterator[Fault] = iter([*[E.COORDINATOR_LOAD_IN_PROGRESS] * 10, E.UNKNOWN_TOPIC_OR_PARTITION])
    clock = ManualClock(1)
    with faulty_broker(
        embedded.bootstrap_servers, lambda: next(faults, None), "AddPartitionsToTxn"
    ) as proxy, open_cluster_at(clock, str(proxy.address)) as cluster:
        transactions = Transactions(cluster, f"T-{topic}")
        transactions.init(60_000)
        transactions.add_partitions([TopicPartition(topic, 0)])
        assert clock.now_ms() > UNKNOWN_TOPIC_TIMEOUT_MS
        transactions.end(is_committed=False)


def test_a_leader_that_only_rejects_this_transaction_gets_another_one(embedded: EmbeddedBroker, topic: str) -> None:
    with publishing(embedded, topic, "Produce", is_once=False) as tried:
        tried.fault = E.NOT_ENOUGH_REPLICAS

        def rejecting_the_first(request: object, version: int) -> object:
            if tried.sent("AddPartitionsToTxn") > 1:
                tried.fault = None
            return forward(request, version)

        forward, tried.proxy.responses["Produce"] = tried.proxy.responses["Produce"], rejecting_the_first
        tried.publish(b"x", transaction_timeout_ms=400)
        assert tried.sent("AddPartitionsToTxn") == 2
    assert [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]] == [b"x"]


def test_a_lack_of_replicas_is_raised_after_the_delivery_timeout(embedded: EmbeddedBroker, topic: str) -> None:
    with publishing(embedded, topic, "Produce", is_once=False) as tried:
        tried.fault = E.NOT_ENOUGH_REPLICAS
        with pytest.raises(BrokerError, match="NOT_ENOUGH_REPLICAS.*Start the missing brokers"):
            tried.publish(b"x", delivery_timeout_ms=300)
        tried.fault = None
        tried.publish(b"y")
    assert [value for _, value, _ in read_back(embedded.bootstrap_servers, topic, 1)[0]] == [b"y"]


@pytest.mark.parametrize("api", sorted(JAVA.keys() - {"InitProducerId"}))
def test_transactions_that_are_aborted_again_and_again_end_with_the_last_error(
    embedded: EmbeddedBroker, topic: str, api: str
) -> None:
    with publishing(embedded, topic, api, is_once=False) as tried:
        tried.fault = E.INVALID_TXN_STATE
        with pytest.raises(TransactionAbortedError, match=f"10 transactions of .* were aborted.*{api}") as raised:
            tried.publish(b"x")
        assert isinstance(raised.value.__cause__, GroupSourceError)
        # the last one is aborted, too
        assert tried.sent(api) == 10 + (api == "EndTxn")
    assert read_back(embedded.bootstrap_servers, topic, 1) == {0: []}
