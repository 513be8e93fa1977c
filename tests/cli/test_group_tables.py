"""Group tables are identical to the captured output of Kafka 4.3."""

from __future__ import annotations

import pytest

from spark_groupsource.cli.group_tables import (
    list_table,
    members_table,
    offsets_table,
    state_note,
    state_table,
)
from spark_groupsource.client.admin import GroupDescription, GroupListing, MemberDescription
from spark_groupsource.model import Node, OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.offsets.lag import assignment_text, lag_rows

NODE = Node(1, "127.0.0.1", 41013)
STATIC = MemberDescription(
    "inst-be46f05c-bcee-4719-b22f-e93caae9042b",
    "inst",
    "consumer-g1-inst",
    "/127.0.0.1",
    None,
    (TopicPartition("flights", 1), TopicPartition("flights", 0)),
)
DYNAMIC = MemberDescription(
    "consumer-g1-1-395eef5f-0a75-43fc-ad1d-f6faf380a47d",
    None,
    "consumer-g1-1",
    "/127.0.0.1",
    None,
    (TopicPartition("flights", 2),),
)
STABLE = GroupDescription("g1", "Stable", "consumer", "range", (DYNAMIC, STATIC), NODE)
REBALANCING = GroupDescription("g1", "PreparingRebalance", "consumer", "", (STATIC,), NODE)
EMPTY = GroupDescription("g1", "Empty", "consumer", "", (), NODE)
COMMITTED = {TopicPartition("flights", n): OffsetAndMetadata(10) for n in range(3)}
ENDS = dict.fromkeys(COMMITTED, 10)

# captured from ConsumerGroupCommand of Kafka 4.3.0
OFFSETS_REBALANCING = """
GROUP           TOPIC           PARTITION  LEADER-EPOCH    CURRENT-OFFSET  LOG-END-OFFSET  LAG             \
CONSUMER-ID                               HOST            CLIENT-ID
g1              flights         0          -               10              10              0               \
inst-be46f05c-bcee-4719-b22f-e93caae9042b /127.0.0.1      consumer-g1-inst
g1              flights         1          -               10              10              0               \
inst-be46f05c-bcee-4719-b22f-e93caae9042b /127.0.0.1      consumer-g1-inst
g1              flights         2          -               10              10              0               \
-                                         -               -
"""
MEMBERS_REBALANCING = """
GROUP           CONSUMER-ID                               GROUP-INSTANCE-ID HOST            CLIENT-ID        \
#PARTITIONS     CURRENT-EPOCH   CURRENT-ASSIGNMENT   TARGET-EPOCH    TARGET-ASSIGNMENT   \n\
g1              inst-be46f05c-bcee-4719-b22f-e93caae9042b inst              /127.0.0.1      consumer-g1-inst \
2               -               flights:0,1          -               -                   \n\
"""
STATE_REBALANCING = """
GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS
g1              127.0.0.1:41013  (1)      -                    PreparingRebalance   1
"""


def test_offsets_table() -> None:
    assert offsets_table(REBALANCING, lag_rows(REBALANCING, COMMITTED, ENDS), verbose=True) == OFFSETS_REBALANCING


def test_members_table() -> None:
    assert members_table(REBALANCING, verbose=True) == MEMBERS_REBALANCING


def test_state_table() -> None:
    assert state_table(REBALANCING) == STATE_REBALANCING


def test_instance_id_column_is_shown_for_static_members_only() -> None:
    assert "GROUP-INSTANCE-ID" in members_table(STABLE)
    assert "GROUP-INSTANCE-ID" not in members_table(STABLE._replace(members=(DYNAMIC,)))


def test_members_are_sorted_by_partitions_and_unassigned_partitions_are_last() -> None:
    committed = {**COMMITTED, TopicPartition("alpha", 0): OffsetAndMetadata(1)}
    rows = lag_rows(STABLE, committed, ENDS)
    assert [(str(row.topic_partition), row.member) for row in rows] == [
        ("flights-0", STATIC),
        ("flights-1", STATIC),
        ("flights-2", DYNAMIC),
        ("alpha-0", None),
    ]


@pytest.mark.parametrize(
    ("committed", "end", "lag"), [(7, 10, 3), (7, None, None), (None, 10, None), (12, 10, -2), (0, 0, 0)]
)
def test_lag_is_unknown_if_either_offset_is(committed: int | None, end: int | None, lag: int | None) -> None:
    tp = TopicPartition("flights", 2)
    (row,) = lag_rows(
        STABLE._replace(members=(DYNAMIC,)),
        {} if committed is None else {tp: OffsetAndMetadata(committed)},
        {} if end is None else {tp: end},
    )
    assert row.lag == lag
    assert offsets_table(STABLE, [row]).splitlines()[2].split()[5] == ("-" if lag is None else str(lag))


def test_leader_epoch_is_shown() -> None:
    rows = lag_rows(EMPTY, {TopicPartition("flights", 0): OffsetAndMetadata(1, leader_epoch=4)}, {})
    assert offsets_table(EMPTY, rows, verbose=True).splitlines()[2].split()[3] == "4"


def test_tables_of_an_empty_group() -> None:
    assert offsets_table(EMPTY, []) == ""
    assert len(members_table(EMPTY).splitlines()) == 2
    assert assignment_text(()) == ""


def test_assignment_text_of_several_topics() -> None:
    assert assignment_text([TopicPartition("b", 1), TopicPartition("a", 10), TopicPartition("a", 2)]) == "a:2,10;b:1"


def test_state_notes() -> None:
    assert state_note(STABLE) is None
    assert state_note(EMPTY) == "\nConsumer group 'g1' has no active members."
    assert state_note(REBALANCING) == "\nWarning: Consumer group 'g1' is rebalancing."


def test_columns_widen_for_long_names() -> None:
    group = STABLE._replace(group_id="a-group-of-a-rather-long-name")
    for table in (offsets_table(group, lag_rows(group, COMMITTED, ENDS)), members_table(group), state_table(group)):
        header, line = table.splitlines()[1:3]
        second = header.split()[1]
        assert line[header.index(second) - 1] == " " and line[header.index(second)] != " "


def test_list_table() -> None:
    listed = [GroupListing("g1", "consumer", "Stable", "classic", NODE), GroupListing("g2", "", "", "", NODE)]
    assert list_table(listed, False, False) == "g1\ng2\n"
    assert list_table(listed[:1], True, False) == (
        "GROUP                     TYPE                \ng1                        Classic             \n"
    )
    assert list_table(listed[1:], True, True).splitlines()[1].split() == ["g2", "-", "-"]
    # the column is ten characters wider than the longest group id
    long_id = listed[0]._replace(group_id="g" * 40)
    assert list_table([long_id], False, True).splitlines()[0] == "GROUP".ljust(51) + "STATE".ljust(20)


def test_names_with_control_characters_are_escaped() -> None:
    name = "g\n\x1b[2J"
    group = GroupDescription(name, "Stable", "consumer", "range", (DYNAMIC._replace(client_id=name),), NODE)
    rows = lag_rows(group, COMMITTED, ENDS)
    listed = list_table([GroupListing(name, "consumer", "Stable", "classic", NODE)], with_type=False, with_state=False)
    for text in (listed, offsets_table(group, rows), members_table(group), state_table(group)):
        assert "g\\n\\x1b[2J" in text and "\x1b" not in text
