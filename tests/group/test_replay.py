"""Replay of records: known bytes, state after loading, sessions after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.group_context import CONFIG, GROUP, SESSION_MS, GroupContext, subscribing

from spark_groupsource.broker.group.group_states import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from spark_groupsource.broker.group.group_store import GroupStore
from spark_groupsource.errors import CorruptRecordError, ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_offset_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
)

COMMITTED_MS = 1_700_000_000_000
KEY = bytes.fromhex("0001 0002 6731 0006 6f7264657273 00000003")
GROUP_KEY = bytes.fromhex("0002 0002 6731")
ORDERS_3 = TopicPartition("orders", 3)


def group_key(group_id: str = GROUP) -> bytes:
    return encode_key(GroupKey(group_id))


def offset_key(partition: int = 0, group_id: str = GROUP, topic: str = "topic") -> bytes:
    return encode_key(OffsetKey(group_id, topic, partition))


def offset_value(offset: int, **how: int) -> bytes:
    return encode_offset_value(OffsetValue(offset, commit_timestamp_ms=COMMITTED_MS, **how))


def member_value(member_id: str = "m", *, subscription: bytes = b"", instance: str | None = None) -> MemberValue:
    return MemberValue(member_id, instance, "client", "/10.0.0.7", 30_000, SESSION_MS, subscription, b"mine")


def stored_group(*members: MemberValue, version: int = 3, protocol_type: str = "consumer") -> bytes:
    leader = members[0].member_id if members else None
    name = "range" if members else None
    return encode_group_value(GroupValue(protocol_type, 5, name, leader, COMMITTED_MS, members), version)


# --- bytes


@pytest.mark.conformance("SM-054", "SM-055", "SM-061", "SM-062")
@pytest.mark.parametrize(
    "hex_value, expected",
    [
        (
            "0001 000000000000002a 0001 6d 0000018bcfe56800 0000018bf3f1ec00",
            OffsetValue(42, -1, "m", COMMITTED_MS, 1_700_604_800_000),
        ),
        ("0003 000000000000002a 00000007 0001 6d 0000018bcfe56800", OffsetValue(42, 7, "m", COMMITTED_MS)),
        ("0004 000000000000002a 00000007 02 6d 0000018bcfe56800 00", OffsetValue(42, 7, "m", COMMITTED_MS)),
    ],
    ids=["v1", "v3", "v4"],
)
def test_offset_records_of_known_bytes(hex_value: str, expected: OffsetValue) -> None:
    context = GroupContext(log=[(KEY, bytes.fromhex(hex_value))])
    assert context.shard.store.offsets == {"g1": {ORDERS_3: expected}}
    assert context.fetch(group="g1") == {ORDERS_3: 42}
    assert context.describe("g1").group_state == "Empty"


def test_group_record_of_known_bytes() -> None:
    value = bytes.fromhex("0003 0008 636f6e73756d6572 00000005 ffff ffff 0000018bcfe56800 00000000")
    group = GroupContext(log=[(GROUP_KEY, value)]).group("g1")
    assert (group.state, group.generation_id, group.protocol_type) == (EMPTY, 5, "consumer")
    assert (group.protocol_name, group.leader_id, group.state_timestamp_ms) == (None, None, COMMITTED_MS)


def test_written_records_have_known_bytes() -> None:
    context = GroupContext()
    context.commit(42, group="g1", topic="orders", partitions=(3,), metadata="m", leader_epoch=7)
    ((key, value),) = context.log
    timestamp = context.clock.timestamp_ms().to_bytes(8, "big")
    assert key == KEY
    assert value == bytes.fromhex("0003 000000000000002a 00000007 0001 6d") + timestamp


@pytest.mark.conformance("SM-029")
@pytest.mark.parametrize("key", [KEY, GROUP_KEY], ids=["offset", "group"])
def test_value_of_an_unknown_version_is_an_error(key: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="version 5"):
        GroupStore().replay(key, b"\x00\x05" + bytes(40))


@pytest.mark.conformance("SM-068", "SM-069")
def test_records_of_unknown_types_are_skipped_and_logged() -> None:
    context = GroupContext(log=[(b"\x00\x03\x00\x01g", b"\x00\x00"), (KEY, offset_value(1)), (b"\x00\x63", None)])
    assert list(context.list()) == ["g1"]
    assert any("skipping 2 records of unknown types" in event.text for event in context.log_lines)


@pytest.mark.conformance("SM-056", "SM-058", "SM-059", "SM-060")
def test_versions_that_are_read_and_written() -> None:
    plain = OffsetValue(7, 3, "m", COMMITTED_MS)
    for version in range(5):
        read = decode_offset_value(encode_offset_value(plain, version))
        assert read == plain._replace(leader_epoch=3 if version >= 3 else -1)
    assert encode_offset_value(plain)[:2] == b"\x00\x03"
    assert stored_group(member_value())[:2] == b"\x00\x03"


@pytest.mark.conformance("SM-063", "SM-064")
def test_unknown_tagged_fields_are_ignored() -> None:
    tagged = bytes.fromhex("01 07 03 616263")  # one field, tag 7, three bytes
    offset = bytes.fromhex("0004 000000000000002a 00000007 02 6d 0000018bcfe56800") + tagged
    group = bytes.fromhex("0004 09 636f6e73756d6572 00000005 00 00 0000018bcfe56800 01") + tagged
    context = GroupContext(log=[(KEY, offset), (GROUP_KEY, group)])
    assert context.fetch(group="g1") == {ORDERS_3: 42}
    assert (context.group("g1").generation_id, context.group("g1").protocol_type) == (5, "consumer")


# --- load


@pytest.mark.conformance("SM-002")
def test_offsets_without_a_group_record_create_an_empty_group() -> None:
    context = GroupContext(log=[(offset_key(0), offset_value(1)), (offset_key(1), offset_value(2))])
    group = context.group()
    assert (group.state, group.generation_id, group.protocol_type) == (EMPTY, 0, None)
    assert context.fetch() == {("topic", 0): 1, ("topic", 1): 2}


@pytest.mark.conformance("SM-003", "SM-027")
def test_empty_group_with_offsets() -> None:
    context = GroupContext(log=[(offset_key(), offset_value(1)), (group_key(), stored_group())])
    group = context.group()
    assert (group.state, group.generation_id, group.protocol_type) == (EMPTY, 5, "consumer")
    assert group.leader_id is group.protocol_name is None
    assert group.subscribed_topics == frozenset()


@pytest.mark.conformance("SM-033")
def test_simple_group_is_stored_and_read_back() -> None:
    context = GroupContext(log=[(group_key(), stored_group(protocol_type=""))])
    assert context.group().protocol_type is None
    assert context.list()[GROUP].protocol_type == ""


@pytest.mark.conformance("SM-013", "SM-019", "SM-023")
def test_last_record_of_a_key_wins_and_null_removes() -> None:
    log = [
        (offset_key(0), offset_value(1)),
        (offset_key(1), offset_value(2)),
        (group_key(), stored_group(member_value())),
        (offset_key(0), offset_value(3)),
        (offset_key(1), None),
        (group_key("other"), stored_group(member_value())),
        (group_key("other"), None),
        (offset_key(9, "never"), None),
    ]
    context = GroupContext(log=log)
    assert context.fetch() == {("topic", 0): 3}
    assert list(context.list()) == [GROUP]
    assert context.state("other") is DEAD


@pytest.mark.conformance("SM-022")
def test_offsets_after_a_group_tombstone_create_an_empty_group() -> None:
    log = [(group_key(), stored_group(member_value())), (group_key(), None), (offset_key(), offset_value(1))]
    group = GroupContext(log=log).group()
    assert (group.state, group.generation_id) == (EMPTY, 0)


@pytest.mark.conformance("JM-132")
def test_records_and_tombstones_may_be_replayed_in_any_order() -> None:
    log: list[tuple[bytes, bytes | None]] = []
    for _ in range(3):
        log += [(group_key(), stored_group()), (group_key(), None), (group_key(), stored_group(member_value()))]
    assert GroupContext(log=log).state() is STABLE


@pytest.mark.conformance("SM-014", "JM-004", "SM-026")
def test_group_with_members_is_stable_at_once() -> None:
    subscription = subscribing("topic")[0][1]
    members = [member_value("a", subscription=subscription), member_value("b", subscription=subscription)]
    context = GroupContext(log=[(offset_key(), offset_value(1)), (group_key(), stored_group(*members))])
    group = context.group()
    assert (group.state, group.generation_id, group.leader_id) == (STABLE, 5, "a")
    assert (group.protocol_type, group.protocol_name) == ("consumer", "range")
    assert group.subscribed_topics == {"topic"}
    assert group.state_timestamp_ms == COMMITTED_MS
    described = context.describe()
    assert {m.member_id: m.member_assignment for m in described.members} == {"a": b"mine", "b": b"mine"}
    assert {m.client_host for m in described.members} == {"/10.0.0.7"}
    assert context.shard.store.offsets[GROUP][TopicPartition("topic", 0)].expire_timestamp_ms == -1


@pytest.mark.conformance("SM-025")
def test_static_member_is_known_by_its_instance() -> None:
    context = GroupContext(log=[(group_key(), stored_group(member_value(instance="one")))])
    assert context.group().static_members == {"one": "m"}
    assert context.heartbeat("other", 5, instance="one") is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.conformance("SM-028", "ST-027")
def test_unparsable_subscriptions_do_not_stop_a_group() -> None:
    context = GroupContext(log=[(group_key(), stored_group(member_value(subscription=b"\x00")))])
    assert context.group().subscribed_topics is None
    assert context.heartbeat("m", 5) is ErrorCode.NONE


@pytest.mark.conformance("SM-030", "SM-031", "JM-004")
@pytest.mark.parametrize("version", range(4))
def test_every_version_of_a_group_record(version: int) -> None:
    context = GroupContext(log=[(group_key(), stored_group(member_value(instance="one"), version=version))])
    group = context.group()
    member = group.members["m"]
    assert group.state_timestamp_ms == (COMMITTED_MS if version >= 2 else -1)
    assert member.rebalance_timeout_ms == (30_000 if version >= 1 else SESSION_MS)
    assert member.group_instance_id == ("one" if version >= 3 else None)


@pytest.mark.conformance("JM-006")
def test_every_loaded_member_gets_a_full_session() -> None:
    context = GroupContext(log=[(group_key(), stored_group(member_value("a"), member_value("b")))])
    for member_id in ("a", "b"):
        assert context.session_deadline(member_id) == context.clock.now_ms() + SESSION_MS
    assert context.heartbeat("a", 5) is ErrorCode.NONE
    context.advance(SESSION_MS - 1)
    context.heartbeat("a", 5)
    context.advance(1)
    assert list(context.group().members) == ["a"]


@pytest.mark.conformance("JM-005")
def test_loaded_group_over_its_limit_is_rebalanced() -> None:
    members = [member_value(f"m{i}") for i in range(3)]
    config = replace(CONFIG, group_max_size=2)
    context = GroupContext(config, log=[(group_key(), stored_group(*members))])
    assert context.state() is PREPARING_REBALANCE
    assert len(context.group().members) == 3
    assert context.heartbeat("m0", 5) is ErrorCode.REBALANCE_IN_PROGRESS


# --- restart


def test_restarted_coordinator_continues_the_generation() -> None:
    before = GroupContext()
    leader, follower = before.stable(2)
    before.commit(7, follower.member_id, 1)
    context = GroupContext(log=before.log)
    assert context.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    assert context.commit(8, follower.member_id, 1) == [ErrorCode.NONE]
    assert context.fetch() == {("topic", 0): 8}
    handle = context.sync(follower.member_id, 1)
    assert handle.response.assignment == follower.member_id.encode()
    again = context.join(follower.member_id)
    assert (again.response.generation_id, again.response.leader) == (1, leader.member_id)


def test_restart_during_a_rebalance_restores_the_stored_generation() -> None:
    before = GroupContext()
    (member,) = before.stable()
    before.join(member.member_id)
    assert (before.state(), before.group().generation_id) == (COMPLETING_REBALANCE, 2)
    context = GroupContext(log=before.log)
    assert (context.state(), context.group().generation_id) == (STABLE, 1)
    assert context.heartbeat(member.member_id, 2) is ErrorCode.ILLEGAL_GENERATION


def test_loaded_member_may_rejoin_with_all_its_protocols() -> None:
    before = GroupContext()
    two = [("range", b"r"), ("sticky", b"s")]
    _, follower = before.stable(2, protocols=two)
    context = GroupContext(log=before.log)
    assert context.join(follower.member_id, protocols=two).is_delayed  # other metadata than what is stored
    assert context.state() is PREPARING_REBALANCE


def test_group_that_was_appended_equals_the_group_of_the_log() -> None:
    context = GroupContext()
    context.stable(3)
    loaded = GroupStore()
    for key, value in context.log:
        loaded.replay(key, value)
    assert loaded.groups == context.shard.store.groups and len(loaded.groups[GROUP].members) == 3
    assert loaded.size_bytes == context.shard.store.size_bytes
