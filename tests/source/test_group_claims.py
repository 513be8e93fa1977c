"""Readers of one application that share a group and a topic."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from support.source_process import SourceProcess
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.process.driver_process import lock_directory, process_identity, remove_stale_directories
from spark_groupsource.source.process.file_locks import is_locked, lock_shared
from spark_groupsource.source.process.group_claims import (
    GroupClaim,
    claim_group,
    record_first_record,
    record_query,
    recorded_queries,
    recorded_query,
)

CLAIM = GroupClaim("g", "cluster", ("orders",), None, False, 1, 0)


@pytest.fixture
def claims():
    """Claims that the test has made; released at its end."""
    made = []
    yield made
    for claim in made:
        claim.release()


@pytest.mark.parametrize(
    "changes, shared",
    [
        ({}, ["orders"]),
        ({"group_id": "h"}, []),
        ({"cluster_id": "another"}, []),
        ({"topics": ("payments",)}, []),
        ({"topics": ("orders", "payments")}, ["orders"]),
        ({"topics": (), "pattern": "or.*"}, ["orders"]),
        ({"topics": (), "pattern": "rd"}, ["orders"]),
        ({"topics": (), "pattern": "^rd"}, []),
        ({"is_split_allowed": True}, ["orders"]),
    ],
)
def test_readers_share_the_topics_of_one_group(changes, shared):
    other = replace(CLAIM, **changes)
    assert CLAIM.shared_topics(other) == shared == other.shared_topics(CLAIM)


def test_split_is_allowed_if_both_readers_allow_it():
    allowed = replace(CLAIM, is_split_allowed=True)
    assert not allowed.shared_topics(allowed)


def test_second_reader_is_refused_with_the_name_of_the_first(tmp_path, claims, monkeypatch):
    clock = ManualClock()
    claims.append(claim_group(tmp_path, CLAIM, clock))
    with pytest.raises(ConfigurationError) as refused:
        claim_group(tmp_path, CLAIM, clock)
    assert clock.now_ms() == 5_000
    assert str(refused.value).startswith(
        "Joining group 'g' failed: another query, load() or side of a self-join of this application (reader process "
        "1, started "
    )
    assert str(refused.value).endswith(
        ") reads orders in the group, and each record would be delivered to one of the two only. Give each query and "
        "each load() its own kafka.group.id (in a self-join, one load() for each side), or set option "
        "splitBetweenQueries to true in both."
    )
    properties = {"spark.job.description": "late orders<br/>id = 7f<br/>batch = 3", "sql.streaming.queryId": "7f"}
    context = type("Context", (), {"getLocalProperty": lambda self, key: properties.get(key)})()
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)
    record_query(claims[0].query_file)
    with pytest.raises(ConfigurationError, match=r"query 'late orders' of this application \(id 7f, started "):
        claim_group(tmp_path, CLAIM, clock)


def test_first_record_is_recorded_before_and_after_the_query(tmp_path, claims, monkeypatch):
    """Tasks of several processes write both, in any order."""
    clock = ManualClock()
    claims.append(claim_group(tmp_path, CLAIM, clock))
    file = claims[0].query_file
    record_first_record(file, 3, 1_000)
    with pytest.raises(ConfigurationError, match="another query, load"):
        claim_group(tmp_path, CLAIM, clock)
    properties = {"spark.job.description": "orders<br/>id = 7f", "sql.streaming.queryId": "7f"}
    context = type("Context", (), {"getLocalProperty": lambda self, key: properties.get(key)})()
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)
    record_query(file)
    record_first_record(file, 2, 2_000)
    assert recorded_query(file) == {"name": "orders", "id": "7f", "batch": None, "first_record": [3, 1_000]}
    record_first_record(file, 4, 3_000)
    assert recorded_query(file)["first_record"] == [4, 3_000]
    claims.pop().release()
    assert {path.name for path in tmp_path.iterdir()} == {"claims"}


def test_task_on_another_machine_records_no_query(tmp_path):
    record_query(str(tmp_path / "missing" / "query.x"))
    assert not list(tmp_path.iterdir())


def test_group_can_be_claimed_while_its_reader_is_being_stopped(tmp_path, claims):
    first = claim_group(tmp_path, CLAIM)

    class StoppingClock(ManualClock):
        def sleep_ms(self, duration_ms):
            super().sleep_ms(duration_ms)
            first.release()

    claims.append(claim_group(tmp_path, CLAIM, StoppingClock()))


def test_listing_the_queries_keeps_a_claim_that_is_being_made(tmp_path, claims, monkeypatch):
    def lock_after_listing(path):
        assert recorded_queries(tmp_path) == {}
        return lock_shared(path)

    monkeypatch.setattr("spark_groupsource.source.process.group_claims.lock_shared", lock_after_listing)
    claims.append(claim_group(tmp_path, CLAIM))
    with pytest.raises(ConfigurationError):
        claim_group(tmp_path, CLAIM, ManualClock())


def test_claim_ends_with_its_process(tmp_path, claims):
    program = (
        "import sys; from pathlib import Path; from spark_groupsource.source.process.group_claims import *; "
        "c = claim_group(Path(sys.argv[1]), GroupClaim('g', 'cluster', ('orders',), None, False, 1, 0)); "
        "print('claimed', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout.readline() == "claimed\n"
        with pytest.raises(ConfigurationError):
            claim_group(tmp_path, CLAIM, ManualClock())
        reader.kill()
    claims.append(claim_group(tmp_path, CLAIM, ManualClock()))
    assert len(list(tmp_path.glob("claim.*"))) == 1


def test_directory_is_stale_when_no_process_holds_it():
    kind = f"test{os.getpid()}"
    path, lock = lock_directory(f"{kind}-1")
    remove_stale_directories(kind)
    assert path.exists() and is_locked(path)
    lock.release()
    remove_stale_directories(kind)
    assert not path.exists() and not is_locked(path)


def test_removed_directory_is_not_held(tmp_path):
    path = tmp_path / "directory"
    path.mkdir()
    lock = lock_shared(path)
    path.rmdir()
    path.mkdir()
    assert not is_locked(path)
    lock.release()
    with pytest.raises(FileNotFoundError):
        lock_shared(tmp_path / "missing")


def test_process_identity_is_that_of_one_process():
    first = subprocess.Popen(["sleep", "600"])
    identity = process_identity(first.pid)
    assert identity and identity == process_identity(first.pid) != process_identity(os.getpid())
    first.kill()
    # a zombie has ended
    wait_until(lambda: not process_identity(first.pid), "the process has ended")
    first.wait()
    assert not process_identity(first.pid)


@pytest.mark.slow
@pytest.mark.one_cluster
def test_second_source_of_an_application_is_refused(cluster, topic, group, tmp_path):
    servers = cluster.bootstrap_servers
    names = [topic, f"{topic}-other"]
    for name in names:
        create_topic(servers, name)
        produce(servers, name, [(0, None, b"v")])

    started = []

    def start(name):
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(SourceProcess(directory, servers, name, group))
        return started[-1]

    try:
        first = start(topic)
        end = first.latest_offset()
        first.call({}, end)
        first.result()
        assert first.latest_offset(end) == end
        second = start(topic)
        second.call()
        assert second.result() is None  # the process has ended
        assert f"Joining group '{group}' failed" in second.log
        # another topic in the group
        other = start(names[1])
        assert other.latest_offset()
        other.stop()
        # stopped and started again
        first.stop()
        restarted = start(topic)
        assert restarted.latest_offset()
        restarted.stop()
    finally:
        for source in started:
            source.kill()
