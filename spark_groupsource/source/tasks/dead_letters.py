"""Malformed records written to a dead letter topic (option deadLetterTopic).

Source: Kafka Connect `DeadLetterQueueReporter`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.errors import BrokerError, ErrorCode, MalformedRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record
from spark_groupsource.records.partitioner import partition_of_key

if TYPE_CHECKING:
    from spark_groupsource.values.typed_columns import MalformedError, MalformedRecords

_PREFIX = "__connect.errors."
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}
# of keys, values and headers that wait for the end of the task
_MAX_PENDING_BYTES = 1024 * 1024
_UNAUTHORIZED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class DeadLetterQueue:
    """Writes the malformed records of one task, with acks=all.

    Args:
        connector: name of the query in the headers: its group, or its client id.
    """

    def __init__(self, cluster: ClusterClient, topic: str, connector: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._connector = connector
        self._producer = BatchProducer(cluster)
        self._partitions = 0
        self._pending: dict[TopicPartition, list[Record]] = defaultdict(list)
        self._pending_bytes = 0

    @property
    def has_pending(self) -> bool:
        """True if records wait for `flush`."""
        return bool(self._pending)

    def add(self, records: MalformedRecords) -> None:
        """Adds records; writes those that wait if they are large. Raises: as `flush`."""
        source = records.topic_partition
        microseconds = records.batch.column("timestamp").cast("int64").to_pylist()
        columns = [records.batch.column(name).to_pylist() for name in ("key", "value", "headers", "offset")]
        for error, time_us, key, value, received, offset in zip(records.errors, microseconds, *columns):
            headers = tuple((each["key"], each["value"]) for each in received or ())
            headers += self._error_headers(source, offset, error)
            target = TopicPartition(self._topic, self._partition(key, source))
            self._pending[target].append(Record(key, value, -1 if time_us is None else time_us // 1000, headers))
            self._pending_bytes += len(key or b"") + len(value or b"")
            self._pending_bytes += sum(len(name) + len(text or b"") for name, text in headers)
            if self._pending_bytes > _MAX_PENDING_BYTES:
                self.flush()

    def _error_headers(
        self, source: TopicPartition, offset: int, error: MalformedError
    ) -> tuple[tuple[str, bytes], ...]:
        message = error.reason if error.schema_id is None else f"{error.reason} (schema id {error.schema_id})"
        described: dict[str, Any] = {
            "topic": source.topic,
            "partition": source.partition,
            "offset": offset,
            "connector.name": self._connector,
            "stage": _STAGES[error.column],
            "exception.class.name": f"{MalformedRecordError.__module__}.{MalformedRecordError.__name__}",
            "exception.message": message,
        }
        return tuple((f"{_PREFIX}{name}", str(text).encode()) for name, text in described.items())

    def _partition(self, key: bytes | None, source: TopicPartition) -> int:
        if not self._partitions:
            found = self._cluster.describe_topics([self._topic], refresh=True)
            self._partitions = len(found[self._topic].partitions)
        return source.partition % self._partitions if key is None else partition_of_key(key, self._partitions)

    def flush(self) -> None:
        """Writes the records that wait.

        Raises: BrokerError, NetworkError after default.api.timeout.ms.
        """
        pending, self._pending, self._pending_bytes = self._pending, defaultdict(list), 0
        try:
            if pending:
                self._producer.send(batch for tp, records in pending.items() for batch in encoded(tp, records))
        except BrokerError as error:
            remedy = (
                f"Check option deadLetterTopic={self._topic}, and that max.message.bytes of the topic is sufficient."
            )
            if error.code in _UNAUTHORIZED:
                remedy = f"Grant the user WRITE on topic {self._topic}, which option deadLetterTopic names."
            raise BrokerError(error.code, error.operation, remedy) from error
