"""Permissions of a query that writes exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from confluent_kafka.admin import AclOperation
from confluent_kafka.admin import ResourceType as Kind
from support.clients import open_cluster
from support.secured_broker import SECURED_CONFIG, Secured

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.errors import BrokerError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch
from spark_groupsource.source.positions.published_progress import WriterProgress
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication, publish

READ, WRITE = AclOperation.READ, AclOperation.WRITE


class Sources:
    """A source that reads a topic."""

    def __init__(self, topic: str | None) -> None:
        self._partition = None if topic is None else TopicPartition(topic, 0)

    def ends(self) -> dict[str, str]:
        return {}

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        return JoinedOffsets({}, self._partition)


# each has its own: a permission on any topic is one to begin an idempotent producer
@pytest.fixture
def secured() -> Iterator[Secured]:
    with EmbeddedBroker(config=SECURED_CONFIG) as broker:
        yield Secured(broker)


@pytest.fixture
def client(secured: Secured) -> Iterator[ClusterClient]:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    login |= {"sasl_username": "ann", "sasl_password": "secret"}
    with open_cluster(secured.broker.bootstrap_servers, **login) as opened:
        yield opened


def write(client: ClusterClient, output: str, transactional_id: str, source: str | None) -> bool:
    batches = [EncodedBatch(TopicPartition(output, 0), encode_batch([Record(None, b"x", 0)]), 1)]
    return publish(client, Publication(transactional_id, batches, "q", 1, output), Sources(source))


def test_a_query_reads_its_input_and_writes_its_output_without_reading_it(
    secured: Secured, client: ClusterClient, topic: str, group: str
) -> None:
    output = f"{topic}-out"
    for name in (topic, output):
        secured.broker.produce(name, [b"1"])
    for kind, name, operation, error in (
        (Kind.TOPIC, output, WRITE, f"transactional id '{group}' failed.*WRITE on the transactional id"),
        (Kind.TRANSACTIONAL_ID, group, WRITE, f"group.*{group}-progress.*READ"),
        (Kind.GROUP, f"{group}-progress", READ, f"TxnOffsetCommit of group '{group}-progress'.*TOPIC_AUTHORIZATION"),
    ):
        secured.permit(kind, name, operation)
        with pytest.raises(BrokerError, match=error):
            write(client, output, group, topic)
    secured.permit(Kind.TOPIC, topic, READ)
    assert write(client, output, group, topic)


def test_the_topic_without_permission_is_named_among_many(
    secured: Secured, client: ClusterClient, topic: str, group: str
) -> None:
    secured.permit(Kind.TRANSACTIONAL_ID, group, WRITE)
    names = [f"{topic}-{number}" for number in range(8)]
    for name in names:
        secured.broker.produce(name, [b"1"])
        secured.permit(Kind.TOPIC, name, READ if name == names[6] else WRITE)
    batches = [EncodedBatch(TopicPartition(name, 0), encode_batch([Record(None, b"x", 0)]), 1) for name in names]
    with pytest.raises(BrokerError, match=rf"AddPartitionsToTxn \({names[6]}-0\) for .* TOPIC_AUTHORIZATION_FAILED"):
        publish(client, Publication(group, batches), Sources(None))


def test_a_query_without_groupsource_source_reads_its_output(
    secured: Secured, client: ClusterClient, topic: str, group: str
) -> None:
    secured.broker.produce(topic, [b"1"])
    secured.permit(Kind.TRANSACTIONAL_ID, group, WRITE)
    secured.permit(Kind.GROUP, f"{group}-progress", READ)
    secured.permit(Kind.TOPIC, topic, WRITE)
    with pytest.raises(BrokerError, match=f"TxnOffsetCommit.*{topic}-0.*operation on the topic.*READ to read it"):
        write(client, topic, group, None)
    secured.permit(Kind.TOPIC, topic, READ, WRITE)
    assert write(client, topic, group, None)


def test_an_idempotent_producer_needs_write_on_its_topic_alone(
    secured: Secured, client: ClusterClient, topic: str
) -> None:
    secured.broker.produce(topic, [b"1"])
    batches = [EncodedBatch(TopicPartition(topic, 0), encode_batch([Record(None, b"x", 0)]), 1)]
    producer = BatchProducer(client)
    for operation, error in (
        (READ, "InitProducerId failed: CLUSTER_AUTHORIZATION_FAILED.* Grant the user WRITE on the topic"),
        (WRITE, None),
        # lost while the producer is kept
        (READ, f"Produce to {topic}-0 failed: TOPIC_AUTHORIZATION_FAILED.* WRITE to write"),
        (WRITE, None),
    ):
        secured.permit(Kind.TOPIC, topic, operation)
        with pytest.raises(BrokerError, match=error) if error else nullcontext():
            producer.send(batches)
