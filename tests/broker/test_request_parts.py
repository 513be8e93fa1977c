"""Requests for thousands of partitions or groups, handled in time slices."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack

import pytest
from support.commit_requests import commit_topics
from support.message_fields import fields_of
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetch_request, fetched_values, produce
from support.waiting import wait_until

from spark_groupsource.broker.api import dispatch
from spark_groupsource.broker.api.group_parts import delete_groups
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.common import coroutines
from spark_groupsource.common.coroutines import begin, rest_of, run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import coordinator_partition
from spark_groupsource.wire.frames import decode_response
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

PARTITIONS = 1_200
GROUPS = 350
_MAX_CALLS = 25_000
"""Function calls of one step: 8 ms on the machine of benchmarks/figures.md. Most requests below have more in all."""

_FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(config={"offsets.topic.num.partitions": "3"}) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "many", PARTITIONS)
            connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        yield broker


@pytest.fixture
def connection(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def slices(monkeypatch):
    """Function calls of each callback of the event loop from now on, one step each: times depend on the machine."""
    counts: list[int] = []
    run = asyncio.Handle._run

    def counted(handle):
        count = 0

        def add(frame, event, function):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(add)
        try:
            run(handle)
        finally:
            sys.setprofile(None)
        counts.append(count)

    monkeypatch.setattr(asyncio.Handle, "_run", counted)
    monkeypatch.setattr(coroutines, "SLICE_NS", 0)
    monkeypatch.setattr(dispatch, "FIRST_SLICE_NS", 0)
    return counts


def first_slice(work):
    """Returns a list with the result if the first slice of a coroutine is its last, else an empty list."""
    try:
        begin(work, 10**9)
    except StopIteration as end:
        return [end.value]
    return []


def _commit(connection, count: int, group_id: str = "g", metadata: str = ""):
    offsets = dict.fromkeys(("many", "unknown"), dict(enumerate(range(count))))
    topics = commit_topics(OffsetCommitRequest, offsets, committed_metadata=metadata)
    return connection.call(OffsetCommitRequest(group_id=group_id, topics=topics), 8)


def test_offsets_of_many_partitions_are_committed_and_fetched_in_parts(connection, slices):
    committed = {topic.name: topic.partitions for topic in _commit(connection, PARTITIONS).topics}
    assert [each.partition_index for each in committed["many"]] == list(range(PARTITIONS))
    assert {each.error_code for each in committed["many"]} == {0}
    assert [each.error_code for each in committed["unknown"]] == [3] * PARTITIONS
    wanted = [
        _FetchGroup.OffsetFetchRequestTopics(name="many", partition_indexes=list(range(PARTITIONS))),
        _FetchGroup.OffsetFetchRequestTopics(name="other", partition_indexes=[0]),
    ]
    groups = [_FetchGroup(group_id="g", topics=wanted), _FetchGroup(group_id="other", topics=None)]
    fetched = connection.call(OffsetFetchRequest(groups=groups, require_stable=False), 8).groups
    assert [(group.group_id, [topic.name for topic in group.topics]) for group in fetched] == [
        ("g", ["many", "other"]), ("other", [])
    ]  # fmt: skip
    assert [each.committed_offset for each in fetched[0].topics[0].partitions] == list(range(PARTITIONS))
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="many", partition_indexes=list(range(PARTITIONS)))
    (older,) = connection.call(OffsetFetchRequest(group_id="g", topics=[topic]), 5).topics
    assert [each.committed_offset for each in older.partitions] == list(range(PARTITIONS))
    assert max(slices) < _MAX_CALLS


@pytest.mark.parametrize("version", [5, 8, 10])
def test_all_offsets_of_a_group_are_fetched_in_parts(broker, connection, slices, version):
    _commit(connection, PARTITIONS, "all")
    if version < 8:
        request = OffsetFetchRequest(group_id="all", topics=None, require_stable=False)
        (topic,) = connection.call(request, version).topics
    else:
        request = OffsetFetchRequest(groups=[_FetchGroup(group_id="all", topics=None)], require_stable=False)
        (group,) = connection.call(request, version).groups
        (topic,) = group.topics
    topic_id = broker.call(lambda b: b.partitions.topic("many").topic_id)
    assert topic.topic_id == topic_id if version >= 10 else topic.name == "many"
    assert sorted((each.partition_index, each.committed_offset) for each in topic.partitions) == [
        (number, number) for number in range(PARTITIONS)
    ]
    assert max(slices) < _MAX_CALLS


@pytest.mark.slow
def test_a_response_has_a_group_of_many_offsets_a_limited_number_of_times(connection):
    _commit(connection, PARTITIONS, "named")
    groups = [_FetchGroup(group_id="named", topics=None)] * 200
    fetched = connection.call(OffsetFetchRequest(groups=groups, require_stable=False), 8).groups
    assert [group.group_id for group in fetched] == ["named"] * 200
    codes = [group.error_code for group in fetched]
    assert codes[0] == 0 and codes == sorted(codes) and codes[-1] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert sum(len(topic.partitions) for group in fetched for topic in group.topics) < 150_000


def _transactional_commit(producer, group_id: str):
    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=commit_topics(TxnOffsetCommitRequest, {"many": dict.fromkeys(range(PARTITIONS + 1), 7)}),
    )


def test_a_commit_of_hundreds_of_partitions_is_one_batch(broker, connection, slices):
    """As in Kafka: all of its offsets are stored, or none."""
    log = broker.call(lambda node: node.partitions.partition("__consumer_offsets", coordinator_partition("one", 3)).log)
    end = log.log_end_offset
    _commit(connection, 600, "one")
    (stored,) = log.batches(end)
    assert stored.header.record_count == 600
    # a batch has at most max.message.bytes
    too_large = {topic.name: topic.partitions for topic in _commit(connection, 600, "one", "m" * 2_000).topics}
    assert {each.error_code for each in too_large["many"]} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert log.log_end_offset == end + 600
    assert max(slices) < _MAX_CALLS


@pytest.mark.slow
def test_a_transaction_of_many_partitions_and_offsets_is_handled_in_steps(connection, slices):
    init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    producer = connection.call(init, 2)
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="many", partitions=list(range(PARTITIONS)))
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t", v3_and_below_topics=[topic],
        **{f"v3_and_below_{name}": value for name, value in ids.items()},
    )  # fmt: skip
    (result,) = connection.call(added, 3).results_by_topic_v3_and_below
    assert [each.partition_error_code for each in result.results_by_partition] == [0] * PARTITIONS
    assert connection.call(AddOffsetsToTxnRequest(transactional_id="t", group_id="in-t", **ids), 3).error_code == 0
    (committed,) = connection.call(_transactional_commit(producer, "in-t"), 3).topics
    codes = {each.partition_index: each.error_code for each in committed.partitions}
    assert codes == {number: 3 * (number == PARTITIONS) for number in range(PARTITIONS + 1)}
    assert connection.call(EndTxnRequest(transactional_id="t", committed=True, **ids), 3).error_code == 0
    described = DescribeTransactionsRequest(transactional_ids=["t"])
    wait_until(
        lambda: connection.call(described, 0).transaction_states[0].transaction_state == "CompleteCommit",
        "the markers are written",
        60,
    )
    every = OffsetFetchRequest(groups=[_FetchGroup(group_id="in-t", topics=None)], require_stable=True)
    (topic,) = connection.call(every, 8).groups[0].topics
    assert [each.committed_offset for each in topic.partitions] == [7] * PARTITIONS
    requested = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [requested.OffsetDeleteRequestPartition(partition_index=number) for number in range(PARTITIONS)]
    deletion = OffsetDeleteRequest(group_id="in-t", topics=[requested(name="many", partitions=partitions)])
    assert connection.call(deletion, 0).error_code == 0
    assert connection.call(every, 8).groups[0].topics == []
    assert max(slices) < _MAX_CALLS


def test_a_group_of_many_offsets_is_not_changed_while_it_is_deleted(broker, connection):
    _commit(connection, PARTITIONS, "deleted")
    deletion = DeleteGroupsRequest(groups_names=["deleted"])
    context = ApiRequestContext(0, 42, 1, "test", "127.0.0.1", 0)

    def delete_partly(node):
        (only,) = node.nodes.ids()
        work = delete_groups(node, context._replace(node_id=only), deletion)
        begin(work, 0)
        return [work]

    (work,) = broker.call(delete_partly)
    every = OffsetFetchRequest(groups=[_FetchGroup(group_id="deleted", topics=None)], require_stable=False)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert connection.call(every, 8).groups[0].error_code == loading
    assert connection.call(deletion, 1).results[0].error_code == loading
    assert {each.error_code for each in _commit(connection, 1, "deleted").topics[0].partitions} == {loading}
    assert _commit(connection, 1, "untouched").topics[0].partitions[0].error_code == 0
    (result,) = broker.call(lambda _: rest_of(work)).results
    assert (result.group_id, result.error_code) == ("deleted", 0)
    assert connection.call(every, 8).groups[0].topics == []


@pytest.mark.slow
def test_many_groups_are_described_and_deleted_in_the_order_of_the_request(connection, slices):
    names = [f"group-{number}" for number in range(GROUPS)]
    described = connection.call(DescribeGroupsRequest(groups=names, include_authorized_operations=False), 4).groups
    assert [group.group_id for group in described] == names
    deleted = connection.call(DeleteGroupsRequest(groups_names=[*names, names[0]]), 1).results
    assert [result.group_id for result in deleted] == names
    assert max(slices) < _MAX_CALLS


def test_groups_of_all_shards_are_listed_in_steps(connection, slices):
    for number in range(40):
        assert _commit(connection, 1, group_id=f"listed-{number}").topics[0].partitions[0].error_code == 0
    response = connection.call(ListGroupsRequest(states_filter=[], types_filter=[]), 5)
    assert response.error_code == 0
    assert {f"listed-{number}" for number in range(40)} <= {group.group_id for group in response.groups}
    assert max(slices) < _MAX_CALLS


def test_elections_of_all_partitions_are_decided_in_steps(connection, slices):
    response = connection.call(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000), 2)
    assert {(topic.topic, len(topic.partition_result)) for topic in response.replica_election_results} >= {("many", 0)}
    requested = ElectLeadersRequest.TopicPartitions(topic="many", partitions=list(range(PARTITIONS + 1)))
    request = ElectLeadersRequest(election_type=0, topic_partitions=[requested], timeout_ms=1000)
    (topic,) = connection.call(request, 2).replica_election_results
    assert [each.error_code for each in topic.partition_result] == [*[84] * PARTITIONS, 3]
    assert max(slices) < _MAX_CALLS


def test_a_fetch_after_a_large_one_continues_in_a_slice(broker):
    request = fetch_request("large", 0, max_bytes=2_000_000)

    def fetch_twice(node):
        (only,) = node.nodes.ids()
        large, next_fetch = (node.fetch_manager.fetch(0, only, request, 11) for _ in range(2))
        return run_at_once(large), first_slice(next_fetch), run_at_once(next_fetch)

    with RawConnection(broker.bootstrap_servers) as producer:
        create_topic(producer, "large", 1)
        for _ in range(3):
            produce(producer, "large", batch(b"v" * 600_000, timestamp_ms=int(time.time() * 1000)), partition=0)
    large, pause, following = broker.call(fetch_twice)
    assert not pause and following == large
    assert len(large.responses[0].partitions[0].records) > 1_000_000


def test_a_small_fetch_after_a_large_one_does_not_wait_for_others(broker):
    large, at_end, last = (fetch_request("tail", offset, max_bytes=2_000_000) for offset in (0, 4, 3))

    def fetch_all(node):
        (only,) = node.nodes.ids()
        fetches = [node.fetch_manager.fetch(0, only, request, 11) for request in (large, at_end, last)]
        return [run_at_once(fetches[0]), *(first_slice(each)[0] for each in fetches[1:])]

    with RawConnection(broker.bootstrap_servers) as producer:
        create_topic(producer, "tail", 1)
        for size in (600_000, 600_000, 600_000, 1):
            produce(producer, "tail", batch(b"v" * size, timestamp_ms=int(time.time() * 1000)), partition=0)
    responses = broker.call(fetch_all)
    sizes = [len(response.responses[0].partitions[0].records or b"") for response in responses]
    assert sizes[0] > 1_000_000 and sizes[1] == 0 and 0 < sizes[2] < 1_000


def _fetch_many(offsets: list[int], session_id: int, session_epoch: int, *, wait_ms: int = 0):
    request = fetch_request("many", 0, max_wait_ms=wait_ms)
    (topic,) = request.topics
    (partition,) = topic.partitions
    request.session_id, request.session_epoch = session_id, session_epoch
    topic.partitions = [
        FetchRequest.FetchTopic.FetchPartition(**{**fields_of(partition), "partition": number, "fetch_offset": offset})
        for number, offset in enumerate(offsets)
    ]  # fmt: skip
    return request


def test_a_session_of_many_partitions_is_read_in_steps_and_completes_after_an_append(broker, connection, slices):
    offsets = broker.call(
        lambda b: [b.partitions.partition("many", number).log.log_end_offset for number in range(PARTITIONS)]
    )  # other tests append to the partitions
    first = connection.call(_fetch_many(offsets, 0, 0), 11)
    assert (first.error_code, sum(len(topic.partitions) for topic in first.responses)) == (0, PARTITIONS)
    waits = _fetch_many(offsets, first.session_id, 1, wait_ms=20_000)
    waits.topics = []
    connection.post(waits, 11)
    with RawConnection(broker.bootstrap_servers) as producer:
        produce(producer, "many", batch(b"value", timestamp_ms=int(time.time() * 1000)), partition=PARTITIONS - 1)
    response = decode_response(connection.read_frame(), waits, 11, 2)
    assert [[each.partition_index for each in topic.partitions] for topic in response.responses] == [[PARTITIONS - 1]]
    assert fetched_values(response.responses[0].partitions[0]) == [b"value"]
    assert max(slices) < _MAX_CALLS


def test_records_of_many_partitions_are_deleted_in_steps(connection, slices):
    count = 700
    create_topic(connection, "deleted", count)
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = topic.DeleteRecordsPartition
    for number in (1, count - 2):
        produce(connection, "deleted", batch(b"v", timestamp_ms=int(time.time() * 1000)), partition=number)
    offsets = [partition(partition_index=number, offset=-1) for number in range(count)]
    offsets.append(partition(partition_index=count, offset=0))
    offsets.append(partition(partition_index=5, offset=7))
    request = DeleteRecordsRequest(topics=[topic(name="deleted", partitions=offsets)], timeout_ms=1000)
    results = connection.call(request, 2).topics[0].partitions
    by_number = {each.partition_index: (each.error_code, each.low_watermark) for each in results}
    assert (by_number[0], by_number[1], by_number[count - 2]) == ((0, 0), (0, 1), (0, 1))
    assert (by_number[count][0], by_number[5][0]) == (3, 1)
    assert max(slices) < _MAX_CALLS


def test_metadata_of_many_names_and_rejected_topics_are_handled_in_steps(connection, slices):
    names = [MetadataRequest.MetadataRequestTopic(name=f"unknown-{number}") for number in range(5_000)]
    found = connection.call(MetadataRequest(topics=names, allow_auto_topic_creation=False), 4).topics
    assert [topic.name for topic in found] == [topic.name for topic in names]
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"large-{number}", num_partitions=20_000, replication_factor=1, assignments=[], configs=[]
        )
        for number in range(1_000)
    ]
    created = connection.call(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False), 4).topics
    assert {topic.error_code for topic in created} == {44} and len(created) == 1_000
    assert max(slices) < _MAX_CALLS


def test_many_members_whose_joins_wait_are_removed_in_parts(broker, connection):
    join = {"group_id": "leaving", "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000, "member_id": ""}
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")]
    names = [f"i{number}" for number in range(120)]
    with ExitStack() as stack:
        members = [stack.enter_context(RawConnection(broker.bootstrap_servers)) for _ in range(60)]
        for member, name in zip(members, names):
            joining = JoinGroupRequest(**join, group_instance_id=name, protocol_type="consumer", protocols=protocols)
            member.post(joining, 5)
            if member is members[0]:
                member.read_frame()  # the others wait until it rejoins

        def joined():
            described = DescribeGroupsRequest(groups=["leaving"], include_authorized_operations=False)
            return len(connection.call(described, 4).groups[0].members) == len(members)

        wait_until(joined, "all members wait")
        leaving = [LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name) for name in names]
        response = connection.call(LeaveGroupRequest(group_id="leaving", members=leaving), 3)
        assert [each.error_code for each in response.members] == [0] * 60 + [ErrorCode.UNKNOWN_MEMBER_ID] * 60
        for member in members[1:]:
            member.read_frame()
