"""Properties of the assignors for random groups and Kafka's generated cases."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor_cases import ASSIGNORS, member
from support.examples import scaled

from spark_groupsource.assign import CooperativeStickyAssignor, RangeAssignor, StickyAssignor
from spark_groupsource.model import TopicPartition

TOPICS = ["t0", "t1", "t2", "t3"]
NAMES = sorted(ASSIGNORS)
STICKY = ["sticky", "cooperative-sticky"]

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)
topic_lists = st.lists(st.sampled_from(TOPICS), unique=True, max_size=4)
member_ids = st.lists(st.text("abcxyz0123-é\U0001f600", min_size=1, max_size=6), unique=True, min_size=1, max_size=8)


@st.composite
def groups(draw, equal_subscriptions=st.booleans()):
    """Draws partition counts and rows of members, some of them static and with owned partitions."""
    partitions = draw(partition_counts)
    shared = draw(topic_lists) if draw(equal_subscriptions) else None
    everything = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count + 1)]
    rows = []
    for number, member_id in enumerate(draw(member_ids)):
        rows.append(
            {
                "id": member_id,
                "topics": shared if shared is not None else draw(topic_lists),
                "instance": f"static-{number}" if draw(st.booleans()) else None,
                "owned": draw(st.lists(st.sampled_from(everything), unique=True, max_size=5)),
                "generation": draw(st.integers(-1, 3)),
            }
        )
    return partitions, rows


def run(name, partitions, rows, racks=None):
    """Returns the assignment for members that send the user data of the assignor."""
    return assignor_of(name).assign(partitions, members(name, rows), racks)


def assignor_of(name):
    return ASSIGNORS[name]()


def members(name, rows):
    assignor = assignor_of(name)
    reported = []
    for row in rows:
        data = assignor.user_data(row["topics"], row.get("owned", ()), row.get("generation", -1))
        reported.append(member({**row, "user_data_hex": None if data is None else data.hex()}))
    return reported


def report(rows, assigned, generation):
    """Returns the rows of the same members in the next rebalance."""
    return [{**row, "owned": assigned[row["id"]], "generation": generation} for row in rows]


def settle(name, partitions, rows):
    """Rebalances until the assignment does not change; eager assignors need one rebalance."""
    assigned = run(name, partitions, rows)
    for generation in range(4, 8):
        again = run(name, partitions, report(rows, assigned, generation))
        if again == assigned:
            break
        assigned = again
    return assigned


def check_each_once(partitions, rows, assigned):
    """Checks that every partition of a subscribed topic is assigned to one member, which subscribes to it."""
    assert assigned.keys() == {row["id"] for row in rows}
    topics = {row["id"]: row["topics"] for row in rows}
    for member_id, items in assigned.items():
        assert all(item.topic in topics[member_id] for item in items)
    subscribed = {topic for row in rows for topic in row["topics"]}
    expected = {
        TopicPartition(topic, number) for topic in subscribed for number in range(partitions.get(topic, 0))
    }
    assert Counter(item for items in assigned.values() for item in items) == Counter(expected)


def check_balanced(assigned):
    """Checks that two members whose counts differ by two or more have no topic in common."""
    for one, other in combinations(assigned.values(), 2):
        if abs(len(one) - len(other)) >= 2:
            assert {item.topic for item in one}.isdisjoint(item.topic for item in other)


@pytest.mark.parametrize("name", NAMES)
@given(group=groups())
def test_every_partition_is_assigned_once(name, group):
    check_each_once(*group, settle(name, *group))


@pytest.mark.parametrize("name", ["roundrobin", *STICKY])
@given(group=groups(equal_subscriptions=st.just(True)))
def test_counts_differ_by_at_most_one_with_equal_subscriptions(name, group):
    counts = [len(items) for items in settle(name, *group).values()]
    assert max(counts) - min(counts) <= 1


@given(group=groups())
def test_range_assigns_consecutive_partitions_and_balances_each_topic(group):
    partitions, rows = group
    assigned = run("range", partitions, rows)
    for topic in partitions:
        ranges = [
            [item.partition for item in assigned[row["id"]] if item.topic == topic]
            for row in rows
            if topic in row["topics"]
        ]
        assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in ranges if numbers)
        counts = [len(numbers) for numbers in ranges] or [0]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", STICKY)
@given(group=groups())
def test_sticky_results_are_balanced(name, group):
    check_balanced(settle(name, *group))


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@given(group=groups(), seed=st.integers(0, 99))
def test_order_of_members_does_not_change_the_assignment(name, group, seed):
    partitions, rows = group
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert run(name, partitions, rows) == run(name, partitions, shuffled)


@pytest.mark.parametrize("name", STICKY)
@given(group=groups(), seed=st.integers(0, 99))
def test_order_of_members_does_not_change_the_counts(name, group, seed):
    partitions, rows = group
    fresh = [{**row, "owned": [], "generation": -1} for row in rows]
    shuffled = random.Random(seed).sample(fresh, len(fresh))
    counts = [sorted(map(len, run(name, partitions, order).values())) for order in (fresh, shuffled)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", STICKY)
@given(group=groups())
def test_unchanged_group_keeps_its_assignment(name, group):
    partitions, rows = group
    assigned = settle(name, partitions, rows)
    again = run(name, partitions, report(rows, assigned, 9))
    assert {member_id: set(items) for member_id, items in again.items()} == {
        member_id: set(items) for member_id, items in assigned.items()
    }


@pytest.mark.parametrize("name", STICKY)
@given(group=groups(equal_subscriptions=st.just(True)), data=st.data())
def test_members_keep_their_partitions_up_to_the_quota(name, group, data):
    """With equal subscriptions, after a member joined or left."""
    partitions, rows = group
    before = settle(name, partitions, rows)
    if data.draw(st.booleans()) and len(rows) > 1:
        after_rows = rows[1:]
    else:
        after_rows = rows + [{"id": "newcomer", "topics": rows[0]["topics"]}]
    reporting = [row for row in after_rows if row["id"] in before]
    reporting = report(reporting, before, 9) + [row for row in after_rows if row["id"] not in before]
    after = run(name, partitions, reporting)
    total = sum(map(len, before.values()))
    for row in after_rows:
        had = set(before.get(row["id"], ()))
        assert len(had & set(after[row["id"]])) >= min(len(had), total // len(after_rows))


@given(group=groups())
def test_cooperative_assigns_no_partition_that_another_member_owns(group):
    partitions, rows = group
    assigned = run("cooperative-sticky", partitions, rows)
    revoked = {item for row in rows for item in set(row["owned"]) - set(assigned[row["id"]])}
    added = {item for row in rows for item in set(assigned[row["id"]]) - set(row["owned"])}
    assert revoked.isdisjoint(added)


@settings(max_examples=scaled(50))
@given(group=groups(), data=st.data())
def test_properties_hold_with_racks(group, data):
    partitions, rows = group
    rack = st.sampled_from("abc")
    racks = {
        topic: [data.draw(st.lists(rack, unique=True, max_size=2)) for _ in range(count)]
        for topic, count in partitions.items()
    }
    placed = [{**row, "owned": [], "generation": -1, "rack": data.draw(st.none() | rack)} for row in rows]
    for name in NAMES:
        assigned = run(name, partitions, placed, racks)
        check_each_once(partitions, placed, assigned)
        if name in STICKY:
            check_balanced(assigned)


def test_partitions_are_assigned_to_members_in_their_racks():
    racks = {"t": [["a"], ["b"], ["a"], ["b"]]}
    rows = [{"id": "one", "topics": ["t"], "rack": "b"}, {"id": "two", "topics": ["t"], "rack": "a"}]
    for assignor in (RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor()):
        assigned = assignor.assign({"t": 4}, list(map(member, rows)), racks)
        assert {item.partition for item in assigned["one"]} == {1, 3}


def random_rows(rng, count, topics, max_topics):
    return [
        {"id": f"consumer{number}", "topics": sorted(rng.sample(topics, rng.randint(1, max_topics)))}
        for number in range(count)
    ]


@pytest.mark.parametrize("name", STICKY)
@pytest.mark.parametrize("seed", range(5))
def test_reassignment_with_random_subscriptions_and_changes(name, seed):
    """Kafka's testReassignmentWithRandomSubscriptionsAndChanges."""
    rng = random.Random(seed)
    topics = [f"t{number}" for number in range(rng.randint(10, 19))]
    partitions = {topic: number + 1 for number, topic in enumerate(topics)}
    rows = random_rows(rng, rng.randint(20, 39), topics, len(topics))
    first = run(name, partitions, rows)
    check_balanced(first)
    changed = [
        {**row, "topics": sorted(rng.sample(topics, rng.randint(1, len(topics))))} for row in rows
    ]
    reporting = report(changed, first, 1)
    second = run(name, partitions, reporting)
    check_no_two_way_moves(reporting, second)
    final = settle(name, partitions, reporting)
    check_each_once(partitions, rows=changed, assigned=final)
    check_balanced(final)


