"""Clients of several libraries that record what they know.

A transaction also commits an offset of a group, the last of its values. Clients give up early, as an application with a
deadline does: an outcome that they do not know is what a broker and the next transaction have to handle.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from queue import Empty, Queue
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Assigned
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import KafkaError as KafkaPythonError
from kafka.structs import OffsetAndMetadata as KafkaPythonOffset

from histories.history import History, Operation, Outcome, Polled, Sent
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.transactions import Transactions
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.encoded_batch import EncodedBatch

API_TIMEOUT_S = 2.0
"""How long a client repeats the requests of a call, before it does not know the outcome."""
REQUEST_TIMEOUT_MS = 1_000
TRANSACTION_TIMEOUT_MS = 4_000
# a call may end itself at API_TIMEOUT_S
_CALL_S = API_TIMEOUT_S + 1
# a share of the transactions is aborted on purpose
_ABORTED = 0.2
_LIBRDKAFKA = {
    "log_level": 0,
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
}


class Recorder:
    """The operations of all clients of one history, and the values that they write: each value once."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self._values = count()
        self._lock = threading.Lock()
        self.history: History = []

    def add(self, operation: Operation) -> None:
        with self._lock:
            self.history.append(operation)

    def sent(self, draw: random.Random, most: int) -> list[Sent]:
        """Returns new values for random logs."""
        numbers = [next(self._values) for _ in range(draw.randint(1, most))]
        return [Sent(self.log(draw.randrange(self.partitions)), number) for number in numbers]

    def log(self, partition: int) -> str:
        return f"{self.topic}-{partition}"

    def partition(self, log: str) -> int:
        return int(log.rpartition("-")[2])


    def group(self, transactional_id: str) -> tuple[str, TopicPartition]:
        """Returns the group and the partition of the offset that the transactions of an id commit."""
        return f"{transactional_id}-offsets", TopicPartition(self.topic, 0)


def _within_timeout(call: Callable[[], object]) -> None:
    """Performs a call that may never end: of kafka-python, or SendOffsetsToTransaction of librdkafka 2.16 after a cut.

    Raises: TimeoutError after the timeout, or the error of the call.
    """
    ended: Queue[BaseException | None] = Queue()

    def perform() -> None:
        try:
            call()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    threading.Thread(target=perform, daemon=True).start()
    try:
        error = ended.get(timeout=_CALL_S)
    except Empty:
        raise TimeoutError(f"{call} did not end within {_CALL_S} s") from None
    if error is not None:
        raise error


class Client(Protocol):
    """One client; `step` performs and records an operation, `close` is called once."""

    def step(self) -> None: ...

    def close(self) -> None: ...


