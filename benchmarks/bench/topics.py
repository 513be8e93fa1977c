"""Topics of the benchmarks, loaded from prebuilt record batches.

A topic is loaded once per broker: its records are a few distinct record batches that repeat, so that loading takes
seconds and every run reads the same bytes.
"""

from __future__ import annotations

import itertools
import random
import time
from json import dumps
from typing import Callable, Iterator, Mapping, NamedTuple

from spark_groupsource.client.admin import NewTopic, create_topics
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.client.records.producer_settings import ProducerSettings
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import BrokerError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.compression import codec_number
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch

PARTITIONS = 4
_BATCHES = 32
_NOW = int(time.time() * 1000)

MakeRecord = Callable[[random.Random, int], Record]


def fixed(size: int, headers: int = 0) -> MakeRecord:
    """Returns a maker of records with random letters and a null key."""

    def make(rng: random.Random, number: int) -> Record:
        entries = tuple((f"header-{each}", rng.randbytes(16)) for each in range(headers))
        return Record(None, bytes(rng.choices(range(65, 91), k=size)), _NOW + number // 7, entries)

    return make


def json(rng: random.Random, number: int) -> Record:
    """A flight of about 93 bytes."""
    carrier, origin = rng.choice(("UA", "AA", "B6")), rng.choice(("EWR", "JFK"))
    text = (
        f'{{"flight": {rng.randrange(20_000)}, "carrier": "{carrier}", "origin": "{origin}", '
        f'"dep_delay": {rng.randrange(999)}, "arr_delay": {rng.randrange(999)}, "distance": {rng.randrange(999)}}}'
    )
    return Record(None, text.encode(), _NOW + number // 7)


def keyed(rng: random.Random, number: int) -> Record:
    """A record of 100 bytes with one of 100,000 keys."""
    return Record(b"key-%d" % rng.randrange(100_000), bytes(rng.choices(range(65, 91), k=100)), _NOW + number // 7)


class Topic(NamedTuple):
    """`records` records in batches of `batch_records`, over `partitions` partitions."""

    name: str
    records: int
    make: MakeRecord = fixed(100)
    batch_records: int = 150
    codec: str = "none"
    config: Mapping[str, str] = {}
    partitions: int = PARTITIONS

    @property
    def step(self) -> int:
        """The records that one batch in each partition has."""
        return self.batch_records * self.partitions


def ending_offsets(topic: Topic, records: int) -> str:
    """Returns the option endingOffsets for the first `records` records of a topic."""
    limit = min(records, topic.records) // topic.partitions
    return dumps({topic.name: {str(partition): limit for partition in range(topic.partitions)}})


def client(bootstrap_servers: str) -> ClusterClient:
    addresses = parse_addresses(bootstrap_servers)
    return ClusterClient(addresses, ClientSettings(bootstrap=addresses))


def ensure(bootstrap_servers: str, topic: Topic) -> None:
    """Creates and loads a topic unless it exists. Raises: BrokerError."""
    with client(bootstrap_servers) as cluster:
        if not create(cluster, topic.name, topic.partitions, topic.config):
            return
        batches = _encoded(topic)
        rounds = topic.records // topic.step
        _produce(cluster, topic, itertools.islice(itertools.cycle(batches), rounds))


def create(cluster: ClusterClient, name: str, partitions: int, config: Mapping[str, str] = {}) -> bool:
    """Creates a topic; returns False if it exists."""
    try:
        create_topics(cluster, [NewTopic(name, partitions, 1, {**config, "retention.ms": "-1"})])
    except BrokerError as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        raise
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            found = cluster.metadata([name], refresh=True).partitions_of(name)
            if len(found) == partitions:
                # retried until each leader serves its partitions
                cluster.list_offsets(dict.fromkeys(found, -1))
                return True
        except BrokerError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"topic {name} has not {partitions} partitions after 60 s")


def _encoded(topic: Topic) -> list[bytes]:
    rng = random.Random(20261122)
    numbers = itertools.count()
    return [
        encode_batch(
            [topic.make(rng, next(numbers)) for _ in range(topic.batch_records)], codec=codec_number(topic.codec)
        )
        for _ in range(min(_BATCHES, max(1, topic.records // topic.step)))
    ]


def _produce(cluster: ClusterClient, topic: Topic, batches: Iterator[bytes]) -> None:
    """Appends each batch to every partition."""
    producer = BatchProducer(cluster, ProducerSettings(acks=1, idempotence=False))
    producer.send(
        EncodedBatch(TopicPartition(topic.name, number), data, topic.batch_records)
        for data in batches
        for number in range(topic.partitions)
    )


def end_offsets(bootstrap_servers: str, name: str, partitions: int = PARTITIONS) -> dict[TopicPartition, int]:
    """Returns the log end offsets of a topic."""
    with client(bootstrap_servers) as cluster:
        wanted = {TopicPartition(name, number): -1 for number in range(partitions)}
        return {tp: found.offset for tp, found in cluster.list_offsets(wanted).items()}
