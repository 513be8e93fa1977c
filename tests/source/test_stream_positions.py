"""The value `StreamPositions` and its methods."""

import dataclasses

import pytest
from support.session_fakes import P0, P1, P2

from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.positions.offset_json import SourceOffset
from spark_groupsource.source.positions.stream_positions import StreamPositions


def start(positions, reader="r"):
    return SourceOffset(positions, {}, 1, reader)


def positions(**fields):
    return StreamPositions(owned=frozenset({P0, P1}), **fields)


def test_value_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        positions().owned = frozenset()


def test_new_checkpoint_contains_the_acquired_positions():
    before = positions(acquired={P1: 5}, checkpoint=start({P0: 3}))
    assert before.checkpointed(start({P0: 3})).acquired == {P1: 5}
    assert before.checkpointed(start({P0: 3, P1: 7})).acquired == {}


def test_facts_of_the_query_are_those_of_its_first_checkpoint():
    checkpoint = SourceOffset({P0: 3}, {}, 1, "r", {"t": "id"}, {"t": 2}, {P1: 7})
    value = StreamPositions().checkpointed(checkpoint)
    assert (value.topic_ids, value.partition_counts, value.starting) == ({"t": "id"}, {"t": 2}, {P1: 7})
    assert [value.is_added(p) for p in (P1, P2, TopicPartition("u", 0))] == [False, True, True]
    later = value.checkpointed(SourceOffset({P0: 4}, {}, 1, "r", {"t": "id"}, {"t": 9}))
    assert (later.partition_counts, later.starting) == ({"t": 2}, {P1: 7})


def test_facts_of_a_recreated_topic_are_dropped():
    value = positions(topic_ids={"t": "id", "u": "1"}, partition_counts={"t": 2, "u": 1}, starting={P1: 7})
    assert value.with_topic_ids({"t": "id"}) == value
    recreated = value.with_topic_ids({"t": "new"})
    assert (recreated.topic_ids, recreated.starting) == ({"t": "new", "u": "1"}, {})
    assert recreated.is_added(P0) and not recreated.is_added(TopicPartition("u", 0))


def test_only_owned_checkpointed_positions_that_differ_are_committed():
    value = StreamPositions(owned=frozenset({P0, P1, P2}), acquired={P2: 4}, committed={P0: 3})
    assert value.to_commit(start({P0: 3, P1: 7, P2: 9}), {P0, P1, P2}) == {P1: 7}
    assert value.to_commit(start({P0: 4, P1: 7}), {P0}) == {P0: 4}


def test_failed_commits_are_retried_until_the_partition_is_lost():
    """Among them the first position of a partition, which no checkpoint contains."""
    value = positions(acquired={P1: 5}, uncommitted={P1: 5})
    assert value.to_commit(start({P0: 3}), {P0, P1}) == {P0: 3, P1: 5}
    assert value.to_commit(start({P0: 3}), {P0}) == {P0: 3}
    assert value.with_acquired({P1: 0}).to_commit(start({}), {P0, P1}) == {}


def test_result_of_a_commit():
    failed = positions(committed={P0: 3}).commit_failed({P0: 5})
    assert (failed.committed, failed.uncommitted) == ({P0: 3}, {P0: 5})
    assert not failed.is_committed(start({P0: 3}), {P0})
    retried = failed.commit_succeeded({P0: 5})
    assert (retried.committed, retried.uncommitted) == ({P0: 5}, {})
    assert failed.commit_dropped().uncommitted == {}


def test_checkpoint_is_committed_when_the_group_has_every_owned_position():
    value = positions(committed={P0: 3})
    assert value.is_committed(start({P0: 3, P1: 7}), {P0})
    assert not value.is_committed(start({P0: 3, P1: 7}), {P0, P1})


def test_batch_begins_at_acquired_positions_then_at_the_checkpoint():
    assert positions(acquired={P1: 5}).begins(start({P0: 3, P1: 9, P2: 1})) == {P0: 3, P1: 5}


def test_checkpoint_is_rewritten_when_partitions_or_positions_have_changed():
    assert not positions().differs_from(start({P0: 3, P1: 7}))
    assert positions().differs_from(start({P0: 3}))
    assert positions(acquired={P1: 5}).differs_from(start({P0: 3, P1: 7}))
    assert positions().differs_from(start({P0: 3, P1: 7}, reader=""))


def test_assignment_replaces_owned_and_committed_positions():
    before = positions(uncommitted={P0: 5, P1: 4}, checkpoint=start({}))
    before = before.started({"t": "id"}, {"t": 3}, {P0: 1, P1: 2})
    commits = {P2: OffsetAndMetadata(8), P0: None}
    after = before.assigned(frozenset({P0, P2}), {P2: 8}, commits, {P1: 6})
    assert (after.owned, after.acquired, after.committed) == (frozenset({P0, P2}), {P2: 8}, {P2: 8})
    assert (after.uncommitted, after.checkpoint) == ({P0: 5}, start({}))
    end = after.end_offset({P0: 9, P2: 10}, 4, "r")
    assert end == SourceOffset({P0: 9, P2: 10}, {P2: 8}, 4, "r", {"t": "id"}, {"t": 3}, {P1: 2}, {P2: 8}, {P1: 6})
