"""A transactional producer that sends single requests, one method per request."""

from __future__ import annotations

from typing import Any

from support.commit_requests import commit_topics
from support.partition_logs import batch
from support.raw_broker import RawConnection, fetch_request, fetched_values, produce_request

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)


class RawTransactions:
    """One transactional id. Methods return the error; `producer_id` and `epoch` are the last assigned ones."""

    def __init__(self, connection: RawConnection, transactional_id: str = "id", timeout_ms: int = 60_000) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def _mine(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch,
        }  # fmt: skip

    def find(self) -> ErrorCode:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        (found,) = self.connection.call(request, 4).coordinators
        return ErrorCode(found.error_code)

    def init(self, version: int = 4) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms, producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        response = self.connection.call(request, version)
        if response.error_code == 0:
            self.producer_id, self.epoch, self.sequences = response.producer_id, response.producer_epoch, {}
        return ErrorCode(response.error_code)

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[ErrorCode]:
        row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=[row],
        )  # fmt: skip
        response = self.connection.call(request, version)
        (results,) = response.results_by_topic_v3_and_below
        return [ErrorCode(result.partition_error_code) for result in results.results_by_partition]

    def send(self, topic: str, value: bytes, partition: int = 0, version: int = 9) -> ErrorCode:
        sequence = self.sequences.get((topic, partition), 0)
        # with the timestamp of the markers, else the segment would roll by age
        data = batch(
            value, timestamp_ms=SystemClock().timestamp_ms(), producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=sequence, transactional=True,
        )  # fmt: skip
        request = produce_request(topic, data, partition, transactional_id=self.transactional_id)
        response = self.connection.call(request, version)
        code = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self.sequences[topic, partition] = sequence + 1
        return code

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(**self._mine, group_id=group)
        return ErrorCode(self.connection.call(request, version).error_code)

    def commit_offset(self, group: str, topic: str, offset: int, *partitions: int, version: int = 3) -> list[ErrorCode]:
        topics = commit_topics(TxnOffsetCommitRequest, {topic: dict.fromkeys(partitions or (0,), offset)})
        request = TxnOffsetCommitRequest(**self._mine, group_id=group, topics=topics)
        response = self.connection.call(request, version)
        found = {p.partition_index: ErrorCode(p.error_code) for t in response.topics for p in t.partitions}
        return [found[number] for number in partitions or (0,)]

    def end(self, committed: bool, version: int = 3) -> ErrorCode:
        request = EndTxnRequest(**self._mine, committed=committed)
        return ErrorCode(self.connection.call(request, version).error_code)


def read_committed(connection: RawConnection, topic: str, partition: int = 0, version: int = 11):
    """A read_committed fetch: (values, aborted transactions, last stable offset)."""
    request = fetch_request(topic, 0, partition=partition)
    request.isolation_level = 1
    response = connection.call(request, version).responses[0].partitions[0]
    assert response.error_code == 0
    aborted = [(each.producer_id, each.first_offset) for each in response.aborted_transactions]
    return fetched_values(response), aborted, response.last_stable_offset


def latest(connection: RawConnection, topic: str, isolation_level: int, timestamp: int = -1, partition: int = 0) -> int:
    row = ListOffsetsRequest.ListOffsetsTopic
    wanted = row.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[row(name=topic, partitions=[wanted])]
    )
    return connection.call(request, 7).topics[0].partitions[0].offset


def committed_offset(connection: RawConnection, group: str, topic: str, *, stable: bool = False):
    """The offset of partition 0, or the error."""
    entry = OffsetFetchRequest.OffsetFetchRequestGroup
    wanted = entry.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = OffsetFetchRequest(groups=[entry(group_id=group, topics=[wanted])], require_stable=stable)
    found = connection.call(request, 8).groups[0].topics[0].partitions[0]
    return ErrorCode(found.error_code) if found.error_code else found.committed_offset
