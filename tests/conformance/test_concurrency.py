"""Kafka's GroupCoordinatorConcurrencyTest on the embedded broker.

Every member is a thread with its own connection and waits for each response: a lost response fails the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from support.commit_requests import commit_topics
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

GROUPS = 5
MEMBERS = 4
MAX_SIZE = 6
CONFIG = {
    "group.initial.rebalance.delay.ms": "20",
    "group.min.session.timeout.ms": "100",
    "group.max.size": str(MAX_SIZE),
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
TOPIC = "t"


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """Bootstrap servers of a broker with group.max.size=6."""
    with EmbeddedBroker(config=CONFIG) as running:
        create_topic(running.bootstrap_servers, TOPIC, 1)
        yield running.bootstrap_servers


class Member:
    """A group member that sends single requests."""

    def __init__(self, bootstrap_servers: str, group_id: str, rebalance_timeout_ms: int = 10_000) -> None:
        (address,) = parse_addresses(bootstrap_servers)
        self._connection = BrokerConnection(
            address, client_id="c", security=SecuritySettings(), clock=SystemClock(), request_timeout_ms=30_000
        )
        self.group_id = group_id
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation_id = -1
        self.group_size = 0
        self._members: list[str] = []

    def close(self) -> None:
        self._connection.close()

    def join(self) -> int:
        """Sends JoinGroup; keeps the members of the response, which only the leader gets."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[protocol],
            reason=None,
        )
        response = self._connection.call(request)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self.member_id = response.member_id
            response = self._connection.call(request)
        if response.error_code == ErrorCode.NONE:
            self.member_id, self.generation_id = response.member_id, response.generation_id
            self._members = [row.member_id for row in response.members]
        elif response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            self.member_id = ""
        return int(response.error_code)

    def sync(self) -> int:
        """Sends SyncGroup; the assignment of each member is the size of the group."""
        size = str(len(self._members)).encode()
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=size)
            for member_id in self._members
        ]
        response = self._connection.call(
            SyncGroupRequest(**self._fields(), protocol_type="consumer", protocol_name="range", assignments=assignments)
        )
        self.group_size = int(bytes(response.assignment) or b"0")
        return int(response.error_code)

    def heartbeat(self) -> int:
        return int(self._connection.call(HeartbeatRequest(**self._fields())).error_code)

    def is_rebalancing(self) -> bool:
        return self.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS

    def commit(self) -> int:
        fields = self._fields()
        request = OffsetCommitRequest(
            generation_id_or_member_epoch=fields.pop("generation_id"),
            topics=commit_topics(OffsetCommitRequest, {TOPIC: {0: 1}}),
            **fields,
        )
        return int(self._connection.call(request).topics[0].partitions[0].error_code)

    def leave(self) -> int:
        row = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=None, reason=None)
        response = self._connection.call(
            LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id, members=[row])
        )
        self.member_id, self.generation_id = "", -1
        return int(response.error_code or response.members[0].error_code)

    def _fields(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": None,
        }


class TransactionalMember(Member):
    """Commits each offset in a new transaction."""

    def commit(self) -> int:
        transactional_id = f"{self.group_id}-{self.member_id}"
        created = self._connection.call(
            InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=30_000, producer_id=-1, producer_epoch=-1
            )
        )
        assert created.error_code == ErrorCode.NONE
        producer = {
            "transactional_id": transactional_id,
            "producer_id": created.producer_id,
            "producer_epoch": created.producer_epoch,
        }
        added = self._connection.call(AddOffsetsToTxnRequest(group_id=self.group_id, **producer))
        assert added.error_code == ErrorCode.NONE
        topics = commit_topics(TxnOffsetCommitRequest, {TOPIC: {0: 1}})
        request = TxnOffsetCommitRequest(topics=topics, **self._fields(), **producer)
        code = int(self._connection.call(request).topics[0].partitions[0].error_code)
        ended = self._connection.call(EndTxnRequest(committed=code == ErrorCode.NONE, **producer))
        assert ended.error_code == ErrorCode.NONE
        return code


def in_parallel(count: int, run: Callable[[int], None]) -> None:
    """Runs `run(0)` to `run(count - 1)` in threads; raises the exception of the first one that failed."""
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(run, number) for number in range(count)]:
            future.result(60)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Member, marks=pytest.mark.conformance("MI-001")),
        pytest.param(TransactionalMember, marks=pytest.mark.conformance("MI-002")),
    ],
)
@pytest.mark.slow
def test_many_groups_join_sync_heartbeat_commit_and_leave_concurrently(broker: str, kind: type[Member]) -> None:
    names = [f"good-{uuid4().hex[:8]}" for _ in range(GROUPS)]
    barriers = [threading.Barrier(MEMBERS, timeout=30) for _ in names]

    def settle(member: Member) -> None:
        """Joins until all members of the group are in one generation."""
        while True:
            assert member.join() == ErrorCode.NONE
            code = member.sync()
            assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
            if code == ErrorCode.NONE and member.group_size == MEMBERS:
                return
            if code == ErrorCode.NONE:
                wait_until(member.is_rebalancing, "a rebalance for the other members")

    def run(number: int) -> None:
        barrier = barriers[number % GROUPS]
        member = kind(broker, names[number % GROUPS])
        for _ in range(3):
            settle(member)
            barrier.wait()
            assert [member.heartbeat(), member.commit(), member.heartbeat()] == [ErrorCode.NONE] * 3
            barrier.wait()
            assert member.leave() == ErrorCode.NONE
            barrier.wait()
        member.close()

    in_parallel(GROUPS * MEMBERS, run)


ALLOWED = {
    "join": {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID},
    "sync": {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    },
    "heartbeat": {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    },
    "commit": {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    },
    "leave": {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID},
}


@pytest.mark.conformance("MI-003")
@pytest.mark.slow
def test_operations_in_random_order_all_get_responses(broker: str) -> None:
    names = [f"random-{uuid4().hex[:8]}" for _ in range(GROUPS)]

    def run(number: int) -> None:
        rng = Random(number)
        # a short rebalance timeout: members that do not rejoin are removed early
        member = Member(broker, names[number % GROUPS], rebalance_timeout_ms=100)
        for _ in range(40):
            operation = rng.choice(list(ALLOWED))
            code = getattr(member, operation)()
            assert code in ALLOWED[operation], f"{operation} returned {ErrorCode(code).name}"
        member.close()

    in_parallel(GROUPS * MEMBERS, run)


@pytest.mark.conformance("MI-004")
def test_concurrent_joins_never_exceed_group_max_size(broker: str) -> None:
    name = f"full-{uuid4().hex[:8]}"
    sizes: list[int] = []
    accepted: list[str] = []
    candidates = 2 * MAX_SIZE
    barrier = threading.Barrier(candidates, timeout=30)

    def run(number: int) -> None:
        member = Member(broker, name)
        barrier.wait()
        while True:
            code = member.join()
            assert code in (ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED)
            if code == ErrorCode.GROUP_MAX_SIZE_REACHED:
                break
            code = member.sync()
            sizes.append(member.group_size)
            if code == ErrorCode.NONE and member.group_size == MAX_SIZE:
                accepted.append(member.member_id)
                break
            if code == ErrorCode.NONE:
                wait_until(member.is_rebalancing, "a rebalance for the other members")
        member.close()

    in_parallel(candidates, run)
    assert max(sizes) == MAX_SIZE and len(set(accepted)) == MAX_SIZE
