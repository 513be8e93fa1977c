"""Group coordinator runtime: tombstones of many offsets, a suspended broker."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commit_requests import commit_topics
from support.raw_broker import BrokerProcess, RawConnection, create_topic
from support.raw_members import committed, heartbeat, join, sync
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.common.clock import Instant
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.messages import DeleteGroupsRequest, JoinGroupRequest, OffsetCommitRequest

PARTITIONS = 100
LIMIT = 1_000
"""max.message.bytes of `__consumer_offsets` in bytes: the tombstones of a topic need several batches."""


def commit_all(connection: RawConnection, topic: str) -> None:
    topics = commit_topics(OffsetCommitRequest, {topic: dict.fromkeys(range(PARTITIONS), 1)})
    request = OffsetCommitRequest(group_id="g", topics=topics)
    (response,) = connection.call(request, 8).topics
    assert {each.error_code for each in response.partitions} == {0}


def limit_batches(broker: EmbeddedBroker) -> int:
    """Lowers max.message.bytes; returns the log end offset."""

    def alter(b) -> int:
        settings = {**b.partitions.topic(OFFSETS_TOPIC).settings, "max.message.bytes": str(LIMIT)}
        run_at_once(b.partitions.alter_topic(OFFSETS_TOPIC, settings))
        return b.partitions.partition(OFFSETS_TOPIC, 0).log.log_end_offset

    return broker.call(alter)


def batch_sizes(broker: EmbeddedBroker, start: int) -> list[int]:
    """The sizes of the batches of `__consumer_offsets` from an offset on."""

    def read(b) -> list[int]:
        log = b.partitions.partition(OFFSETS_TOPIC, 0).log
        return [stored.header.size for stored in log.batches(start)]

    return broker.call(read)


def delete_topic(broker: EmbeddedBroker) -> None:
    broker.call(lambda b: run_at_once(b.delete_topic("t")))


def expire(broker: EmbeddedBroker) -> None:
    """Expires offsets with a clock that is a month ahead."""

    def run(b) -> None:
        coordinator, clock = b.group_coordinator, b.clock
        now = clock.instant()
        later = Instant(now.now_ms, now.timestamp_ms + 30 * 86_400_000)
        # private: the time of all shards, without that of the event loop
        coordinator._clock = SimpleNamespace(
            instant=lambda: later, now_ms=clock.now_ms, timestamp_ms=lambda: later.timestamp_ms
        )
        run_at_once(coordinator.removal.expire())
        coordinator._clock = clock

    broker.call(run)


@pytest.mark.parametrize("remove", [delete_topic, expire])
def test_tombstones_of_many_offsets_are_stored_in_several_batches(tmp_path, remove):
    config = {"offsets.topic.num.partitions": "1"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", PARTITIONS)
        commit_all(connection, "t")
        end = limit_batches(broker)
        remove(broker)
        assert committed(connection) == {}
        sizes = batch_sizes(broker, end)
        assert len(sizes) > 3 and max(sizes) <= LIMIT
        assert not [line for line in broker.reports if "failed" in line]
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert committed(connection) == {}


def test_tombstones_of_a_deleted_group_are_stored_together_or_not_at_all(tmp_path, caplog):
    config = {"offsets.topic.num.partitions": "1"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", PARTITIONS)
        commit_all(connection, "t")
        limit_batches(broker)
        (result,) = connection.call(DeleteGroupsRequest(groups_names=["g"]), 2).results
        assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert len(committed(connection)) == PARTITIONS
    start = "[partition=__consumer_offsets-0] Appending"
    assert [line.levelname for line in caplog.records if line.message.startswith(start)] == ["WARNING"]


def test_an_illegal_state_of_a_group_is_an_error_response(tmp_path, caplog):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id="", group_instance_id="i-1",
        protocol_type="consumer", protocols=[protocol], reason=None,
    )  # fmt: skip
    config = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", PARTITIONS)
        commit_all(connection, "t")

        def static_members(b) -> dict[str, str]:
            group = b.group_coordinator.shards.loaded_shard(0).state_machine.group("g")
            group.protocol_type = "consumer"
            return group.static_members

        broker.call(lambda b: static_members(b).update({"i-1": "ghost"}))  # an Empty group has no members
        assert connection.call(request, 7).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        broker.call(lambda b: static_members(b).clear())
        assert connection.call(request, 7).error_code == ErrorCode.NONE, "the connection is open"
    unexpected = "[partition=__consumer_offsets-0] Unexpected error in a request; responding UNKNOWN_SERVER_ERROR: "
    assert [line for line in caplog.records if line.message.startswith(unexpected)]


@pytest.mark.slow
def test_heartbeats_that_arrived_while_the_broker_was_suspended_precede_session_timeouts(tmp_path):
    settings = ("group.min.session.timeout.ms=500", "group.initial.rebalance.delay.ms=0")
    with BrokerProcess(tmp_path, *settings) as broker, RawConnection(broker.bootstrap_servers) as connection:
        joined = join(connection, session_timeout_ms=500)
        assert sync(connection, joined).error_code == 0
        os.kill(broker.process.pid, signal.SIGSTOP)
        state = Path(f"/proc/{broker.process.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the broker is suspended")
        resume = threading.Timer(2.5, os.kill, (broker.process.pid, signal.SIGCONT))
        resume.start()
        assert heartbeat(connection, joined) == 0
        resume.join()
