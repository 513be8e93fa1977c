"""Messages about data loss: the fact first, accepting the loss last."""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any, Callable

import pytest

from spark_groupsource.errors import DataLossError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.source.positions.data_loss import ACCEPT_LOSS, DataLossPolicy

P0, P1, LAST = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2)
RANGE = OffsetRange(P0, 3, 10)
RESET = "groupsource groups reset-offsets --group g"
NEW = "Start the query with a new checkpointLocation"

# method -> a call, the beginning of the message, and what the remedy of a stream in a group contains
REPORTS: dict[str, tuple[Callable[[DataLossPolicy], None], str, str]] = {
    "deleted": (lambda p: p.deleted({P0: 7}), "t-0 was deleted; t-0 was read to offset 7.", f"Correct the.* {NEW}: it"),
    "recreated": (lambda p: p.recreated({P0: 7, P1: 8}), "t-0, t-1 were deleted and recreated;", f"{NEW}: it"),
    "deleted_before_read": (
        lambda p: p.deleted_before_read(RANGE), "t-0 was deleted before offsets [3, 10) were read.", f"{NEW}: it"),
    "recreated_before_read": (
        lambda p: p.recreated_before_read(RANGE), "t-0 was deleted and recreated before offsets [3, 10)", f"{NEW}: it"),
    "truncated_before_read": (
        lambda p: p.truncated_before_read(RANGE, 5), "t-0 was truncated at offset 5 by a new leader",
        f"{NEW}, after a commit of offsets that exist: {RESET} --topic t:0 --to-offset 5 --execute"),
    "truncated": (
        lambda p: p.truncated({P1: 9}, {P1: 2}), "t-1 was truncated or recreated: t-1 ends at 2, not 9.",
        f"{NEW}, after a commit .*: {RESET} --topic t:1 --to-offset 2 --execute"),
    "replaced": (
        lambda p: p.replaced({P0: 9, P1: 9}, {P0: 6, P1: -1}), "t-0, t-1 was truncated by a new leader: t-0 has other",
        f"{NEW}, after a commit .*: {RESET} --topic TOPIC:PARTITION --to-offset OFFSET"),
    "start_deleted": (
        lambda p: p.start_deleted(RANGE, 5), "t-0 begins at offset 5 now; [3, 10) was planned",
        f"Commit the log start offset, from which .*: {RESET} --topic t:0 --to-earliest --execute"),
    "ends_early": (lambda p: p.ends_early(RANGE, 8), "t-0 ends at offset 8; [3, 10) was planned", f"{NEW}: it"),
    "beyond_log_end": (
        lambda p: p.beyond_log_end("endingOffsets", P0, 50, 10), "endingOffsets of t-0 is 50, but the log ends at 10.",
        "Set endingOffsets of t-0 to 10 at most"),
    "added_partition_truncated": (
        lambda p: p.added_partition_truncated({P1: 4, LAST: 5}), "t-1 begins at offset 4, u-2 begins at offset 5",
        f"Commit the log start offset, .*: {RESET} --topic t:1 --topic u:2 --to-earliest --execute"),
    "deleted_before_lookup": (
        lambda p: p.deleted_before_lookup([P0]), "The start offset of t-0 was not found", "Start the query again with"),
}  # fmt: skip


def raised(call: Callable[[DataLossPolicy], None], **facts: Any) -> str:
    with pytest.raises(DataLossError) as found:
        call(DataLossPolicy(fail=True, **facts))
    return str(found.value)


def test_every_report_is_listed() -> None:
    methods = {name for name, _ in inspect.getmembers(DataLossPolicy, inspect.isfunction) if not name.startswith("_")}
    assert methods == set(REPORTS)


@pytest.mark.parametrize("name", REPORTS)
def test_the_fact_is_first_and_the_loss_is_accepted_last(name: str) -> None:
    call, start, remedy = REPORTS[name]
    for facts in ({"group_id": "g"}, {"group_id": "g", "member_id": "m"}, {}, {"is_batch": True}):
        text = raised(call, **facts)
        assert text.startswith("[KAFKA_DATA_LOSS.") and text.partition("] ")[2].startswith(start), text
        before, last = text[: -len(ACCEPT_LOSS)], text[-len(ACCEPT_LOSS) :]
        assert last == ACCEPT_LOSS and "failOnDataLoss" not in before and "\n" not in text
        assert before.rstrip().endswith(".") and ".." not in before
        if "is_batch" in facts:
            assert "checkpoint" not in text and "group" not in text
        elif not facts:
            assert RESET not in text
    with_group = raised(call, group_id="g")
    assert re.search(f" Read by group g\\. .*{remedy}", with_group), with_group


def test_a_reader_is_named_with_its_checkpoint() -> None:
    call = REPORTS["recreated"][0]
    assert " Read by group g with checkpoint /c. Start" in raised(call, group_id="g", checkpoint="/c")
    assert " Read by a query with checkpoint /c. Start" in raised(call, checkpoint="/c")
    assert " Read by member m of group g. Start" in raised(call, group_id="g", member_id="m")


def test_a_batch_whose_start_is_lost_requires_a_commit() -> None:
    assert f"{RESET} --topic t:0 --to-offset 1 --execute" in raised(lambda p: p.ends_early(RANGE, 1), group_id="g")


def test_many_partitions_are_not_listed() -> None:
    begins = {TopicPartition("topic", number): 5 for number in range(2_000)}
    text = raised(lambda p: p.added_partition_truncated(begins), group_id="g")
    assert "and 1,995 more" in text and "--topic TOPIC:PARTITIONS --to-earliest" in text and len(text) < 1_000


@pytest.mark.parametrize("name", REPORTS)
def test_another_cluster_is_the_first_fact(name: str) -> None:
    text = raised(REPORTS[name][0], group_id="g", clusters=lambda: ("A", "B"))
    assert "] The checkpoint is of cluster A, and the brokers are of cluster B: " in text
    assert " Set kafka.bootstrap.servers to the cluster of the checkpoint. Else: " in text
    assert text.endswith(ACCEPT_LOSS)
    for clusters in (("A", "A"), ("", "B"), ("A", "")):
        assert "cluster" not in raised(REPORTS[name][0], group_id="g", clusters=lambda found=clusters: found)


@pytest.mark.parametrize("name", REPORTS)
def test_an_accepted_loss_is_a_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    call, start, _ = REPORTS[name]
    with caplog.at_level(logging.WARNING):
        call(DataLossPolicy(fail=False, group_id="g"))
    (message,) = caplog.messages
    assert message.startswith("[group=g] [KAFKA_DATA_LOSS.") and start in message
    assert message.endswith("Continuing with the available records (failOnDataLoss=false).")
