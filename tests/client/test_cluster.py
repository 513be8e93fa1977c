"""Cluster client: metadata, offsets, commits, unreachable brokers, retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from support.clients import FakeBroker, advertise, client_settings, fake_broker, open_cluster
from support.topics import create_topic, produce

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, MAX_TIMESTAMP, ClusterClient
from spark_groupsource.client.cluster.error_rules import UNKNOWN_TOPIC_TIMEOUT_MS, is_missing
from spark_groupsource.client.cluster.group_offsets import CommittingMember
from spark_groupsource.client.network.connection_pool import ClientClosedError
from spark_groupsource.client.network.retry import Retry, backoff_ms
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    RequestTimeoutError,
)
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.messages import (
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataResponse,
)


def test_metadata_describe_existing_topics(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 3)
    with open_cluster(cluster.bootstrap_servers) as client:
        view = client.metadata([topic, "no-such-topic"])
        assert view.partitions_of(topic) == tuple(TopicPartition(topic, n) for n in range(3))
        assert view.leader(TopicPartition(topic, 2)) in view.nodes.values()
        assert view.errors == {"no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert topic in client.metadata().topics
        assert "no-such-topic" not in client.metadata().topics, "a metadata request must not create topics"


def test_metadata_are_cached_until_max_age(cluster: Any, topic: str) -> None:
    with open_cluster(cluster.bootstrap_servers) as client:
        assert topic in client.metadata([topic]).errors
        create_topic(cluster.bootstrap_servers, topic, 1)
        assert topic in client.metadata([topic]).topics, "missing topics are requested again"
        assert client.metadata([topic]).topics[topic] is client.metadata([topic]).topics[topic]
        before = client.metadata([topic]).topics[topic]
        assert client.metadata([topic], refresh=True).topics[topic] is not before


def test_cached_metadata_of_one_topic_do_not_take_longer_with_many_topics() -> None:
    row = MetadataResponse.MetadataResponseTopic

    def versions(request: Any, version: int) -> Any:
        return advertise(ApiVersions=(0, 3), Metadata=(4, 12))

    def metadata(request: Any, version: int) -> Any:
        node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1, rack=None)
        topics = [
            row(error_code=0, name=t.name, topic_id=None, partitions=[], is_internal=False) for t in request.topics
        ]
        return MetadataResponse(throttle_time_ms=0, brokers=[node], cluster_id="c", controller_id=1, topics=topics)

    def shortest_s(client: ClusterClient) -> float:
        taken = []
        for _ in range(50):
            began = time.perf_counter()
            client.metadata(["t0"])
            taken.append(time.perf_counter() - began)
        return min(taken)

    with fake_broker(ApiVersions=versions, Metadata=metadata) as broker, open_cluster(str(broker.address)) as client:
        client.metadata(["t0"])
        alone = shortest_s(client)
        client.metadata([f"t{number}" for number in range(10_000)])
        # a lookup among all topics takes a hundred times as long
        assert shortest_s(client) < 20 * alone


@pytest.mark.conformance("KC-089")
def test_error_of_an_unknown_topic_contains_the_remedy(cluster: Any, topic: str) -> None:
    with open_cluster(cluster.bootstrap_servers) as client:
        with pytest.raises(BrokerError, match=f"topic {topic} failed: .* does not exist. Create it"):
            client.describe_topics([topic])
        with pytest.raises(BrokerError, match="A topic name has 1 to 249"):
            client.describe_topics(["a/b"])


@pytest.mark.conformance("OF-024", "OF-045", "OF-047", "OF-048", "OF-049", "OF-051")
def test_offsets_by_timestamp(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    before_ms = int(time.time() * 1000)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")] * 5)
    with open_cluster(cluster.bootstrap_servers) as client:
        ends = client.list_offsets({tp: LATEST, other: LATEST})
        assert (ends[tp].offset, ends[other].offset) == (5, 0)
        assert client.list_offsets({tp: EARLIEST})[tp].offset == 0
        found = client.list_offsets({tp: before_ms, other: before_ms})
        assert found[tp].offset == 0 and found[tp].timestamp_ms >= before_ms
        assert found[other].offset == -1
        assert client.list_offsets({tp: before_ms + 3_600_000})[tp].offset == -1
        newest = client.list_offsets({tp: MAX_TIMESTAMP})[tp]
        assert newest.timestamp_ms >= before_ms


@pytest.mark.usefixtures("short_retries")
def test_offset_of_an_unknown_partition_raises(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    with open_cluster(cluster.bootstrap_servers, retry_backoff_max_ms="200") as client:
        with pytest.raises(BrokerError, match=f"{topic}-7 failed: UNKNOWN_TOPIC_OR_PARTITION"):
            client.list_offsets({TopicPartition(topic, 0): LATEST, TopicPartition(topic, 7): LATEST})


@pytest.mark.conformance("KC-043")
def test_commit_and_fetch_as_a_simple_consumer(cluster: Any, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with open_cluster(cluster.bootstrap_servers) as client:
        assert client.fetch_committed(group) == {}
        client.commit(group, {tp: OffsetAndMetadata(7, "by a test", 0)})
        assert client.fetch_committed(group) == {tp: OffsetAndMetadata(7, "by a test", 0)}
        assert client.fetch_committed(group, [other, tp]) == {tp: OffsetAndMetadata(7, "by a test", 0), other: None}
        assert client.fetch_committed(group, []) == {}
        with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
            client.commit(group, {tp: OffsetAndMetadata(8)}, member=CommittingMember(3, "unknown"))
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            client.commit(group, {tp: OffsetAndMetadata(8, "x" * 5_000)})
        with pytest.raises(ValueError, match="-1"):
            client.commit(group, {tp: OffsetAndMetadata(-1)})
        assert client.fetch_committed(group, [tp])[tp] == OffsetAndMetadata(7, "by a test", 0)


@pytest.mark.usefixtures("short_retries")
def test_commit_to_a_deleted_topic_raises(cluster: Any, topic: str, group: str) -> None:
    with open_cluster(cluster.bootstrap_servers, retry_backoff_max_ms="200") as client:
        with pytest.raises(BrokerError, match=f"{topic}-0.*UNKNOWN_TOPIC_OR_PARTITION"):
            client.commit(group, {TopicPartition(topic, 0): OffsetAndMetadata(1)})


# -- brokers that cannot be reached ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_unreachable_bootstrap_fails_soon_and_names_every_address() -> None:
    started = time.monotonic()
    with open_cluster("127.0.0.1:1,no-such-host.invalid:9092") as client:
        with pytest.raises(NetworkError) as raised:
            client.metadata()
    message = str(raised.value)
    assert "kafka.bootstrap.servers" in message
    assert "127.0.0.1:1 failed: Conn" in message and "no-such-host.invalid:9092 failed: the host name" in message
    assert time.monotonic() - started < 15


@pytest.mark.usefixtures("short_retries")
def test_error_names_a_bootstrap_address_that_is_not_kafka() -> None:
    with fake_broker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker, open_cluster(str(broker.address)) as client:
        with pytest.raises(NetworkError, match=f"{broker.address}.*does not use Kafka"):
            client.metadata()


def test_one_reachable_bootstrap_address_is_enough(cluster: Any) -> None:
    with open_cluster(f"127.0.0.1:1,{cluster.bootstrap_servers}") as client:
        assert client.metadata().nodes


def test_error_of_an_unreachable_advertised_address_names_the_setting() -> None:
    def metadata(request: Any, version: int) -> Any:
        broker = MetadataResponse.MetadataResponseBroker(node_id=7, host="127.0.0.1", port=1, rack=None)
        return MetadataResponse(throttle_time_ms=0, brokers=[broker], cluster_id="c", controller_id=7, topics=[])

    def versions(request: Any, version: int) -> Any:
        return advertise(ApiVersions=(0, 3), Metadata=(0, 12), Heartbeat=(0, 4))

    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    with fake_broker(ApiVersions=versions, Metadata=metadata) as broker, open_cluster(str(broker.address)) as client:
        with pytest.raises(NetworkError, match="Broker 7 advertises 127.0.0.1:1.*advertised.listeners"):
            client.call_node(7, heartbeat)


def test_closed_cluster_raises(cluster: Any) -> None:
    client = open_cluster(cluster.bootstrap_servers)
    client.metadata()
    client.close()
    with pytest.raises(ClientClosedError, match="closed"):
        client.metadata(refresh=True)


# -- coordinators ----------------------------------------------------------------------------------------------------


@pytest.fixture
def coordinator() -> Iterator[FakeBroker]:
    """Coordinator of group g; tests script its Heartbeat responses."""
    with fake_broker() as broker:
        responses = broker.responses

        def find(request: Any, version: int) -> Any:
            row = FindCoordinatorResponse.Coordinator(
                key="g", node_id=1, host="127.0.0.1", port=broker.address.port, error_code=0, error_message=None
            )
            return FindCoordinatorResponse(throttle_time_ms=0, coordinators=[row])

        responses["ApiVersions"] = lambda r, v: advertise(ApiVersions=(0, 3), FindCoordinator=(0, 4), Heartbeat=(0, 4))
        responses["FindCoordinator"] = find
        yield broker


HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


def test_moved_coordinator_is_looked_up_again(coordinator: FakeBroker) -> None:
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]
    coordinator.responses["Heartbeat"] = lambda r, v: HeartbeatResponse(throttle_time_ms=0, error_code=codes.pop(0))
    with open_cluster(str(coordinator.address), retry_backoff_ms="1") as client:
        assert client.call_coordinator("g", HEARTBEAT).error_code == 0
    names = [name for name, _, _ in coordinator.requests]
    assert names.count("FindCoordinator") == 2, "a loading coordinator is retried, a moved one is looked up"
    assert names.count("Heartbeat") == 3


def test_request_is_not_sent_after_a_lookup_that_used_the_timeout(
    coordinator: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, settings = ManualClock(), client_settings(str(coordinator.address))
    with ClusterClient(settings.bootstrap, settings, clock) as client:
        find = client.find_coordinator

        def find_late(group_id: str, timeout_ms: int | None = None) -> Any:
            node = find(group_id, timeout_ms)
            clock.advance_ms(3_000)
            return node

        monkeypatch.setattr(client, "find_coordinator", find_late)
        with pytest.raises(NetworkError, match="group 'g' failed: the lookup took 3000 ms"):
            client.call_coordinator("g", HEARTBEAT, 3_000)
    assert "Heartbeat" not in [name for name, _, _ in coordinator.requests]


# -- trying again ----------------------------------------------------------------------------------------------------


def test_backoff_grows_to_its_maximum() -> None:
    rng = Random(1)
    delays = [backoff_ms(n, 100, 1_000, rng) for n in range(6)]
    for attempt, delay in enumerate(delays):
        assert min(80 * 2**attempt, 1_000) <= delay <= min(120 * 2**attempt, 1_000)
    assert backoff_ms(10_000, 100, 1_000, rng) == 1_000


def test_retry_ends_at_its_deadline() -> None:
    clock = ManualClock()
    retry = Retry(base_ms=100, max_ms=1_000, timeout_ms=2_000, clock=clock, rng=Random(1))
    error = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "x")
    with pytest.raises(BrokerError):
        for _ in range(100):
            retry.backoff_or_raise(error)
    assert 1_000 < clock.now_ms() < 2_000 and retry.attempt < 20


def test_the_time_of_an_error_begins_with_its_first_response() -> None:
    clock = ManualClock()
    retry = Retry(base_ms=1, max_ms=1, timeout_ms=60_000, clock=clock, rng=Random(1))
    unknown = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")
    other = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "x")
    # an outage before it
    clock.advance_ms(10_000)
    assert retry.repeated_ms(unknown) == 0 and not is_missing(unknown, retry)
    clock.advance_ms(UNKNOWN_TOPIC_TIMEOUT_MS)
    assert retry.repeated_ms(other) == 0 and not is_missing(unknown, retry)
    clock.advance_ms(1)
    assert is_missing(unknown, retry) and not is_missing(other, retry)
    assert not is_missing(NetworkError("Refused."), retry)


def test_deadline_does_not_hide_the_failure_before_it() -> None:
    clock = ManualClock()
    failure, timeout = BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "x"), RequestTimeoutError("No response.")

    def attempts(*errors: GroupSourceError) -> None:
        retry = Retry(base_ms=1, max_ms=1, timeout_ms=100, clock=clock, rng=Random(1))
        for error in errors[:-1]:
            retry.backoff_or_raise(error)
        clock.advance_ms(100)
        retry.backoff_or_raise(errors[-1])

    with pytest.raises(BrokerError) as raised:
        attempts(timeout, failure, timeout)
    assert raised.value is failure and failure.__cause__ is timeout
    for last in ([timeout], [timeout, timeout], [failure, timeout, timeout], [failure, NetworkError("Refused.")]):
        with pytest.raises(NetworkError) as other:
            attempts(*last)
        assert other.value is last[-1]


def test_idle_connections_are_closed(cluster: Any) -> None:
    settings = client_settings(cluster.bootstrap_servers)
    clock = ManualClock(1)
    with ClusterClient(settings.bootstrap, settings, clock) as client:
        first = client.pool.acquire(settings.bootstrap[0])
        first.open()
        client.pool.release(first)
        assert client.pool.acquire(settings.bootstrap[0]) is first
        client.pool.release(first)
        clock.advance_ms(settings.connections_max_idle_ms + 1)
        second = client.pool.acquire(settings.bootstrap[0])
        assert second is not first and first.is_closed
        second.close()
