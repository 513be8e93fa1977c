"""Malformed records written to a dead letter topic (option deadLetterTopic).

Source: Kafka Connect `DeadLetterQueueReporter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

import numpy as np
import pyarrow as pa

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import MAX_BATCH_BYTES, BatchProducer
from spark_groupsource.errors import BrokerError, ErrorCode, MalformedRecordError
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.columns.arrow_arrays import fixed_width, integers, is_valid
from spark_groupsource.records.columns.batch_encoder import BatchEncoder, TopicPartitions
from spark_groupsource.records.columns.binary_columns import milliseconds
from spark_groupsource.records.columns.record_lists import header_lists
from spark_groupsource.records.encoded_batch import EncodedBatch

if TYPE_CHECKING:
    from spark_groupsource.values.typed_columns import MalformedError, MalformedRecords

_PREFIX = "__connect.errors."
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}
# of records that wait for the end of the task
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
        self._encoder: BatchEncoder | None = None
        self._partition_count = 0

    @property
    def has_pending(self) -> bool:
        """True if records may wait for `flush`."""
        return self._encoder is not None

    def add(self, records: MalformedRecords) -> None:
        """Adds records; writes the largest batches of those that wait if they are large. Raises: as `flush`."""
        source, batch = records.topic_partition, records.batch
        if self._encoder is None:
            self._encoder = self._create_encoder()
        times, keys = batch.column("timestamp"), batch.column("key")
        headers = [
            (*((each["key"], each["value"]) for each in received or ()), *self._error_headers(source, offset, error))
            for error, received, offset in zip(
                records.errors, batch.column("headers").to_pylist(), batch.column("offset").to_pylist()
            )
        ]
        # records without a key are written to the partition with the number of theirs
        numbers = np.full(len(keys), source.partition % self._partition_count)
        columns = {
            "key": keys,
            "value": batch.column("value"),
            "headers": header_lists(headers),
            "timestamp": fixed_width(pa.timestamp("ms"), np.where(is_valid(times), milliseconds(times), -1)),
            "partition": integers(numbers, ~is_valid(keys)),
        }
        self._send(self._encoder.add(pa.RecordBatch.from_arrays(list(columns.values()), list(columns))))

    def _create_encoder(self) -> BatchEncoder:
        found = self._cluster.describe_topics([self._topic])
        self._partition_count = len(found[self._topic].partitions)
        return BatchEncoder(
            lambda *_: TopicPartitions(self._partition_count),
            topic=self._topic,
            batch_bytes=MAX_BATCH_BYTES,
            buffer_bytes=_MAX_PENDING_BYTES,
            timestamp_ms=self._cluster.clock.timestamp_ms,
        )

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

    def flush(self) -> None:
        """Writes the records that wait.

        Raises: BrokerError, NetworkError after the timeout of the producer.
        """
        if self._encoder is not None:
            self._send(self._encoder.finish())

    def _send(self, batches: Iterable[EncodedBatch]) -> None:
        try:
            self._producer.send(batches)
        except BrokerError as error:
            remedy = (
                f"Check option deadLetterTopic={self._topic}, and that max.message.bytes of the topic is sufficient."
            )
            if error.code in _UNAUTHORIZED:
                remedy = f"Grant the user WRITE on topic {self._topic}, which option deadLetterTopic names."
            raise BrokerError(error.code, error.operation, remedy) from error
