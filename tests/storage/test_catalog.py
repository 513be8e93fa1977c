"""Topic catalog: journal, snapshots, and what a creation of topics writes."""

from __future__ import annotations

import os
import random
import uuid
from pathlib import Path

import pytest
from support.examples import scaled
from support.file_operations import FileOperations
from support.log_broker import LogBroker, append, read
from support.log_requests import create_topic, delete_topic
from support.power_loss import Disk, write_state

from spark_groupsource.broker.storage import catalog
from spark_groupsource.broker.storage.catalog import TopicCatalog, TopicEntry
from spark_groupsource.broker.storage.log_manager import TopicPlan
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import StorageError


def entry(name: str, partition_count: int = 1, **settings: str) -> TopicEntry:
    return TopicEntry(name, uuid.uuid4(), partition_count, settings)


def content(found: TopicCatalog) -> tuple[dict[str, TopicEntry], set[str]]:
    return dict(found.topics), set(found.deleting)


def reopened(directory: Path) -> TopicCatalog:
    found = TopicCatalog(directory)
    found.read()
    return found


def test_changes_are_appended_and_a_start_writes_a_snapshot(tmp_path):
    first = TopicCatalog(tmp_path)
    first.create()
    first.put([entry("old", 2)])
    first.compact()
    snapshot, journal = tmp_path / "topics.json", tmp_path / "topics.journal"
    written = snapshot.read_bytes()
    sizes = []
    for number in range(50):
        first.put([entry(f"t{number}", 1, a="b")])
        sizes.append(journal.stat().st_size)
    assert sizes[40] - sizes[39] == sizes[30] - sizes[29] and snapshot.read_bytes() == written
    first.remove(["old"])
    first.forget_deleted(["old-0"])
    assert first.next_producer_id() == 0
    assert first.deleting == {"old-1"} and len(first.topics) == 50
    second = reopened(tmp_path)
    assert content(second) == content(first) and second.next_producer_id() == 1_000
    second.compact()
    assert journal.stat().st_size == 0 and content(reopened(tmp_path)) == content(first)


def test_changes_that_a_snapshot_has_already_can_be_applied_again(tmp_path):
    """A crash between the new snapshot and the removal of the journal."""
    first = TopicCatalog(tmp_path)
    first.create()
    first.put([entry("t", 2), entry("u")])
    first.remove(["t"])
    first.forget_deleted(["t-0", "t-1"])
    first.put([entry("t", 1)])
    first.remove(["u"])
    journal = (tmp_path / "topics.journal").read_bytes()
    reopened(tmp_path)
    (tmp_path / "topics.journal").write_bytes(journal)
    assert content(reopened(tmp_path)) == content(first)


def test_the_end_of_a_change_that_was_not_acknowledged_is_ignored(tmp_path):
    found = TopicCatalog(tmp_path)
    found.create()
    found.put([entry("t")])
    size = (tmp_path / "topics.journal").stat().st_size
    known = content(found)
    found.put([entry("u")])
    journal = (tmp_path / "topics.journal").read_bytes()
    for damaged in (journal[: size + 30], journal[:size], journal[:-1], journal[: size + 9] + b"\0" * 40 + b"\n"):
        (tmp_path / "topics.journal").write_bytes(damaged)
        assert content(reopened(tmp_path)) == known
        (tmp_path / "topics.json").write_bytes(b'{"version": 1, "next_producer_id": 0, "deleting": [], "topics": {}}')


def test_damage_before_the_last_change_is_an_error(tmp_path):
    found = TopicCatalog(tmp_path)
    found.create()
    found.put([entry("t")])
    found.put([entry("u")])
    journal = tmp_path / "topics.journal"
    journal.write_bytes(journal.read_bytes().replace(b'"t"', b'"x"'))
    with pytest.raises(StorageError, match="topics.journal is corrupt: .*line 1 has a wrong checksum.*Restore"):
        reopened(tmp_path)


@pytest.mark.parametrize("failing", ("pwrite", "fdatasync"))
def test_a_change_that_failed_is_not_found_by_a_start(tmp_path, monkeypatch, failing):
    found = TopicCatalog(tmp_path)
    found.create()
    found.put([entry("t")])

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, failing, fail)
        with pytest.raises(StorageError, match="topics.journal cannot be written: No space left"):
            found.put([entry("u")])
    assert list(found.topics) == list(reopened(tmp_path).topics) == ["t"]
    found.put([entry("v")])
    assert list(found.topics) == list(reopened(tmp_path).topics) == ["t", "v"]


def test_a_power_loss_keeps_every_acknowledged_change(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_MAX_JOURNAL_BYTES", 1_000)  # several snapshots
    operations: list[tuple] = []
    with FileOperations(tmp_path / "data", operations.append) as files:
        (tmp_path / "data").mkdir()
        found = TopicCatalog(tmp_path / "data")
        found.create()
        for number in range(40):
            files.mark(content(found))
            found.put([entry(f"{number}-{item}") for item in range(number % 4 + 1)])
            if number % 3 == 0:
                files.mark(content(found))
                found.remove([f"{number}-0"])
            if number % 6 == 0:
                files.mark(content(found))
                found.forget_deleted([f"{number}-0-0"])
        files.mark(content(found))
    randomness = random.Random(1)
    places = set(randomness.sample(range(len(operations)), scaled(150, 40)))
    disk, known = Disk(), []
    for number, operation in enumerate(operations):
        disk.apply(operation)
        if operation[0] == "mark":
            known.append(operation[1])
        if number in places and known:
            after = tmp_path / f"after-{number}"
            write_state(disk.after_power_loss(randomness), after)
            stored = content(reopened(after))
            following = [each[1] for each in operations[number + 1 :] if each[0] == "mark"][:1]
            assert stored in [known[-1], *following]


def test_topics_of_one_request_are_written_once_and_their_files_by_the_first_record(tmp_path):
    operations: list[tuple] = []
    with FileOperations(tmp_path, operations.append):
        broker = LogBroker(tmp_path)
        operations.clear()
        run_at_once(broker.logs.create_topics([TopicPlan(f"t{number}", 5, {}) for number in range(200)]))
        kinds = [kind for kind, *_ in operations]
        assert kinds.count("flush") == 1 and "mkdir" not in kinds and len(kinds) < 10
        operations.clear()
        append(broker.partition("t7"), b"x")
        assert [path for kind, *path in operations if kind == "mkdir"] == [["t7-0"]]
        assert [path for kind, *path in operations if kind == "flush_directory"] == [["t7-0"], [""]]
        broker.stop()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["t7-0"]
    broker = LogBroker(tmp_path)
    assert len(broker.logs) == 1_000 and not broker.reports
    assert read(broker.partition("t7")) == [b"x"] and read(broker.partition("t8")) == []
    append(broker.partition("t8"), b"y")
    assert read(broker.partition("t8")) == [b"y"]
    broker.stop()


@pytest.mark.slow
def test_topics_that_were_deleted_leave_no_files_and_no_checkpoints(tmp_path):
    broker = LogBroker(tmp_path)
    create_topic(broker.logs, "t", 300, {})
    for number in (0, 150, 299):
        append(broker.logs.partition("t", number), b"x")
    run_at_once(broker.logs.checkpoints.recovery_points())
    assert len(broker.data.recovery_points) == 3
    delete_topic(broker.logs, "t")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()] and not broker.data.recovery_points
    broker.stop()
