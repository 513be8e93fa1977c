"""Inputs and outputs of Apache Kafka's own assignor tests, list order included.

The vectors are in `assignor-vectors.json`, or in the file that the environment variable ASSIGNOR_VECTORS names.
"""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path

import pytest
from support.assignor_cases import ASSIGNORS, member, same_racks, topic_partition, topic_partitions

from spark_groupsource.assign.java_order import static_first
from spark_groupsource.assign.rack_info import use_rack_aware_assignment
from spark_groupsource.model import GroupMember, Subscription

_DEFAULT = Path(__file__).with_name("assignor-vectors.json")
VECTORS = json.loads(Path(os.environ.get("ASSIGNOR_VECTORS", _DEFAULT)).read_text(encoding="utf-8"))


def vector_id(vector):
    return vector["id"]


def expected(vector):
    rows = vector["expected"] if "expected" in vector else vector["reference_output"]
    return {member_id: topic_partitions(partitions) for member_id, partitions in rows.items()}


def members_of(vector):
    return [member(row) for row in vector["members"]]


def normalized(vector, assigned):
    """Sorts by topic for range, whose order of topics is not defined; other assignments are compared in order."""
    if vector["assignor"] != "range" or vector["match"] == "ordered":
        return dict(assigned)
    return {member_id: sorted(partitions, key=lambda item: item.topic) for member_id, partitions in assigned.items()}


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=vector_id)
def test_vector(vector):
    assignor_class = ASSIGNORS[vector["assignor"]]
    assignor = assignor_class(prefer_racks=True) if vector.get("force_rack_logic") else assignor_class()
    arguments = vector["partitions"], members_of(vector), vector.get("partition_racks")
    assigned = assignor.assign(*arguments)
    assert normalized(vector, assigned) == normalized(vector, expected(vector))
    if "partitions_transferring_ownership" in vector:
        transfers = vector["partitions_transferring_ownership"]
        expected_transfers = transfers and {topic_partition(item): to for item, to in transfers.items()}
        assert assignor.place(*arguments).transfers == expected_transfers
    for name in vector.get("invariants", ()):
        check = INVARIANTS.get(name.split(":")[0])
        if check is not None:
            check(vector, assigned)


@pytest.mark.parametrize(
    "vector", [vector for vector in VECTORS["vectors"] if "same_result_with_racks_forced" in vector], ids=vector_id
)
def test_forced_racks_do_not_change_the_assignment(vector):
    forced = vector["same_result_with_racks_forced"]
    members = [
        member({**row, "rack": forced["member_racks"].get(row["id"])}) for row in vector["members"]
    ]
    racks = same_racks(vector["partitions"], forced["every_partition_on"])
    assigned = ASSIGNORS[vector["assignor"]](prefer_racks=True).assign(vector["partitions"], members, racks)
    assert normalized(vector, assigned) == normalized(vector, expected(vector))


def settled(vector, assigned):
    """Returns the assignment after further rebalances until no partition is revoked; none for eager assignors."""
    if vector["assignor"] != "cooperative-sticky":
        return assigned
    rows = {row["id"]: row for row in vector["members"]}
    for _ in range(4):
        reporting = [
            member({**rows[member_id], "owned": partitions, "generation": 1})
            for member_id, partitions in assigned.items()
        ]
        again = ASSIGNORS[vector["assignor"]]().assign(vector["partitions"], reporting, vector.get("partition_racks"))
        revoked = any(set(assigned[member_id]) - set(partitions) for member_id, partitions in again.items())
        assigned = again
        if not revoked:
            break
    return assigned


def check_valid_and_balanced(vector, assigned):
    final = settled(vector, assigned)
    topics = {row["id"]: set(row["topics"]) for row in vector["members"]}
    everything = [partition for partitions in final.values() for partition in partitions]
    assert len(everything) == len(set(everything))
    for member_id, partitions in final.items():
        assert {partition.topic for partition in partitions} <= topics[member_id]
    for one, other in combinations(final.values(), 2):
        if abs(len(one) - len(other)) >= 2:
            assert {partition.topic for partition in one}.isdisjoint(partition.topic for partition in other)


def check_fully_balanced(vector, assigned):
    counts = [len(partitions) for partitions in settled(vector, assigned).values()]
    assert max(counts) - min(counts) <= 1


def check_no_direct_move(vector, assigned):
    owned = {row["id"]: set(topic_partitions(row.get("owned", ()))) for row in vector["members"]}
    revoked = {partition for member_id, had in owned.items() for partition in had - set(assigned[member_id])}
    added = {partition for member_id, has in assigned.items() for partition in set(has) - owned[member_id]}
    assert revoked.isdisjoint(added)


INVARIANTS = {
    "valid_and_balanced": check_valid_and_balanced,
    "fully_balanced": check_fully_balanced,
    "cooperative_no_direct_move": check_no_direct_move,
}


@pytest.mark.parametrize("vector", VECTORS["member_data_vectors"], ids=lambda vector: vector["proves"][:40])
def test_member_data(vector):
    row = vector["subscription"]
    subscription = Subscription(
        topics=tuple(row["topics"]),
        user_data=bytes.fromhex(row["user_data_hex"]) if row["user_data_hex"] is not None else None,
        owned_partitions=tuple(topic_partitions(row["owned"])),
        generation_id=-1 if row["generation"] is None else row["generation"],
    )
    data = ASSIGNORS[vector["assignor"]]().member_data(subscription)
    expected_data = vector["expected_member_data"]
    assert sorted(data.partitions) == sorted(topic_partitions(expected_data["partitions"]))
    assert data.generation_id == (-1 if expected_data["generation"] is None else expected_data["generation"])


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["member_order_vectors"] if "members" in vector],
    ids=lambda vector: vector["test"],
)
def test_member_order(vector):
    assert [item.member_id for item in static_first(map(member, vector["members"]))] == vector["expected_order"]


def test_static_members_come_first():
    ids = [str(number) for number in range(100, 200)]
    static = [text for text in ids if int(text) % 3]
    members = [GroupMember(text, Subscription(()), text if text in static else None) for text in ids]
    ordered = [item.member_id for item in static_first(reversed(members))]
    assert ordered == static + [text for text in ids if text not in static]


@pytest.mark.parametrize("row", VECTORS["rack_logic_gate_vectors"]["rows"], ids=str)
def test_use_of_rack_aware_assignment(row):
    racks = row["all_partition_racks"]
    spread = {
        "none": [],
        "ten partitions, each on a,b,c": [{"a", "b", "c"}] * 10,
        "ten partitions, partition i only on rack [a,b,c][i mod 3]": [{"abc"[number % 3]} for number in range(10)],
    }
    partitions = spread.get(row["partitions"], spread["none"])
    if not racks:
        partitions = []
    assert use_rack_aware_assignment(set(row["consumer_racks"]), partitions) == row["use_rack_logic"]
    if row["use_rack_logic_when_forced"] is not None:
        assert use_rack_aware_assignment(set(row["consumer_racks"]), partitions, prefer=True) == row[
            "use_rack_logic_when_forced"
        ]