@pytest.mark.parametrize("name", STICKY)
def test_reassignment_after_many_members_left(name):
    """Kafka's testLargeAssignmentWithMultipleConsumersLeavingAndRandomSubscription, with a quarter of its size."""
    rng = random.Random(7)
    topics = [f"t{number}" for number in range(20)]
    partitions = {topic: rng.randint(1, 10) for topic in topics}
    rows = random_rows(rng, 50, topics, 10)
    first = settle(name, partitions, rows)
    staying = report(rng.sample(rows[1:], 38), first, 1)
    second = run(name, partitions, staying)
    check_no_two_way_moves(staying, second)
    final = settle(name, partitions, staying)
    check_each_once(partitions, staying, final)
    check_balanced(final)


@pytest.mark.parametrize("name", STICKY)
def test_one_member_with_another_subscription(name):
    """Kafka's testLargeAssignmentAndGroupWithNonEqualSubscription, with a smaller size."""
    topics = [f"t{number}" for number in range(20)]
    partitions = dict.fromkeys(topics, 50)
    rows = [{"id": f"consumer{number}", "topics": topics} for number in range(99)] + [{"id": "odd", "topics": ["t0"]}]
    first = run(name, partitions, rows)
    again = run(name, partitions, report(rows, first, 1))
    assert {member_id: set(items) for member_id, items in first.items()} == {
        member_id: set(items) for member_id, items in again.items()
    }
    assert {len(items) for items in first.values()} == {10}


@pytest.mark.parametrize("name", STICKY)
def test_members_that_subscribe_to_different_halves_of_the_topics(name):
    """Kafka's testAssignmentAndGroupWithNonEqualSubscriptionNotTimeout, with a smaller size."""
    topics = [f"t{number:02d}" for number in range(20)]
    partitions = dict.fromkeys(topics, 20)
    rows = [
        {"id": f"consumer{number}", "topics": topics[10:] if number % 4 else topics[:10]} for number in range(40)
    ]
    final = settle(name, partitions, rows)
    check_each_once(partitions, rows, final)
    assert {len(final[row["id"]]) for row in rows[::4]} == {20}
    assert {len(final["consumer1"]), len(final["consumer39"])} <= {6, 7}


def check_no_two_way_moves(rows, assigned):
    """Checks that partitions of a topic do not move in both directions between two members."""
    before = {item: row["id"] for row in rows for item in row["owned"]}
    moves = {
        (item.topic, before[item], member_id)
        for member_id, items in assigned.items()
        for item in items
        if before.get(item, member_id) != member_id
    }
    assert not any((topic, destination, source) in moves for topic, source, destination in moves)
