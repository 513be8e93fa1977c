"""Limits of the state of group members: protocols, metadata, assignments, names."""

from __future__ import annotations

import pytest
from support.commit_requests import commit_topics
from support.raw_broker import RawConnection, create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.wire.messages import JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest

_FULL = 15
_MB = 1 << 20
_CONFIG = {
    "offsets.topic.num.partitions": "1",
    "group.coordinator.max.state.bytes": str(_MB),
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture
def connection():
    with EmbeddedBroker(config=_CONFIG) as broker, RawConnection(broker.bootstrap_servers) as opened:
        create_topic(opened, "t", 400)
        yield opened


def _join(connection, group: str, protocols=(("range", b""),), member_id: str = "", protocol_type: str = "consumer"):
    entry = JoinGroupRequest.JoinGroupRequestProtocol
    request = JoinGroupRequest(
        group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id=member_id,
        protocol_type=protocol_type, protocols=[entry(name=name, metadata=data) for name, data in protocols],
    )  # fmt: skip
    response = connection.call(request, 3)
    while response.error_code == 14:  # the coordinator is loading
        response = connection.call(request, 3)
    return response


def _sync(connection, group: str, joined, size: int) -> int:
    entry = SyncGroupRequest.SyncGroupRequestAssignment
    request = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        assignments=[entry(member_id=joined.member_id, assignment=bytes(size))],
    )  # fmt: skip
    return connection.call(request, 3).error_code


def test_the_names_of_protocols_count(connection):
    protocols = [(f"protocol-{number}", b"") for number in range(1_000)]
    codes = [_join(connection, f"g{number}", protocols).error_code for number in range(8)]
    assert codes[:2] == [0, 0] and codes[-3:] == [_FULL] * 3


def test_a_long_protocol_type_counts(connection):
    codes = [_join(connection, f"g{number}", protocol_type="p" * 30_000).error_code for number in range(50)]
    assert codes[:10] == [0] * 10 and codes[-10:] == [_FULL] * 10


def test_members_that_rejoin_with_more_metadata_exceed_the_limit_by_an_eighth(connection):
    members = {f"g{number}": _join(connection, f"g{number}").member_id for number in range(40)}
    grown = [_join(connection, group, [("range", bytes(60_000))], each).error_code for group, each in members.items()]
    accepted = grown.index(_FULL)
    assert 12 <= accepted <= 20 and {*grown[accepted:]} == {_FULL}
    assert _join(connection, "new").error_code == _FULL
    # nothing is added by these
    first, last = list(members.items())[0], list(members.items())[-1]
    assert _join(connection, first[0], [("range", b"1" * 60_000)], first[1]).error_code == 0
    assert _join(connection, last[0], [("range", bytes(100))], last[1]).error_code == 0


def test_assignments_count(connection):
    joined = {f"g{number}": _join(connection, f"g{number}") for number in range(40)}
    codes = [_sync(connection, group, each, 60_000) for group, each in joined.items()]
    accepted = codes.index(_FULL)
    assert 8 <= accepted <= 20 and {*codes[accepted:]} == {_FULL}
    joined = _join(connection, "g0", [("range", b"1")], joined["g0"].member_id)
    assert _sync(connection, "g0", joined, 60_000) == 0


def test_a_wide_character_in_metadata_counts_for_all_of_them(connection):
    wide = "m" * 4_000 + "\N{GRINNING FACE}"

    def commit(number: int) -> int:
        topics = commit_topics(OffsetCommitRequest, {"t": {number: 1}}, committed_metadata=wide)
        request = OffsetCommitRequest(group_id="g", topics=topics)
        return connection.call(request, 8).topics[0].partitions[0].error_code

    while commit(0) == 14:
        pass
    codes = [commit(number) for number in range(100)]
    assert 40 <= codes.index(_FULL) <= 70
