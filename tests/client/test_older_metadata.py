"""Metadata of one broker that is older than that of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.clients import ConnectionLostError, FakeBroker, advertise, fake_broker, open_cluster
from support.session_fakes import NO_LIMITS, FakeGroup

from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.cluster.metadata import ClusterMetadata, PartitionInfo, TopicInfo, topic_of_most
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.common.clock import Clock, ManualClock, SystemClock
from spark_groupsource.errors import (
    BrokerError,
    ConfigurationError,
    DataLossError,
    ErrorCode,
    NetworkError,
    UnsupportedVersionError,
)
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.offset_lookup import OffsetLookup
from spark_groupsource.source.session import StreamSession
from spark_groupsource.source.spark.batch_reader import plan_ranges
from spark_groupsource.wire.messages import ListOffsetsResponse, MetadataResponse

SETTINGS = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "2", "default_api_timeout_ms": "5000"}
OLD, NEW = uuid4(), uuid4()


class View:
    """What one broker knows of topic ``t``; it does not respond where `is_silent`.

    `leader`, `epoch`: of every partition. `log_end`: of the broker's own logs. `error`: of the topic, instead of it.
    """

    def __init__(
        self, topic_id: UUID | None, partitions: int, *, leader: int = 1, epoch: int = 0, log_end: int = 0
    ) -> None:
        self.topic_id, self.partitions, self.is_silent = topic_id, partitions, False
        self.leader, self.epoch, self.log_end = leader, epoch, log_end
        self.error = ErrorCode.NONE


class Nodes:
    """Brokers 1 to n, each with its own metadata.

    `answered`: the ids of the brokers that have responded to Metadata, in order. `first`: which broker responds to the
    requests of the client by its choice; the others are asked only where the client asks each of them.
    """

    def __init__(self, brokers: list[FakeBroker], views: list[View]) -> None:
        self.brokers, self.views = brokers, views
        self.answered: list[int] = []
        for number, broker in enumerate(brokers):
            broker.responses.update(
                ApiVersions=lambda request, version: advertise(
                    ApiVersions=(0, 3), Metadata=(4, 12), ListOffsets=(1, 7), FindCoordinator=(0, 4)
                ),
                Metadata=lambda request, version, number=number: self.metadata(number, request),
                ListOffsets=lambda request, version, number=number: self.list_offsets(number, request),
            )

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(broker.address) for broker in self.brokers)

    def metadata(self, number: int, request: Any) -> Any:
        view, row = self.views[number], MetadataResponse.MetadataResponseTopic
        if view.is_silent:
            raise ConnectionLostError
        self.answered.append(number + 1)
        partitions = [
            row.MetadataResponsePartition(
                partition_index=n, error_code=0, leader_id=view.leader, leader_epoch=view.epoch, replica_nodes=[1],
                isr_nodes=[1], offline_replicas=[],
            )
            for n in range(view.partitions)
        ]  # fmt: skip
        names = ["t"] * bool(view.partitions) if request.topics is None else [each.name for each in request.topics]
        exists = {name: name == "t" and view.partitions > 0 and not view.error for name in names}
        topics = [
            row(
                error_code=0 if exists[name] else view.error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name,
                topic_id=view.topic_id if exists[name] else None,
                partitions=partitions if exists[name] else [], is_internal=False,
            )
            for name in names
        ]  # fmt: skip
        nodes = [
            MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=each.address.port, rack=None)
            for n, each in enumerate(self.brokers, 1)
        ]
        return MetadataResponse(throttle_time_ms=0, brokers=nodes, cluster_id="c", controller_id=1, topics=topics)

    def list_offsets(self, number: int, request: Any) -> Any:
        view, topic = self.views[number], ListOffsetsResponse.ListOffsetsTopicResponse
        if view.is_silent:
            raise ConnectionLostError
        row = topic.ListOffsetsPartitionResponse
        rows = [
            row(
                partition_index=p.partition_index, timestamp=-1, leader_epoch=view.epoch,
                error_code=0 if p.current_leader_epoch == view.epoch else 75,
                offset=view.log_end if p.timestamp == LATEST else 0,
            )
            for p in request.topics[0].partitions
        ]  # fmt: skip
        return ListOffsetsResponse(throttle_time_ms=0, topics=[topic(name="t", partitions=rows)])


@contextmanager
def nodes(*views: View) -> Iterator[Nodes]:
    with ExitStack() as opened:
        yield Nodes([opened.enter_context(fake_broker()) for _ in views], list(views))


def refreshed(client: ClusterClient, found: Nodes, times: int = 12) -> list[TopicInfo | None]:
    """Returns the topic after each of several metadata requests, which different brokers receive."""
    return [client.metadata(["t"], refresh=True).topics.get("t") for _ in range(times)]


def everywhere(client: ClusterClient) -> list[TopicInfo | None]:
    return [client.metadata(None, refresh=True).topics.get("t") for _ in range(12)]


@pytest.mark.parametrize("lookup", [refreshed, lambda client, _: everywhere(client)], ids=["named", "all topics"])
@pytest.mark.parametrize(
    "older", [View(OLD, 1), View(OLD, 0), View(NEW, 4)], ids=["fewer partitions", "no topic", "another id"]
)
def test_one_broker_with_older_metadata_deletes_nothing(older: View, lookup: Any) -> None:
    with nodes(View(OLD, 4), View(OLD, 4), older) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        assert client.metadata(["t"], refresh=True).topics  # broker 1: the first of the bootstrap addresses
        topics = lookup(client, found)
    assert 3 in found.answered
    assert {(each and each.topic_id, each and len(each.partitions)) for each in topics} == {(OLD, 4)}


@pytest.mark.parametrize("newer", [View(None, 0), View(NEW, 2, leader=3)], ids=["deleted", "recreated"])
@pytest.mark.parametrize("silent", [0, 1])
def test_deletion_is_believed_when_most_of_the_brokers_know_it(newer: View, silent: int) -> None:
    views = [View(OLD, 4) for _ in range(5)]
    with nodes(*views) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        client.metadata(["t"], refresh=True)
        for known, expected in ((1, OLD), (2, OLD), (3, newer.topic_id)):
            for view in views[4 - silent - known + 1 : 5 - silent]:
                view.topic_id, view.partitions, view.leader = newer.topic_id, newer.partitions, newer.leader
            for view in views[5 - silent :]:
                view.is_silent = True
            seen = {each and each.topic_id for each in refreshed(client, found, 20)}
            assert expected in seen and seen <= {OLD, expected}


def test_recreation_is_believed_when_the_leader_knows_it() -> None:
    """Until then the leader responds to ListOffsets with the offsets of the deleted topic."""
    views = [View(OLD, 4) for _ in range(3)]
    with nodes(*views) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        client.metadata(["t"], refresh=True)
        for view in views[1:]:
            view.topic_id = NEW
        assert {each and each.topic_id for each in refreshed(client, found)} == {OLD}
        views[0].topic_id = NEW
        assert {each and each.topic_id for each in refreshed(client, found)} == {NEW}


def test_lookups_go_to_another_broker_each_time() -> None:
    with nodes(View(OLD, 1), View(OLD, 1), View(OLD, 1)) as found:
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            for _ in range(10):
                client.metadata(["t"], refresh=True)
    assert all(first != second for first, second in zip(found.answered, found.answered[1:]))


def test_partition_of_another_process_is_not_deleted_by_the_first_response() -> None:
    with nodes(View(OLD, 0), View(OLD, 4, leader=2), View(OLD, 4, leader=2)) as found:
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            client.add_known_partitions([TopicPartition("t", 3)], {"t": str(OLD)})
            assert len(client.metadata(["t"]).partitions_of("t")) == 4
        assert found.answered[0] == 1
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            client.add_known_partitions([TopicPartition("t", 3)], {"t": str(NEW)})
            assert client.metadata(["t"]).topics["t"].topic_id == OLD, "two of three brokers have the other topic"


def checkpointed_session(
    client: ClusterClient, *partitions: int, clock: Clock | None = None, position: int = 0, retries: str = "3"
) -> tuple[StreamSession, FakeGroup, dict[str, Any]]:
    known = {"topic_ids": {"t": str(OLD)}, "partitions": {"t": 4}}
    start = {
        "t": {"0": position, "3": position},
        "@group": {"reader": "r", "generation": 1, "acquired": {}, **known},
    }
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"}
    parsed = parse_options({**options, "fetchOffset.numRetries": retries}, "stream")
    group = FakeGroup(assigned={TopicPartition("t", n): 0 for n in partitions or (0, 3)})
    return StreamSession(client, parsed, group, clock or SystemClock()), group, start


@pytest.mark.parametrize("older", [View(OLD, 2), View(OLD, 0), View(NEW, 2)])
def test_query_continues_where_one_broker_has_older_metadata(older: View) -> None:
    """The restarted query asks that broker first: it is the first of the bootstrap addresses."""
    with nodes(older, View(OLD, 4), View(OLD, 4)) as found:
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            session, group, start = checkpointed_session(client)
            for _ in range(5):
                session.latest_offset(start, NO_LIMITS)
            group.rebalance({TopicPartition("t", 0): 0})
            session.latest_offset(start, NO_LIMITS)
    assert found.answered[0] == 1


def assigned(client: ClusterClient, *numbers: int) -> list[TopicPartition]:
    options = {"kafka.bootstrap.servers": "h:1", "assign": json.dumps({"t": numbers})}
    return OffsetLookup(client, parse_options(options, "stream")).partitions()


def test_partitions_of_option_assign_exist_though_one_broker_lacks_them() -> None:
    with nodes(View(OLD, 2), View(OLD, 4), View(OLD, 4)) as found:
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            assert assigned(client, 0, 3) == [TopicPartition("t", 0), TopicPartition("t", 3)]
            with pytest.raises(ConfigurationError, match="do not exist: t-4"):
                assigned(client, 0, 4)
    assert found.answered[0] == 1


def test_topic_without_permission_is_not_deleted() -> None:
    with nodes(*(View(OLD, 4) for _ in range(3))) as found:
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            session, group, start = checkpointed_session(client)
            session.latest_offset(start, NO_LIMITS)
            for view in found.views:
                view.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.rebalance({TopicPartition("t", 0): 0})
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                session.latest_offset(start, NO_LIMITS)


@pytest.mark.parametrize("code", set(ErrorCode) - {ErrorCode.NONE})
def test_partition_is_missing_only_where_the_topic_is_unknown(code: ErrorCode) -> None:
    found = ClusterMetadata({}, {}, errors={"t": code})
    assert found.lacks(TopicPartition("t", 0)) == (code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    exists = ClusterMetadata({}, {"t": topic(OLD, 2)})
    assert [exists.lacks(TopicPartition("t", n)) for n in range(3)] == [False, False, True]
    assert exists.lacks(TopicPartition("u", 0)), "a list of all topics has no errors"


@pytest.mark.parametrize("older", [View(OLD, 2), View(OLD, 0), View(NEW, 4), View(OLD, 4, leader=3, epoch=2)])
def test_what_is_known_of_a_topic_outlasts_an_error_of_its_metadata(older: View) -> None:
    with nodes(elected(), elected(), older) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        client.metadata(["t"], refresh=True)
        for view in found.views[:2]:
            view.error = ErrorCode.LEADER_NOT_AVAILABLE
        topics = refreshed(client, found)
        assert None in topics and 3 in found.answered
        known = [each for each in topics if each is not None]
        seen = {(each.topic_id, len(each.partitions), each.partitions[0].leader_epoch) for each in known}
        assert seen <= {(OLD, 4, 4)}


def cut_off(log_end: int = 7) -> View:
    """A leader that does not know that another one was elected, and whose log ends earlier."""
    return View(OLD, 4, leader=1, epoch=3, log_end=log_end)


def elected(log_end: int = 12) -> View:
    return View(OLD, 4, leader=2, epoch=4, log_end=log_end)


@pytest.mark.parametrize("retries", ["3", "0"])
def test_log_of_a_former_leader_is_not_taken_for_a_truncated_one(retries: str) -> None:
    """The restarted query asks that broker first; its checkpoint has no leader epochs."""
    with nodes(cut_off(), elected(), elected()) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        session, _, start = checkpointed_session(client, position=10, retries=retries)
        assert session.latest_offset(start, NO_LIMITS)["t"] == {"0": 12, "3": 12}
    assert found.answered[0] == 1


@pytest.mark.parametrize("end", [10, 13])
def test_end_of_a_batch_read_is_not_compared_with_the_log_of_a_former_leader(end: int) -> None:
    ends = json.dumps({"t": dict.fromkeys(range(4), end)})
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "endingOffsets": ends}
    with nodes(cut_off(), elected(), elected()) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        parsed = parse_options(options, "batch")
        if end == 10:
            assert {each.end for each in plan_ranges(client, parsed)} == {10}
        else:
            with pytest.raises(DataLossError, match="the log ends at 12"):
                plan_ranges(client, parsed)


def test_truncated_log_is_reported_where_the_other_brokers_name_no_later_leader() -> None:
    with nodes(*(cut_off() for _ in range(3))) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        session, _, start = checkpointed_session(client, position=10)
        with pytest.raises(DataLossError, match="t-0 ends at 7, not 10"):
            session.latest_offset(start, NO_LIMITS)


def test_truncation_is_not_believed_while_most_brokers_do_not_respond() -> None:
    with nodes(cut_off(), elected(), elected()) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        client.metadata(["t"])
        for view in found.views[1:]:
            view.is_silent = True
        with pytest.raises(NetworkError, match="1 of 3 brokers"):
            client.confirm_leaders(["t"], timeout_ms=1_000)


@pytest.mark.slow
def test_query_ends_where_most_brokers_lack_the_topic() -> None:
    with nodes(View(None, 0), View(None, 0), View(OLD, 4)) as found:
        found.views[2].is_silent = True
        with open_cluster(found.bootstrap_servers, **SETTINGS) as client:
            session, _, start = checkpointed_session(client)
            with pytest.raises(DataLossError, match="were deleted"):
                session.latest_offset(start, NO_LIMITS)


def test_partition_that_another_leader_assigns_is_read_once_it_exists(caplog: pytest.LogCaptureFixture) -> None:
    with nodes(View(OLD, 4), View(OLD, 4)) as found, open_cluster(found.bootstrap_servers, **SETTINGS) as client:
        clock = ManualClock()
        session, _, start = checkpointed_session(client, 0, 3, 7, clock=clock)
        for _ in range(3):
            session.latest_offset(start, NO_LIMITS)
            clock.advance_ms(2_000)
        assert session.latest_offset(start, NO_LIMITS)["t"] == {"0": 0, "3": 0}
        for view in found.views:
            view.partitions = 8
        clock.advance_ms(2_000)
        assert session.latest_offset(start, NO_LIMITS)["t"] == {"0": 0, "3": 0, "7": 0}
    assert [r.levelname for r in caplog.records if "t-7" in r.getMessage()] == ["WARNING"]


def topic(topic_id: UUID | None, partitions: int) -> TopicInfo:
    return TopicInfo("t", topic_id, {n: PartitionInfo(n, 1, 0) for n in range(partitions)})


@pytest.mark.parametrize(
    "received, brokers, expected",
    [
        ([None], 1, None),
        ([None], 2, (OLD, 4)),
        ([None, None], 3, None),
        ([None, topic(OLD, 6)], 2, (OLD, 6)),
        ([topic(NEW, 2), topic(NEW, 3), topic(OLD, 4)], 3, (NEW, 3)),
        ([topic(NEW, 2), None, topic(OLD, 4)], 3, (NEW, 2)),
        ([], 3, (OLD, 4)),
        ([None, None], 4, (OLD, 4)),
        # the leader, broker 1, has not received the new topic, or does not respond
        ([topic(OLD, 4), topic(NEW, 2), topic(NEW, 2)], 3, (OLD, 4)),
        ([None, topic(NEW, 2), topic(NEW, 2)], 3, (OLD, 4)),
        ([..., topic(NEW, 2), topic(NEW, 2)], 3, (OLD, 4)),
    ],
)
def test_majority_decides(received: list[Any], brokers: int, expected: tuple[UUID, int] | None) -> None:
    responses = {node_id: response for node_id, response in enumerate(received, 1) if response is not ...}
    found = topic_of_most(topic(OLD, 4), responses, brokers)
    assert (found and (found.topic_id, len(found.partitions))) == expected


def test_partitions_of_a_topic_without_id_are_lost_when_most_brokers_lack_them() -> None:
    fewer, known = topic(None, 2), topic(None, 4)
    assert topic_of_most(known, {1: fewer, 2: fewer, 3: known}, 3) == fewer
    assert topic_of_most(known, {1: fewer, 3: known}, 3) == known


def test_range_is_read_though_one_broker_lacks_its_partition() -> None:
    with nodes(View(OLD, 0), View(OLD, 4), View(OLD, 4)) as found:
        with open_cluster(found.bootstrap_servers, **{**SETTINGS, "default_api_timeout_ms": "300"}) as client:
            fetcher = PartitionFetcher(client, topic_ids={"t": str(OLD)})
            with pytest.raises(UnsupportedVersionError) as raised:
                list(fetcher.fetch_blocks([OffsetRange(TopicPartition("t", 3), 0, 5)]))
    assert "Fetch" in str(raised.value), "the leader is found; the fake broker serves no Fetch"
