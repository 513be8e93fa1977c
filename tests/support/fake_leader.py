"""A fake broker that leads one partition, with scripted log and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from support.clients import ConnectionLostError, FakeBroker, advertise

from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import (
    DescribeConfigsResponse,
    FetchResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetForLeaderEpochResponse,
)

TP = TopicPartition("t", 0)
EMPTY = "empty"
Step = ErrorCode | str | Callable[[], None]


class FakeLeader(FakeBroker):
    """Serves topic ``t`` with one partition and one record for each offset from `log_start` to `log_end`.

    Attributes:
        steps: responses to the next Fetch requests: an error code, `EMPTY` for a response without records, or a
            function to call before the response; the requests after them get responses from the log.
        gap: offsets without records, as compaction leaves them.
        leader_epoch: epoch in Metadata; requests with another one are rejected as Kafka does.
        epoch_ends: leader epoch -> (epoch, end offset) for OffsetForLeaderEpoch.
        topic_error: error of the topic in Metadata.
        leader_id: the leader in Metadata; the broker itself is node 1, unless `followers` have it as another one.
        followers: node id -> further brokers in Metadata, which a test may name in `preferred_replica`.
        preferred_replica: sent by the leader instead of records (KIP-392).
        list_errors: errors of the next ListOffsets requests.
        lost: number of Fetch requests after which the connection is closed without a response.
    """

    def __init__(self, log_end: int = 10) -> None:
        super().__init__({}, b"")
        self.log_start, self.log_end, self.last_stable_offset = 0, log_end, -1
        self.gap: frozenset[int] = frozenset()
        self.steps: list[Step] = []
        self.leader_id, self.leader_epoch = 1, 0
        self.epoch_ends: dict[int, tuple[int, int]] = {}
        self.topic_id: UUID | None = uuid4()
        self.topic_error = ErrorCode.NONE
        self.cleanup_policy = "delete"
        self.config_error = ErrorCode.NONE
        self.fetch_versions = (4, 13)
        self.epoch_versions = (2, 4)
        self.followers: dict[int, FakeLeader] = {}
        self.preferred_replica = -1
        self.list_errors: list[ErrorCode] = []
        self.epoch_errors: list[ErrorCode] = []
        self.lost = 0
        self.responses.update(
            ApiVersions=self._versions,
            Metadata=self._metadata,
            Fetch=self._fetch,
            ListOffsets=self._list_offsets,
            DescribeConfigs=self._describe_configs,
            OffsetForLeaderEpoch=self._epochs,
        )

    def sent(self, name: str) -> list[tuple[int, Any]]:
        """(version, request) of the requests of one API."""
        return [(version, request) for api, version, request in self.requests if api == name]

    @property
    def fetches(self) -> list[Any]:
        """The partition of each Fetch request."""
        return [request.topics[0].partitions[0] for _, request in self.sent("Fetch")]

    def _versions(self, request: Any, version: int) -> Any:
        return advertise(
            ApiVersions=(0, 3),
            SaslHandshake=(0, 1),
            SaslAuthenticate=(0, 2),
            Metadata=(4, 12),
            Fetch=self.fetch_versions,
            ListOffsets=(1, 7),
            DescribeConfigs=(1, 4),
            OffsetForLeaderEpoch=self.epoch_versions,
        )

    def _metadata(self, request: Any, version: int) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        partition = topic.MetadataResponsePartition(
            partition_index=0,
            error_code=0,
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        names = ["t"] if request.topics is None else [each.name for each in request.topics]
        topics = [
            topic(
                error_code=self.topic_error if name == "t" else 3,
                name=name,
                topic_id=self.topic_id,
                partitions=[partition] if name == "t" and not self.topic_error else [],
                is_internal=False,
            )
            for name in names
        ]
        nodes = [
            MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=each.address.port, rack=None)
            for n, each in {1: self, **self.followers}.items()
        ]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=nodes,
            cluster_id="c",
            controller_id=1,
            topics=topics,
        )

    def _check_epoch(self, epoch: int) -> ErrorCode:
        if epoch < 0 or epoch == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def _fetch(self, request: Any, version: int) -> Any:
        row = FetchResponse.FetchableTopicResponse
        requested = request.topics[0].partitions[0]
        if self.lost:
            self.lost -= 1
            raise ConnectionLostError
        step = self.steps.pop(0) if self.steps else None
        if callable(step):
            step()
            step = None
        code = step if isinstance(step, ErrorCode) else self._check_epoch(requested.current_leader_epoch)
        at = requested.fetch_offset
        if not code and version > 12 and request.topics[0].topic_id != self.topic_id:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if not code and not self.log_start <= at <= self.log_end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if self.preferred_replica >= 0:
            step = EMPTY
        offsets = [n for n in range(at, self.log_end) if n not in self.gap] if not code and step != EMPTY else []
        records = encode_batch([Record(None, b"%d" % offsets[0], 1)], base_offset=offsets[0]) if offsets else b""
        known = not code
        data = row.PartitionData(
            partition_index=requested.partition,
            error_code=code,
            high_watermark=self.log_end if known else -1,
            last_stable_offset=(self.log_end if self.last_stable_offset < 0 else self.last_stable_offset)
            if known
            else -1,
            log_start_offset=self.log_start if known else -1,
            aborted_transactions=[],
            preferred_read_replica=self.preferred_replica,
            records=bytes(records),
        )
        topic = row(topic="t", topic_id=request.topics[0].topic_id, partitions=[data])
        return FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=[topic])

    def _list_offsets(self, request: Any, version: int) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        requested = request.topics[0].partitions[0]
        row = topic.ListOffsetsPartitionResponse(
            partition_index=0,
            error_code=self.list_errors.pop(0)
            if self.list_errors
            else self._check_epoch(requested.current_leader_epoch),
            timestamp=-1,
            offset=self.log_start if requested.timestamp == -2 else self.log_end,
            leader_epoch=self.leader_epoch,
        )
        return ListOffsetsResponse(throttle_time_ms=0, topics=[topic(name="t", partitions=[row])])

    def _describe_configs(self, request: Any, version: int) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        config = result.DescribeConfigsResourceResult(
            name="cleanup.policy",
            value=self.cleanup_policy,
            read_only=False,
            config_source=1,
            is_sensitive=False,
            synonyms=[],
            config_type=7,
            documentation=None,
        )
        row = result(
            error_code=self.config_error, error_message=None, resource_type=2, resource_name="t", configs=[config]
        )
        return DescribeConfigsResponse(throttle_time_ms=0, results=[row])

    def _epochs(self, request: Any, version: int) -> Any:
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        requested = request.topics[0].partitions[0]
        epoch, end = self.epoch_ends.get(requested.leader_epoch, (requested.leader_epoch, self.log_end))
        code = self.epoch_errors.pop(0) if self.epoch_errors else self._check_epoch(requested.current_leader_epoch)
        row = topic.EpochEndOffset(error_code=code, partition=0, leader_epoch=epoch, end_offset=end)
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[topic(topic="t", partitions=[row])])


@contextmanager
def fake_leader(log_end: int = 10) -> Iterator[FakeLeader]:
    broker = FakeLeader(log_end)
    try:
        yield broker
    finally:
        broker.close()
