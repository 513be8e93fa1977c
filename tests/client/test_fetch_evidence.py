"""Conclusions of the fetcher from responses: gaps, truncation, recreated topics, former leaders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.clients import FakeBroker, open_cluster
from support.fake_leader import EMPTY, TP, FakeLeader, fake_leader
from support.links import forwarding
from support.topics import create_topic, produce

from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.records import fetcher
from spark_groupsource.client.records.fetcher import FetchedBlock, PartitionFetcher
from spark_groupsource.errors import BrokerError, DataLossError, ErrorCode
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.header import iter_batches

SETTINGS = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "2", "default_api_timeout_ms": "5000"}


@pytest.fixture
def broker() -> Iterator[FakeLeader]:
    with fake_leader() as running:
        yield running


@pytest.fixture
def client(broker: FakeLeader) -> Iterator[ClusterClient]:
    with open_cluster(str(broker.address), **SETTINGS) as opened:
        yield opened


def fetch(client: ClusterClient, end: int = 10, start: int = 0, **known: Any) -> list[FetchedBlock]:
    return list(PartitionFetcher(client, **known).fetch_blocks([OffsetRange(TP, start, end)]))


def next_offsets(blocks: list[FetchedBlock]) -> list[int]:
    assert not any(block.error or block.diverging_offset is not None for block in blocks), blocks
    return [block.next_offset for block in blocks]


# -- gaps ------------------------------------------------------------------------------------------------------------


def test_responses_without_records_do_not_end_a_range(broker: FakeLeader, client: ClusterClient) -> None:
    broker.steps = [EMPTY, EMPTY, lambda: None, EMPTY, EMPTY, EMPTY]
    assert next_offsets(fetch(client)) == list(range(1, 11))


@pytest.mark.parametrize("policy", ["delete", "compact without permission"])
def test_range_without_records_fails_after_the_timeout(broker: FakeLeader, policy: str) -> None:
    broker.gap = frozenset(range(7, 10))
    if policy != "delete":
        broker.cleanup_policy, broker.config_error = "compact", ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with open_cluster(str(broker.address), **{**SETTINGS, "default_api_timeout_ms": "150"}) as client:
        message = "t-0 at offset 7 of 10 .high watermark 10, .*default.api.timeout.ms=150"
        with pytest.raises(DataLossError, match=message):
            fetch(client)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_end_of_a_compacted_log_without_records_is_skipped(
    broker: FakeLeader, client: ClusterClient, policy: str
) -> None:
    broker.gap, broker.cleanup_policy = frozenset(range(7, 10)), policy
    assert next_offsets(fetch(client)) == [*range(1, 8), 10]
    assert len(broker.sent("DescribeConfigs")) == 1


def test_broker_that_does_not_know_the_topic_does_not_decide_whether_it_is_compacted(
    broker: FakeLeader, client: ClusterClient
) -> None:
    """Any broker may receive DescribeConfigs, also one with older metadata."""
    describe = broker.responses["DescribeConfigs"]

    def describe_at_second(request: Any, version: int) -> Any:
        is_first = len(broker.sent("DescribeConfigs")) == 1
        broker.config_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_first else ErrorCode.NONE
        return describe(request, version)

    broker.responses["DescribeConfigs"] = describe_at_second
    broker.gap, broker.cleanup_policy = frozenset(range(7, 10)), "compact"
    assert next_offsets(fetch(client)) == [*range(1, 8), 10]


@pytest.mark.conformance("FT-025")
def test_gap_before_a_batch_is_skipped(broker: FakeLeader, client: ClusterClient) -> None:
    broker.gap = frozenset(range(2, 9))
    assert next_offsets(fetch(client)) == [1, 2, 10]
    assert not broker.sent("DescribeConfigs")


def test_open_transaction_is_waited_for(broker: FakeLeader) -> None:
    broker.last_stable_offset, broker.cleanup_policy = 4, "compact"
    broker.gap = frozenset(range(4, 10))
    settings = {**SETTINGS, "default_api_timeout_ms": "150", "isolation_level": "read_committed"}
    with open_cluster(str(broker.address), **settings) as client:
        with pytest.raises(DataLossError, match="COULD_NOT_READ_OFFSET_RANGE.* t-0 at offset 4 .*stable offset 4"):
            fetch(client)


# -- offsets out of range --------------------------------------------------------------------------------------------


def test_out_of_range_response_of_a_former_leader_is_no_loss(broker: FakeLeader, client: ClusterClient) -> None:
    broker.steps = [lambda: None, ErrorCode.OFFSET_OUT_OF_RANGE]
    before = len(broker.sent("Metadata"))
    assert next_offsets(fetch(client)) == list(range(1, 11))
    assert len(broker.sent("Metadata")) > before + 1, "the leader is looked up before the bounds of the log"


class InOrder(Random):
    def shuffle(self, x: Any) -> None:
        """Leaves the order as it is."""


def test_former_leader_with_a_shorter_log_is_no_loss(broker: FakeLeader, client: ClusterClient) -> None:
    """It is cut off from its controller, and the task has no leader epoch of the range: a logged batch is read again.

    The next broker that is asked does not know the present leader yet.
    """
    client.rng = InOrder()
    with fake_leader() as lagging, fake_leader() as elected:
        broker.log_end = 7
        for each in (broker, lagging):
            each.leader_epoch, each.followers = 3, {1: broker, 3: lagging, 2: elected}
        elected.leader_id, elected.leader_epoch, elected.followers = 2, 4, broker.followers
        lagging.topic_id = elected.topic_id = broker.topic_id
        assert next_offsets(fetch(client, start=8)) == [9, 10]
        assert len(broker.fetches) == 1 and len(elected.fetches) == 2 and lagging.sent("Metadata")


def test_out_of_range_responses_that_contradict_the_log_fail_after_the_timeout(broker: FakeLeader) -> None:
    broker.steps = [ErrorCode.OFFSET_OUT_OF_RANGE] * 1_000
    with open_cluster(str(broker.address), **{**SETTINGS, "default_api_timeout_ms": "150"}) as client:
        with pytest.raises(BrokerError, match="Fetch of t-0 at offset 0 .*OFFSET_OUT_OF_RANGE"):
            fetch(client)


def test_metadata_without_a_response_do_not_hide_the_error_of_the_partition(broker: FakeLeader) -> None:
    respond = broker.responses["Metadata"]
    broker.steps = [ErrorCode.OFFSET_OUT_OF_RANGE] * 1_000
    broker.responses["Metadata"] = lambda *request: respond(*request) if len(broker.fetches) < 2 else None
    with open_cluster(str(broker.address), **{**SETTINGS, "default_api_timeout_ms": "150"}) as client:
        with pytest.raises(BrokerError, match="Fetch of t-0 at offset 0 .*OFFSET_OUT_OF_RANGE"):
            fetch(client)


# -- leader epochs ---------------------------------------------------------------------------------------------------


@pytest.mark.conformance("FT-039")
def test_requests_carry_the_current_leader_epoch(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch = 5
    assert client.list_offsets({TP: LATEST})[TP].offset == 10
    fetch(client)
    assert {each.current_leader_epoch for each in broker.fetches} == {5}
    ((_, request),) = broker.sent("ListOffsets")
    assert request.topics[0].partitions[0].current_leader_epoch == 5
    assert client.cached_leader_epochs([TP]) == {TP: 5}


@pytest.mark.parametrize("change", [1, -1])
def test_rejected_leader_epoch_is_looked_up_again(broker: FakeLeader, client: ClusterClient, change: int) -> None:
    broker.leader_epoch = 5

    def move() -> None:
        broker.leader_epoch += 1

    broker.steps = [move, ErrorCode.UNKNOWN_LEADER_EPOCH] if change < 0 else [move]
    assert next_offsets(fetch(client)) == list(range(1, 11))
    assert [each.current_leader_epoch for each in broker.fetches][-1] == 6


def test_metadata_with_an_earlier_leader_epoch_are_ignored(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch = 5
    client.metadata(["t"])
    broker.leader_epoch = 4
    assert client.metadata(["t"], refresh=True).leader_epoch(TP) == 5
    broker.topic_id = uuid4()
    assert client.metadata(["t"], refresh=True).leader_epoch(TP) == 4, "epochs of another topic"


@pytest.mark.conformance("FT-072", "OF-042")
def test_log_that_was_truncated_and_has_grown_again_is_reported(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch, broker.epoch_ends = 3, {2: (2, 6)}
    blocks = fetch(client, leader_epochs={TP: 2})
    assert blocks[0].diverging_offset == 6 and not blocks[0].data
    assert next_offsets(blocks[1:]) == list(range(1, 11)), "the range is read on"
    ((version, request),) = broker.sent("OffsetForLeaderEpoch")
    requested = request.topics[0].partitions[0]
    assert (version, requested.leader_epoch, requested.current_leader_epoch, request.replica_id) == (4, 2, 3, -1)


@pytest.mark.conformance("FT-071", "FT-072")
def test_truncation_during_a_fetch_is_reported(broker: FakeLeader, client: ClusterClient) -> None:
    def truncate() -> None:
        broker.leader_epoch, broker.epoch_ends = 1, {0: (0, 8)}

    broker.steps = [lambda: None, truncate]
    blocks = fetch(client)
    assert [block.diverging_offset for block in blocks if block.diverging_offset is not None] == [8]


def test_range_below_the_end_of_its_epoch_is_valid(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch, broker.epoch_ends = 3, {2: (1, 6)}
    assert next_offsets(fetch(client, end=6, leader_epochs={TP: 2})) == list(range(1, 7))


@pytest.mark.conformance("OF-040", "OF-041")
def test_epoch_that_the_leader_does_not_know_is_a_truncation_at_an_unknown_offset(
    broker: FakeLeader, client: ClusterClient
) -> None:
    broker.leader_epoch, broker.epoch_ends = 3, {2: (-1, -1)}
    assert fetch(client, leader_epochs={TP: 2})[0].diverging_offset == -1


def test_log_without_epochs_is_read(broker: FakeLeader, client: ClusterClient) -> None:
    """Message formats before v2: the leader knows no epoch, not even its own."""
    broker.leader_epoch, broker.epoch_ends = 3, {2: (-1, -1), 3: (-1, -1)}
    assert next_offsets(fetch(client, leader_epochs={TP: 2})) == list(range(1, 11))


@pytest.mark.conformance("OF-036")
def test_epochs_are_not_validated_where_the_broker_cannot(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch, broker.epoch_ends, broker.epoch_versions = 3, {2: (2, 6)}, (0, 2)
    assert next_offsets(fetch(client, leader_epochs={TP: 2})) == list(range(1, 11))
    assert not broker.sent("OffsetForLeaderEpoch")


def test_epoch_in_effect_when_the_range_was_planned_is_not_validated(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch = 3
    fetch(client, leader_epochs={TP: 3})
    assert not broker.sent("OffsetForLeaderEpoch")


@pytest.mark.parametrize("has_ids", [True, False])
def test_leader_of_an_earlier_epoch_than_that_of_the_range_is_not_read(
    broker: FakeLeader, client: ClusterClient, has_ids: bool
) -> None:
    """One that is cut off from its controller; without topic ids the topic may be another one of the name."""

    def elect() -> None:
        broker.leader_epoch = 4

    broker.leader_epoch, broker.steps = 3, [lambda: None, elect] if has_ids else []
    broker.topic_id = broker.topic_id if has_ids else None
    topic_ids = {"t": str(broker.topic_id)} if has_ids else {}
    assert next_offsets(fetch(client, leader_epochs={TP: 4}, topic_ids=topic_ids)) == list(range(1, 11))
    assert {each.current_leader_epoch for each in broker.fetches} == {4 if has_ids else 3}


@pytest.mark.parametrize("epoch", [3, 4, 5])
def test_leader_of_an_earlier_epoch_than_that_of_a_commit_is_not_asked(
    broker: FakeLeader, client: ClusterClient, epoch: int
) -> None:
    broker.leader_epoch = 4
    client.metadata(["t"])
    client.forget_earlier_leaders({TP: epoch}, {"t": str(broker.topic_id)})
    if epoch > 4:
        with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
            client.list_offsets({TP: LATEST}, timeout_ms=20)
        assert not broker.sent("ListOffsets")
        broker.leader_epoch = epoch
    assert client.list_offsets({TP: LATEST})[TP].offset == 10


def test_epoch_of_another_topic_forgets_no_leader(broker: FakeLeader, client: ClusterClient) -> None:
    broker.leader_epoch = 4
    client.metadata(["t"])
    client.forget_earlier_leaders({TP: 5}, {"t": str(uuid4())})
    assert client.list_offsets({TP: LATEST})[TP].offset == 10


# -- topic ids -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("FT-007")
def test_topic_is_fetched_by_its_id(broker: FakeLeader, client: ClusterClient) -> None:
    fetch(client, topic_ids={"t": str(broker.topic_id)})
    assert {(version, request.topics[0].topic_id) for version, request in broker.sent("Fetch")} == {
        (13, broker.topic_id)
    }


@pytest.mark.parametrize("versions", [(4, 13), (4, 11)])
@pytest.mark.parametrize("when", ["before the fetch", "during the fetch"])
def test_recreated_topic_is_not_read(
    broker: FakeLeader, client: ClusterClient, versions: tuple[int, int], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNKNOWN_TOPIC_TIMEOUT_MS", 20)
    broker.fetch_versions = versions

    def recreate() -> None:
        broker.topic_id, broker.leader_epoch = uuid4(), 1

    planned = str(broker.topic_id)
    if when == "before the fetch":
        recreate()
        expected = []
    else:
        broker.steps = [lambda: None, lambda: None, recreate]
        expected = [1, 2]
    blocks = fetch(client, topic_ids={"t": planned})
    assert [block.next_offset for block in blocks[:-1]] == expected
    assert blocks[-1].error == ErrorCode.UNKNOWN_TOPIC_ID and not blocks[-1].data


@pytest.mark.parametrize("topic_id", [None, UUID(int=0)])
@pytest.mark.conformance("FT-006")
def test_topic_without_id_is_fetched_by_name(broker: FakeLeader, client: ClusterClient, topic_id: UUID | None) -> None:
    broker.topic_id, broker.fetch_versions = topic_id, (4, 12)
    assert next_offsets(fetch(client, topic_ids={"t": str(uuid4())} if topic_id else {})) == list(range(1, 11))


@pytest.mark.conformance("KC-049")
def test_partition_that_was_not_requested_is_ignored(broker: FakeLeader, client: ClusterClient) -> None:
    respond, unexpected = broker.responses["Fetch"], [4, 4]

    def other(request: Any, version: int) -> Any:
        response = respond(request, version)
        if unexpected:
            response.responses[0].partitions[0].partition_index = unexpected.pop()
        return response

    broker.responses["Fetch"] = other
    assert next_offsets(fetch(client)) == list(range(1, 11))


# -- through a broker that empties responses -------------------------------------------------------------------------


@contextmanager
def emptying(bootstrap_servers: str, emptied: set[int]) -> Iterator[FakeBroker]:
    """Forwards requests to a broker, and removes the records from the Fetch responses with these numbers."""
    fetched = count(1)

    def remove(request: Any, response: Any) -> None:
        if next(fetched) in emptied:
            for topic in response.responses:
                for partition in topic.partitions:
                    partition.records = b""

    with forwarding(bootstrap_servers, remove) as proxy:
        yield proxy


def test_every_record_is_read_through_a_broker_that_empties_responses(cluster: Any, topic: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(n % 2, None, b"%d" % n) for n in range(2_000)], batch_num_messages=100)
    with emptying(cluster.bootstrap_servers, {1, 2, 4, 5, 6}) as proxy:
        settings = {"max_partition_fetch_bytes": "4000", "fetch_max_bytes": "8000"}
        with open_cluster(str(proxy.address), **SETTINGS, **settings) as client:
            found = 0
            ranges = [OffsetRange(TopicPartition(topic, n), 0, 1_000) for n in range(2)]
            for block in PartitionFetcher(client).fetch_blocks(ranges):
                found += sum(header.record_count for header in iter_batches(block.data))
    assert found == 2_000
