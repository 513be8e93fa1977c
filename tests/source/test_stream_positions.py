"""The value `StreamPositions` and its methods."""

import dataclasses
import json

import pytest
from support.session_fakes import P0, P1, P2

from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.source.offset_json import SourceOffset
from spark_groupsource.source.stream_positions import StreamPositions


def start(positions, reader="r"):
    return SourceOffset(positions, {}, 1, reader)


def positions(**fields):
    return StreamPositions(owned=frozenset({P0, P1}), **fields)


def test_value_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        positions().owned = frozenset()


def test_new_checkpoint_contains_the_acquired_positions():
    before = positions(acquired={P1: 5}, checkpoint="a")
    assert before.checkpointed("a", start({P0: 3})).acquired == {P1: 5}
    assert before.checkpointed("b", start({P0: 3, P1: 7})).acquired == {}


@pytest.mark.parametrize(
    "previous, start_offset, is_new",
    [
        (StreamPositions(), SourceOffset(), True),
        (StreamPositions(), start({}), False),  # a restarted query
        (StreamPositions(), SourceOffset({P0: 3}), False),  # a checkpoint of Spark's Kafka source
        (StreamPositions(is_new=True, checkpoint="{}"), start({}), True),  # owns nothing yet
        (StreamPositions(is_new=True, checkpoint="{}"), start({P0: 3}), False),
    ],
)
def test_query_is_new_until_it_has_owned_a_partition(previous, start_offset, is_new):
    assert previous.checkpointed(json.dumps("next"), start_offset).is_new is is_new


def test_only_owned_checkpointed_positions_that_differ_are_committed():
    value = StreamPositions(owned=frozenset({P0, P1, P2}), acquired={P2: 4}, committed={P0: 3})
    assert value.to_commit(start({P0: 3, P1: 7, P2: 9}), {P0, P1, P2}) == {P1: 7}
    assert value.to_commit(start({P0: 4, P1: 7}), {P0}) == {P0: 4}


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
    before = positions(uncommitted={P0: 5}, is_new=True, checkpoint="a")
    commits = {P2: OffsetAndMetadata(8), P0: None}
    after = before.assigned(frozenset({P0, P2}), {P2: 8}, commits, {"t": "id"}, {"t": 3})
    assert (after.owned, after.acquired, after.committed) == (frozenset({P0, P2}), {P2: 8}, {P2: 8})
    assert (after.uncommitted, after.is_new, after.checkpoint) == ({P0: 5}, True, "a")
    end = after.end_offset({P0: 9, P2: 10}, 4, "r")
    assert end == SourceOffset({P0: 9, P2: 10}, {P2: 8}, 4, "r", {"t": "id"}, {"t": 3})
