"""Time slices of the event loop: no file access, no long step."""

from __future__ import annotations

import os
import threading

import pytest
from support.raw_broker import RawConnection, create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.wire.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
)


@pytest.fixture
def flushing_threads(monkeypatch):
    """The threads that flush files or directories from now on."""
    threads: set[str] = set()
    fsync = os.fsync

    def recorded(descriptor):
        threads.add(threading.current_thread().name)
        return fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    return threads


def _create(connection):
    create_topic(connection, "t", 3)


def _create_automatically(connection):
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
    assert connection.call(request, 4).topics[0].error_code == 0


def _find_coordinators(connection):
    for key_type in (0, 1):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["id"])
        assert connection.call(request, 4).coordinators[0].error_code == 0


def _delete(connection):
    request = DeleteTopicsRequest(topic_names=["old"], timeout_ms=1000)
    assert connection.call(request, 4).responses[0].error_code == 0


@pytest.mark.parametrize("change", [_create, _create_automatically, _find_coordinators, _delete])
def test_the_event_loop_does_not_wait_for_the_files_of_topics(flushing_threads, change):
    with EmbeddedBroker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "old")
        flushing_threads.clear()
        change(connection)
        assert flushing_threads == {"groupsource-broker-worker_0"}


def test_requests_wait_for_a_coordinator_topic_that_another_one_creates():
    with EmbeddedBroker() as broker:
        connections = [RawConnection(broker.bootstrap_servers) for _ in range(3)]
        request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        for connection in connections:
            connection.post(request, 2)
        answers = [bytes(connection.read_frame()) for connection in connections]
        for connection in connections:
            connection.__exit__()
    # correlation id, tagged fields of the header, throttle time, error code
    assert [answer[9:11] for answer in answers] == [b"\0\0"] * 3
