"""Responses of the embedded broker and Kafka, compared field by field.

The cases cover every version of every API.

A difference is a defect of the embedded broker.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from itertools import combinations
from typing import Any
from uuid import uuid4

import pytest
from support.compared_brokers import Case, ComparedBroker, comparable_response, differences, normalize
from support.request_cases import admin as admin_cases
from support.request_cases import data as data_cases
from support.request_cases import groups as group_cases
from support.request_cases import markers as marker_cases
from support.request_cases import placement as placement_cases
from support.waiting import wait_until

from spark_groupsource.broker.api.served_versions import FEATURES, NOT_SERVED, SERVED
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.messages import ApiVersionsRequest, DeleteGroupsRequest

pytestmark = pytest.mark.kafka

CASES: dict[int, list[Case]] = {
    0: data_cases.PRODUCE,
    1: data_cases.FETCH,
    2: data_cases.LIST_OFFSETS,
    3: admin_cases.METADATA,
    8: group_cases.OFFSET_COMMIT,
    9: group_cases.OFFSET_FETCH,
    10: group_cases.FIND_COORDINATOR,
    11: group_cases.JOIN_GROUP,
    12: group_cases.HEARTBEAT,
    13: group_cases.LEAVE_GROUP,
    14: group_cases.SYNC_GROUP,
    15: group_cases.DESCRIBE_GROUPS,
    16: group_cases.LIST_GROUPS,
    18: admin_cases.API_VERSIONS,
    19: admin_cases.CREATE_TOPICS,
    20: admin_cases.DELETE_TOPICS,
    21: data_cases.DELETE_RECORDS,
    22: admin_cases.INIT_PRODUCER_ID,
    23: data_cases.EPOCH_ENDS,
    27: marker_cases.WRITE_TXN_MARKERS,
    29: placement_cases.DESCRIBE_ACLS,
    30: placement_cases.CREATE_ACLS,
    31: placement_cases.DELETE_ACLS,
    32: admin_cases.DESCRIBE_CONFIGS,
    33: admin_cases.ALTER_CONFIGS,
    35: admin_cases.LOG_DIRS,
    37: admin_cases.CREATE_PARTITIONS,
    42: group_cases.DELETE_GROUPS,
    43: placement_cases.ELECT_LEADERS,
    44: admin_cases.CHANGE_CONFIGS,
    46: placement_cases.LIST_REASSIGNMENTS,
    47: group_cases.OFFSET_DELETE,
    60: admin_cases.DESCRIBE_CLUSTER,
    61: data_cases.DESCRIBE_PRODUCERS,
    66: marker_cases.LIST_TRANSACTIONS,
    74: admin_cases.LIST_CONFIG_RESOURCES,
    75: placement_cases.DESCRIBE_TOPIC_PARTITIONS,
}
Pair = tuple[ComparedBroker, ComparedBroker]
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    **{name: (2, {}) for name in ("read", "made", "marked")},
    **{name: (1, {}) for name in ("cut", "squeezed", "grows", "set", *(f"away{n}" for n in range(1, 6)))},
    "small": (1, {"max_message_bytes": "1000"}),
    "compacted": (1, {"cleanup_policy": "compact"}),
    "stamped": (1, {"message_timestamp_type": "LogAppendTime"}),
}
GROUPS = ("simple", "simple-2", "to-go", "to-go-too")
# topics and groups that an API changes are recreated for each of its versions
RECREATED = {
    0: (("made", "small", "compacted", "stamped"), ()),
    19: ((), ()),
    20: (tuple(name for name in TOPICS if name.startswith("away")), ()),
    37: (("grows",), ()),
    33: (("set",), ()),
    44: (("set",), ()),
    # Kafka keeps a group after a failed join
    11: ((), ()),
    42: (("read",), GROUPS),
    47: (("read",), GROUPS),
}


def prepare(broker: ComparedBroker, topics: Collection[str] = tuple(TOPICS), groups: Collection[str] = GROUPS) -> None:
    """Creates topics, some with records, and groups with a committed offset."""
    for name in topics:
        partitions, settings = TOPICS[name]
        (made,) = broker.exchange(admin_cases.create(name, partitions=partitions, **settings)(broker), 7).topics
        assert made.error_code == 0, made
    batch = data_cases.batch
    for name, *batches in (
        ("read", batch(b"a", b"b"), batch(b"c"), batch(b"d")),
        ("cut", batch(b"a", b"b", b"c")),
        ("squeezed", batch(b"a" * 90, codec=4)),
    ):
        for data in batches if name in topics else ():
            wait_until(lambda: _stores(broker, name, data), f"{name} can be written")
    for number in (0, 1) if "marked" in topics else ():
        wait_until(lambda: _stores(broker, "marked", batch(b"a"), number), "both partitions can be written")
    if "cut" in topics:
        broker.exchange(data_cases.delete_records(("cut", 0, 2))(broker), 2)
    wait_until(lambda: _has_producer_ids(broker), "the first block of producer ids is allocated")
    for group in groups:
        wait_until(lambda: _commits(broker, group), f"group {group} has a coordinator")


def _stores(broker: ComparedBroker, name: str, data: bytes, partition: int = 0) -> bool:
    (topic,) = broker.exchange(data_cases.produce((name, partition, data))(broker), 9).responses
    return bool(topic.partition_responses[0].error_code == 0)


def _has_producer_ids(broker: ComparedBroker) -> bool:
    return bool(broker.exchange(admin_cases.producer_id()(broker), 4).error_code == 0)


def _commits(broker: ComparedBroker, group: str) -> bool:
    # the first FindCoordinator makes Kafka create __consumer_offsets
    broker.exchange(group_cases.find(broker.name(group))(broker), 4)
    (topic,) = broker.exchange(group_cases.commit(group_cases.ONE, group=group)(broker), 8).topics
    return bool(topic.partitions[0].error_code == 0)


@pytest.fixture(scope="module")
def prepared(embedded: Any, kafka: Any) -> Iterator[Pair]:
    prefix = f"w{uuid4().hex[:8]}"
    embedded_broker = ComparedBroker(embedded.bootstrap_servers, prefix)
    with embedded_broker as ours, ComparedBroker(kafka.bootstrap_servers, prefix) as theirs:
        for broker in (ours, theirs):
            prepare(broker)
        yield ours, theirs
        for broker in (ours, theirs):
            # Kafka's tool cannot describe the group without a name, to which a case commits
            (result,) = broker.exchange(DeleteGroupsRequest(groups_names=[""]), 2).results
            assert result.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)


@pytest.fixture
def pair(prepared: Pair) -> Iterator[Pair]:
    prefix = prepared[0].prefix
    yield prepared
    for broker in prepared:
        broker.prefix = prefix


@pytest.mark.parametrize("key", CASES, ids=[APIS[key].name for key in CASES])
def test_responses_are_equal(pair: Pair, key: int) -> None:
    found, prefix = [], pair[0].prefix
    for version in range(SERVED[key].min_version, SERVED[key].max_version + 1):
        for broker in pair:
            broker.version = version
            if key in RECREATED:
                broker.prefix = f"{APIS[key].name}-{version}-{prefix}"
                broker.forget_all()
                prepare(broker, *RECREATED[key])
        for case in CASES[key]:
            if case.since <= version <= case.until:
                ours, theirs = (comparable_response(broker, case.build(broker), version) for broker in pair)
                found += [f"v{version} {case.label}: {line}" for line in differences(ours, theirs)]
    for broker in pair:
        broker.prefix = prefix
        broker.forget_all()
    assert not found, "\n".join(found)


def test_versions_and_features_that_differ_from_kafka_have_a_note(pair: Pair) -> None:
    request = ApiVersionsRequest(client_software_name="compare", client_software_version="1")
    response = pair[1].exchange(request, 5)
    kafka = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    differing = {key for key, api in SERVED.items() if kafka[key] != api.advertised}
    # Kafka does not advertise version 6 of the first, and does not serve all versions of the second; here the last is
    # rejected
    differing |= {ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE, ApiKey.CONSUMER_GROUP_HEARTBEAT}
    assert differing == {key for key, api in SERVED.items() if api.note}
    assert set(kafka) - set(SERVED) == set(NOT_SERVED)
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    for name, feature in FEATURES.items():
        low, high = supported[name]
        assert low <= feature.min_version <= feature.max_version < high == finalized[name], name


def test_markers_of_write_txn_markers_are_checked_alike(pair: Pair) -> None:
    """An idempotent producer of epoch 5, then markers: (producer epoch, coordinator epoch, transaction version)."""
    producer_id = 88_000
    data = data_cases.batch(b"x", producer_id=producer_id, producer_epoch=5, base_sequence=0)
    cases = [(5, 0, 2), (4, 0, 0), (5, 3, 0), (5, 2, 0), (6, 3, 2), (5, 3, 0), (6, 3, 2), (7, 4, 1)]
    found: list[list[int]] = [[], []]
    for broker, errors in zip(pair, found):
        assert _stores(broker, "marked", data)
        for epoch, coordinator_epoch, transaction_version in cases:
            for version in (1, 2):
                request = marker_cases.markers(
                    (producer_id, epoch, coordinator_epoch, (("marked", [0]),)), transaction_version=transaction_version
                )
                (result,) = broker.exchange(request(broker), version).markers
                errors.append(result.topics[0].partitions[0].error_code)
    assert found[0] == found[1]
    assert set(found[0]) == {
        ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }  # fmt: skip


def test_an_illegal_state_of_the_coordinator_is_an_error_response(pair: Pair) -> None:
    """A member id that was returned without an instance id, sent with one: Kafka's coordinator raises."""
    found = []
    for broker in pair:
        pending = broker.exchange(group_cases.join("illegal")(broker), 5)
        assert pending.error_code == ErrorCode.MEMBER_ID_REQUIRED
        static = group_cases.join("illegal", member=pending.member_id, instance="i")
        found.append(comparable_response(broker, static(broker), 5))
    assert found[0] == found[1] and found[0]["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_pending_member_id_that_leaves_starts_a_rebalance(pair: Pair) -> None:
    found = []
    for broker in pair:
        joined = broker.exchange(group_cases.join("pending", instance="i")(broker), 5)
        member, share = joined.member_id, ((joined.member_id, b"share"),)
        assert broker.exchange(group_cases.sync("pending", 1, member, "i", shares=share)(broker), 3).error_code == 0
        pending = broker.exchange(group_cases.join("pending")(broker), 5).member_id
        left = broker.exchange(group_cases.leave("pending", (pending, None))(broker), 3)
        heartbeat = broker.exchange(group_cases.heartbeat("pending", 1, member, "i")(broker), 3)
        found.append((left.members[0].error_code, heartbeat.error_code))
    assert found == [(ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)] * 2


def test_a_tie_of_assignors_is_decided_alike(pair: Pair) -> None:
    names = ("range", "roundrobin", "sticky", "cooperative-sticky", "rr", "uniform")
    found: list[list[str]] = [[], []]
    for number, (one, other) in enumerate(combinations(names, 2)):
        for broker, selected in zip(pair, found):
            group = f"tie-{number}"
            first, second = (tuple((name, b"") for name in order) for order in ((one, other), (other, one)))
            member = broker.exchange(group_cases.join(group, protocols=first, instance="a")(broker), 5).member_id
            broker.send(group_cases.join(group, protocols=second, instance="b")(broker), 5)
            with ComparedBroker(broker.bootstrap_servers, broker.prefix) as connection:
                rejoin = group_cases.join(group, member, first, instance="a")(connection)
                describe = group_cases.describe_groups(group)(connection)
                wait_until(lambda: len(connection.exchange(describe, 4).groups[0].members) == 2, "both members join")
                selected.append(connection.exchange(rejoin, 5).protocol_name)
            broker.reconnect()
    assert found[0] == found[1]


def _exchange(pair: Pair, steps: list[group_cases.Step]) -> tuple[list[Any], list[str]]:
    """Returns the responses of both brokers to a request, and their differences."""
    responses = [broker.exchange(request, at) for broker, (_, request, at) in zip(pair, steps)]
    ours, theirs = (normalize(broker, response) for broker, response in zip(pair, responses))
    return responses, list(differences(ours, theirs))


_LISTED_WITHIN_S = 3  # less than the session timeout of the member
LIVES = [(version, static) for version in range(10) for static in (False, True) if version >= 5 or not static]


@pytest.mark.parametrize("version, static", LIVES)
def test_responses_to_the_requests_of_a_member_are_equal(pair: Pair, version: int, static: bool) -> None:
    found = []
    members = [group_cases.member_requests(broker, version, static) for broker in pair]
    steps = [next(requests) for requests in members]
    while steps:
        responses, different = _exchange(pair, steps)
        if steps[0][1].API_KEY == ApiKey.LIST_GROUPS:
            # lists all groups: the sessions of members that other tests have left end at almost the same time
            deadline_s = time.monotonic() + _LISTED_WITHIN_S
            while different and time.monotonic() < deadline_s:
                responses, different = _exchange(pair, steps)
        found += [f"{steps[0][0]}: {line}" for line in different]
        try:
            steps = [requests.send(response) for requests, response in zip(members, responses)]
        except StopIteration:
            break
    assert not found, "\n".join(found)