class LibrdkafkaWriter:
    """Transactions of librdkafka; without `transactional_id`, single sends of its idempotent producer."""

    def __init__(
        self, recorder: Recorder, bootstrap_servers: str, seed: int, name: str, transactional_id: str | None
    ) -> None:
        self._recorder, self._name, self._draw = recorder, name, random.Random(seed)
        self._settings: dict[str, Any] = {
            **_LIBRDKAFKA,
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": int(API_TIMEOUT_S * 1000),
        }
        self._transactional_id = transactional_id
        if transactional_id is not None:
            self._settings["transactional.id"] = transactional_id
            self._settings["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
            self._group, self._partition = recorder.group(transactional_id)
            consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": self._group, "log_level": 0})
            self._metadata = consumer.consumer_group_metadata()
            consumer.close()
        self._producer: Producer | None = None
        self._started = 0
        self._error = ""

    def step(self) -> None:
        if self._producer is None:
            producer = Producer(self._settings)
            self._started += 1
            if self._transactional_id is not None:
                try:
                    producer.init_transactions(API_TIMEOUT_S)
                except KafkaException:
                    return
            self._producer = producer
        offsets: dict[int, int] = {}
        failed: set[int] = set()
        self._error = ""
        is_transaction = self._transactional_id is not None
        sent = self._recorder.sent(self._draw, 4 if is_transaction else 1)
        if is_transaction:
            outcome = self._transaction(self._producer, sent, offsets, failed)
        else:
            self._produce(self._producer, sent, offsets, failed)
            self._producer.flush(API_TIMEOUT_S)
            outcome = Outcome.OK if len(offsets) == len(sent) else Outcome.UNKNOWN
        if outcome is Outcome.UNKNOWN or self._error:
            # The next operation is of a process of its own, whose writes are not ordered after these. Without
            # InitProducerId after an error, an EndTxn that arrives late ends the next transaction: it has the same
            # epoch (KIP-890, transaction protocol 1).
            self._producer = None
        known = tuple(each._replace(offset=offsets.get(each.value)) for each in sent)
        name = f"{self._name}.{self._started}"
        found = Operation(name, outcome, sent=known, is_transaction=is_transaction, error=self._error)
        if is_transaction:
            found = replace(found, group=self._group, committed=sent[-1].value)
        self._recorder.add(found)

    def _transaction(
        self, producer: Producer, sent: list[Sent], offsets: dict[int, int], failed: set[int]
    ) -> Outcome:
        is_aborted = self._draw.random() < _ABORTED
        is_committing = False
        try:
            producer.begin_transaction()
            self._produce(producer, sent, offsets, failed)
            producer.flush(API_TIMEOUT_S)
            if not is_aborted and not failed and len(offsets) == len(sent):
                offset = Assigned(self._partition.topic, self._partition.partition, sent[-1].value)
                send = producer.send_offsets_to_transaction
                _within_timeout(partial(send, [offset], self._metadata, API_TIMEOUT_S))
                is_committing = True
                producer.commit_transaction(API_TIMEOUT_S)
                return Outcome.OK
            producer.abort_transaction(API_TIMEOUT_S)
            return Outcome.FAILED
        except KafkaException as error:
            self._error = error.args[0].name()
        except TimeoutError as error:
            self._error = str(error)
            return Outcome.FAILED
        # nothing is committed before EndTxn; a producer that does not know its outcome must not abort
        if is_committing:
            return Outcome.UNKNOWN
        with suppress(KafkaException):
            producer.abort_transaction(API_TIMEOUT_S)
        return Outcome.FAILED

    def _produce(
        self, producer: Producer, sent: list[Sent], offsets: dict[int, int], failed: set[int]
    ) -> None:
        def delivered(value: int) -> Callable[[Any, Any], None]:
            def on_delivery(error: Any, message: Any) -> None:
                if error is None:
                    offsets[value] = message.offset()
                else:
                    failed.add(value)
                    self._error = error.name()

            return on_delivery

        for log, value, _ in sent:
            producer.produce(
                self._recorder.topic,
                b"%d" % value,
                partition=self._recorder.partition(log),
                on_delivery=delivered(value),
            )

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(1)


class OwnWriter:
    """Transactions of this package's client, as the sink sends them."""

    def __init__(self, recorder: Recorder, cluster: ClusterClient, seed: int, name: str, transactional_id: str) -> None:
        self._recorder, self._cluster, self._name = recorder, cluster, name
        self._draw, self._transactional_id = random.Random(seed), transactional_id

    def step(self) -> None:
        sent = self._recorder.sent(self._draw, 4)
        known, outcome, error = tuple(sent), Outcome.FAILED, ""
        group, partition = self._recorder.group(self._transactional_id)
        fetched: int | None = None
        try:
            transactions = Transactions(self._cluster, self._transactional_id)
            transactions.init(TRANSACTION_TIMEOUT_MS)
            fetched = fetch_offset(self._cluster, group, partition)
            by_log: dict[str, list[int]] = {}
            for log, value, _ in sent:
                by_log.setdefault(log, []).append(value)
            partitions = {log: TopicPartition(self._recorder.topic, self._recorder.partition(log)) for log in by_log}
            transactions.add_partitions(partitions.values())
            batches = [
                EncodedBatch(partitions[log], encode_batch([Record(None, b"%d" % v, 0) for v in values]), len(values))
                for log, values in by_log.items()
            ]
            first = transactions.send(batches)
            known = tuple(
                Sent(log, value, first[partitions[log]] + at)
                for log, values in by_log.items()
                for at, value in enumerate(values)
            )
            transactions.commit_offsets(group, {partition: OffsetAndMetadata(sent[-1].value)})
            is_aborted = self._draw.random() < _ABORTED
            outcome = Outcome.FAILED if is_aborted else Outcome.UNKNOWN
            transactions.end(is_committed=not is_aborted)
            outcome = Outcome.FAILED if is_aborted else Outcome.OK
        except GroupSourceError as found:
            # before EndTxn nothing can be committed: the next transaction, or its timeout, aborts it
            error = type(found).__name__
        self._recorder.add(
            Operation(
                self._name, outcome, sent=known, is_transaction=True, error=error, group=group,
                committed=sent[-1].value, fetched=fetched,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Has no connection of its own."""


class KafkaPythonWriter:
    """Transactions of kafka-python."""

    def __init__(
        self, recorder: Recorder, bootstrap_servers: str, seed: int, name: str, transactional_id: str
    ) -> None:
        self._recorder, self._name, self._draw = recorder, name, random.Random(seed)
        self._settings = {
            "bootstrap_servers": bootstrap_servers,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "delivery_timeout_ms": int(API_TIMEOUT_S * 1000),
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "max_block_ms": int(API_TIMEOUT_S * 1000),
            "reconnect_backoff_max_ms": 200,
        }
        self._group, at = recorder.group(transactional_id)
        self._partition = KafkaPythonPartition(at.topic, at.partition)
        self._producer: KafkaProducer | None = None
        self._started = 0

    def step(self) -> None:
        try:
            if self._producer is None:
                self._started += 1
                self._producer = KafkaProducer(**self._settings)
                self._producer.init_transactions()
        except KafkaPythonError:
            self._discard()
            return
        sent = self._recorder.sent(self._draw, 4)
        known, outcome, error = tuple(sent), Outcome.FAILED, ""
        try:
            self._producer.begin_transaction()
            futures = [
                self._producer.send(self._recorder.topic, b"%d" % value, partition=self._recorder.partition(log))
                for log, value, _ in sent
            ]
            offsets = [future.get(API_TIMEOUT_S).offset for future in futures]
            known = tuple(each._replace(offset=at) for each, at in zip(sent, offsets))
            offset = {self._partition: KafkaPythonOffset(sent[-1].value, "", -1)}
            _within_timeout(partial(self._producer.send_offsets_to_transaction, offset, self._group))
            is_aborted = self._draw.random() < _ABORTED
            outcome = Outcome.FAILED if is_aborted else Outcome.UNKNOWN
            if is_aborted:
                _within_timeout(self._producer.abort_transaction)
            else:
                _within_timeout(self._producer.commit_transaction)
                outcome = Outcome.OK
        except (KafkaPythonError, TimeoutError) as found:
            # the next transaction, or its timeout, aborts what was not committed
            error = type(found).__name__
            self._discard()
        self._recorder.add(
            Operation(
                f"{self._name}.{self._started}", outcome, sent=known, is_transaction=True, error=error,
                group=self._group, committed=sent[-1].value,
            )
        )  # fmt: skip

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            # private, because close(0) raises before it ends the thread if there are records that were not sent
            producer._sender.force_close()
            with suppress(KafkaPythonError):
                producer.close(timeout=1)

    def close(self) -> None:
        self._discard()


def fetch_offset(cluster: ClusterClient, group: str, partition: TopicPartition) -> int:
    """Returns the committed offset of a group, -1 if there is none."""
    found = cluster.fetch_committed(group, [partition])[partition]
    return -1 if found is None else found.offset


class LibrdkafkaReader:
    """A consumer of librdkafka, with all partitions or as a member of `group`."""

    isolation_level = "read_committed"

    def __init__(self, recorder: Recorder, bootstrap_servers: str, name: str, group: str | None = None) -> None:
        self._recorder, self._name = recorder, name
        self._is_reassigned = True
        self.keys: dict[int, int] = {}
        """Key by value, of records that have one."""
        self._consumer = Consumer(
            {
                **_LIBRDKAFKA,
                "bootstrap.servers": bootstrap_servers,
                "group.id": group or "unused",
                "session.timeout.ms": 6_000,
                "isolation.level": self.isolation_level,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        self._ended: set[int] = set()
        if group is None:
            self._consumer.assign([Assigned(recorder.topic, number, 0) for number in range(recorder.partitions)])
        else:
            self._consumer.subscribe([recorder.topic], on_assign=self._changed, on_revoke=self._changed)
        self._is_member = group is not None

    def _changed(self, consumer: Any, partitions: Any) -> None:
        self._is_reassigned = True

    def step(self) -> None:
        polled: list[Polled] = []
        for message in self._consumer.consume(50, 0.1):
            error = message.error()
            if error is None:
                self._ended.discard(message.partition())
                value = int(message.value() or b"")
                if key := message.key():
                    self.keys[value] = int(key)
                polled.append(Polled(self._recorder.log(message.partition() or 0), message.offset() or 0, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(message.partition())
        if polled:
            is_reassigned, self._is_reassigned = self._is_reassigned, False
            self._recorder.add(Operation(self._name, polled=tuple(polled), is_reassigned=is_reassigned))
            if self._is_member:
                try:
                    self._consumer.commit(asynchronous=False)
                except KafkaException:
                    # the next member reads the records again
                    return

    def read_to_end(self, is_late: Callable[[], bool]) -> bool:
        """Reads every log to its last stable offset; returns False if that is too late."""
        self._ended.clear()
        while len(self._ended) < self._recorder.partitions:
            if is_late():
                return False
            self.step()
        return True

    def close(self) -> None:
        self._consumer.close()


def clients(recorder: Recorder, bootstrap_servers: str, cluster: ClusterClient, seed: int) -> Iterator[Client]:
    """Yields the clients of one history."""
    topic = recorder.topic
    yield LibrdkafkaWriter(recorder, bootstrap_servers, seed, "librdkafka", f"{topic}-a")
    yield LibrdkafkaWriter(recorder, bootstrap_servers, seed + 1, "idempotent", None)
    yield OwnWriter(recorder, cluster, seed + 2, "own", f"{topic}-b")
    yield KafkaPythonWriter(recorder, bootstrap_servers, seed + 3, "kafka-python", f"{topic}-c")
    yield LibrdkafkaReader(recorder, bootstrap_servers, "reader")
    yield LibrdkafkaReader(recorder, bootstrap_servers, "member 0", f"{topic}-members")
    yield LibrdkafkaReader(recorder, bootstrap_servers, "member 1", f"{topic}-members")
