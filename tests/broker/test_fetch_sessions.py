"""Fetch sessions: errors, contents of incremental responses, eviction."""

from __future__ import annotations

import uuid
from itertools import count
from types import SimpleNamespace

import pytest
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetched_values, produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.fetch import sessions as fetch_sessions

# private: ids are random, so that their bounds show in many of them only
from spark_groupsource.broker.fetch.delayed_fetch import _new_session_id as new_session_id
from spark_groupsource.broker.fetch.sessions import MIN_EVICTION_MS, CachedPartition, FetchSessionCache, next_epoch
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import FetchRequest, FetchResponse

PartitionData = FetchResponse.FetchableTopicResponse.PartitionData
INT32_MAX = 2**31 - 1
NAMES, IDS = 12, 13
LATER_MS = MIN_EVICTION_MS + 1


def request(*parts, session=(0, 0), forget=(), wait_ms=0, min_bytes=1, max_bytes=1 << 20):
    """`parts` are (topic, partition, offset), `forget` are (topic, partition)."""
    topic = FetchRequest.FetchTopic
    topics = [
        topic(
            topic=name,
            partitions=[
                topic.FetchPartition(
                    partition=number, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
                    log_start_offset=-1, partition_max_bytes=1 << 20,
                )
            ],
        )
        for name, number, offset in parts
    ]  # fmt: skip
    gone = [FetchRequest.ForgottenTopic(topic=name, partitions=[number]) for name, number in forget]
    return FetchRequest(
        replica_id=-1, max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, isolation_level=0, rack_id="",
        session_id=session[0], session_epoch=session[1], topics=topics, forgotten_topics_data=gone,
    )  # fmt: skip


def entry(error_code=0, high_watermark=5, log_start_offset=0, records=b"", diverging=None, preferred=-1):
    return PartitionData(
        error_code=error_code, high_watermark=high_watermark, log_start_offset=log_start_offset, records=records,
        diverging_epoch=diverging, preferred_read_replica=preferred,
    )  # fmt: skip


def parts(size):
    return [("t", number, 0) for number in range(size)]


def sessions(slots=2):
    return FetchSessionCache(slots, count(1).__next__)


def ids_of(cache):
    return list(cache._sessions)  # private: a request with an id changes the order of eviction


def new_context(cache, *arguments):
    return run_at_once(cache.new_context(*arguments))


def respond(cache, *arguments):
    return run_at_once(cache.respond(*arguments))


def create_session(cache, size, now_ms=0, version=NAMES):
    """Creates a session of `size` partitions; returns its id, 0 if none is created."""
    fetch = new_context(cache, request(*parts(size)), version, now_ms)
    return respond(cache, fetch, [(partition, entry()) for partition in fetch.partitions], now_ms).session_id


def send_next(cache, session, now_ms, *more, forget=()):
    """Sends the next request of a session; returns its error."""
    fetch = new_context(cache, request(*more, session=session, forget=forget), NAMES, now_ms)
    if not fetch.error_code:
        respond(cache, fetch, [], now_ms)
    return fetch.error_code


@pytest.mark.parametrize(
    "now, included",
    [
        (entry(), False),
        (entry(records=b"r"), True),
        (entry(high_watermark=6), True),
        (entry(log_start_offset=1), True),
        (entry(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), True),
        (entry(diverging=PartitionData.EpochEndOffset(epoch=1, end_offset=2)), True),
        (entry(preferred=2), True),
    ],
)
@pytest.mark.conformance("FS-015", "FS-019")
def test_an_incremental_response_contains_changed_partitions_only(now, included):
    partition = CachedPartition(("t", 0), "t", None, request(("t", 0, 0)).topics[0].partitions[0])

    def include(current: PartitionData) -> bool:
        included = partition.should_include(current)
        partition.record_response(current)
        return included

    assert include(entry()), "the first response"
    assert include(now) is included
    if now.error_code:
        assert include(now), "each response contains the error"
        assert include(entry()), "the response after the error contains the partition"


@pytest.mark.conformance("FS-004", "FS-005")
def test_a_session_keeps_the_epochs_of_a_partition_until_a_request_changes_them():
    def with_epochs(current, last_fetched, *, session=(0, 0)):
        fetch = request(("t", 0, 0), ("t", 1, 0), session=session)
        for topic in fetch.topics[:1]:
            topic.partitions[0].current_leader_epoch = current
            topic.partitions[0].last_fetched_epoch = last_fetched
        return fetch

    def epochs(fetch):
        return [(each.current_leader_epoch, each.last_fetched_epoch) for each in fetch.partitions]

    cache = sessions()
    first = new_context(cache, with_epochs(5, 4), NAMES, 0)
    assert epochs(first) == [(5, 4), (-1, -1)]
    session_id = respond(cache, first, [(each, entry()) for each in first.partitions], 0).session_id
    kept = new_context(cache, request(session=(session_id, 1)), NAMES, 0)
    assert epochs(kept) == [(5, 4), (-1, -1)]
    respond(cache, kept, [], 0)
    changed = new_context(cache, with_epochs(6, -1, session=(session_id, 2)), NAMES, 0)
    assert epochs(changed) == [(6, -1), (-1, -1)]


def test_session_epochs_wrap_around_to_1():
    assert [next_epoch(epoch) for epoch in (0, 1, INT32_MAX - 1, INT32_MAX)] == [1, 2, INT32_MAX, 1]
    cache = sessions()
    session_id = create_session(cache, 1)
    cache._sessions[session_id].epoch = INT32_MAX  # private: it takes as many requests
    assert send_next(cache, (session_id, INT32_MAX), 0) == ErrorCode.NONE
    assert send_next(cache, (session_id, 1), 0) == ErrorCode.NONE


@pytest.mark.conformance("FS-001")
def test_session_ids_are_positive():
    assert all(0 < new_session_id() <= INT32_MAX for _ in range(1_000))


def test_session_ids_are_unique():
    drawn = iter([7, 7, 7, 8])
    cache = FetchSessionCache(9, drawn.__next__)
    assert (create_session(cache, 1), create_session(cache, 1)) == (7, 8)


@pytest.mark.parametrize(
    "session, version, error",
    [
        ((1, 1), NAMES, ErrorCode.NONE),
        ((1, 2), NAMES, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((2, 1), NAMES, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((0, 1), NAMES, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((1, -2), NAMES, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((-1, 1), NAMES, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((1, 1), IDS, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        ((2, 0), NAMES, ErrorCode.NONE),
        ((2, -1), NAMES, ErrorCode.NONE),
    ],
)
@pytest.mark.conformance("FS-006", "FS-010")
def test_session_errors_of_a_request(session, version, error):
    cache = sessions()
    assert create_session(cache, 2) == 1
    assert new_context(cache, request(session=session), version, 0).error_code == error


@pytest.mark.parametrize("epoch, left", [(0, 1), (-1, 0)])
@pytest.mark.conformance("FS-006")
def test_a_full_fetch_closes_its_session(epoch, left):
    cache = sessions()
    first = create_session(cache, 2)
    fetch = new_context(cache, request(*parts(1), session=(first, epoch)), NAMES, 0)
    included = respond(cache, fetch, [(each, entry()) for each in fetch.partitions], 0)
    assert (len(ids_of(cache)), bool(included.session_id), included.session_id == first) == (left, bool(left), False)
    assert send_next(cache, (first, 1), 0) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.conformance("FS-018")
def test_a_session_without_partitions_is_closed():
    cache = sessions()
    session_id = create_session(cache, 2)
    assert send_next(cache, (session_id, 1), 0, forget=[("t", 0)]) == ErrorCode.NONE
    fetch = new_context(cache, request(session=(session_id, 2), forget=[("t", 1)]), NAMES, 0)
    assert respond(cache, fetch, [], 0).session_id == 0
    assert len(ids_of(cache)) == 0


def test_a_request_overtaken_by_a_later_one_gets_invalid_session_epoch():
    cache = sessions()
    session_id = create_session(cache, 1)
    first = new_context(cache, request(session=(session_id, 1)), NAMES, 0)
    second = new_context(cache, request(session=(session_id, 2)), NAMES, 0)
    found = [(partition, entry(records=b"r")) for partition in second.partitions]
    assert respond(cache, first, found, 0)[:2] == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id)
    assert respond(cache, second, found, 0) == (ErrorCode.NONE, session_id, found)


def test_a_session_evicted_during_a_delayed_fetch_gets_a_response():
    cache = sessions(slots=1)
    session_id = create_session(cache, 1)
    fetch = new_context(cache, request(session=(session_id, 1)), NAMES, 0)
    assert create_session(cache, 1, LATER_MS) != 0
    assert respond(cache, fetch, [], LATER_MS).session_id == session_id
    assert send_next(cache, (session_id, 2), LATER_MS) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(
    "uses, size, now_ms, left",
    [
        # sessions 1 and 2 have 2 and 3 partitions and are used at these times; a third one has `size` partitions
        ({}, 9, MIN_EVICTION_MS, [1, 2]),
        ({}, 1, LATER_MS, [2, 3]),
        ({1: LATER_MS}, 1, LATER_MS, [1, 3]),
        ({1: LATER_MS, 2: LATER_MS}, 1, LATER_MS, [1, 2]),
        ({1: LATER_MS, 2: LATER_MS}, 2, LATER_MS, [1, 2]),
        ({1: LATER_MS, 2: LATER_MS}, 3, LATER_MS, [2, 3]),
        ({2: LATER_MS, 1: LATER_MS}, 9, LATER_MS, [2, 3]),
        ({1: 1, 2: LATER_MS}, 9, LATER_MS + 1, [2, 3]),
        ({1: 1, 2: 1}, 9, LATER_MS, [1, 2]),
    ],
)
@pytest.mark.conformance("FS-002", "FS-016")
def test_eviction_of_sessions(uses, size, now_ms, left):
    """A session unused for two minutes is evicted, else the smallest older session for a larger one."""
    cache = sessions()
    assert [create_session(cache, 2), create_session(cache, 3)] == [1, 2]
    for session_id, used_ms in uses.items():
        assert send_next(cache, (session_id, 1), used_ms) == ErrorCode.NONE
    create_session(cache, size, now_ms)
    assert sorted(ids_of(cache)) == left


@pytest.mark.conformance("FS-003")
def test_a_session_with_added_partitions_is_evicted_by_its_new_size():
    cache = sessions()
    small, large = create_session(cache, 1), create_session(cache, 2)
    assert send_next(cache, (small, 1), LATER_MS) == send_next(cache, (large, 1), LATER_MS) == ErrorCode.NONE
    assert send_next(cache, (small, 2), LATER_MS, *parts(4)) == ErrorCode.NONE
    assert create_session(cache, 3, LATER_MS)
    assert small in ids_of(cache) and large not in ids_of(cache)


def test_zero_slots_create_no_sessions():
    assert create_session(sessions(slots=0), 1) == 0


def test_the_total_number_of_session_partitions_is_bounded(monkeypatch):
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 5)
    cache = sessions(slots=9)
    assert create_session(cache, 6) == 0
    first, second = create_session(cache, 3), create_session(cache, 2)
    assert create_session(cache, 1) == 0
    assert send_next(cache, (first, 1), 0, ("u", 0, 0)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert send_next(cache, (second, 1), 0, ("u", 0, 0)) == ErrorCode.NONE
    assert len(ids_of(cache)) == 1
    assert create_session(cache, 5, LATER_MS), "unused sessions are evicted"


# --- over connections ---


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(brokers=2) as running:
        yield running


@pytest.fixture
def led(broker, topic):
    """A topic of two partitions with leader 1; returns the addresses of the nodes."""
    with RawConnection(broker.bootstrap_servers.split(",")[0]) as connection:
        create_topic(connection, topic, 2)
    for number in range(2):
        broker.move_leader(topic, number, 1)
    return broker.bootstrap_servers.split(",")


def included(response):
    found = [(each.partition_index, each.error_code) for topic in response.responses for each in topic.partitions]
    return response.error_code, found


def test_an_incremental_fetch_waits_for_all_partitions_of_its_session(led, topic):
    with RawConnection(led[0]) as reader, RawConnection(led[0]) as writer:
        first = reader.call(request((topic, 0, 0), (topic, 1, 0)), 12)
        assert included(first) == (0, [(0, 0), (1, 0)])
        reader.post(request(session=(first.session_id, 1), wait_ms=60_000), 12)
        produce(writer, topic, batch(b"v"), partition=1)
        assert reader.read_frame().tobytes().count(b"v")
        again = reader.call(request((topic, 1, 1), session=(first.session_id, 2)), 12)
        assert included(again) == (0, [])


def test_a_session_remains_after_its_connection_is_closed(led, topic):
    with RawConnection(led[0]) as one:
        session_id = one.call(request((topic, 0, 0)), 12).session_id
        one.post(request(session=(session_id, 1), wait_ms=60_000), 12)
    with RawConnection(led[0]) as other:
        produce(other, topic, batch(b"v"))
        # the first request may or may not have arrived, so either epoch may be the next
        responses = [other.call(request(session=(session_id, epoch)), 12) for epoch in (1, 2)]
        assert included(responses[-1]) == (0, [(0, 0)])
        assert fetched_values(responses[-1].responses[0].partitions[0]) == [b"v"]


@pytest.mark.conformance("FS-013", "FS-022")
def test_an_unknown_topic_id_is_looked_up_by_each_request(broker, led, topic, monkeypatch):
    wanted = uuid.uuid4()

    def fetch(*topics, session):
        message = request(session=session)
        message.topics = [
            FetchRequest.FetchTopic(topic_id=wanted, partitions=each.partitions) for each in request(*topics).topics
        ]
        return connection.call(message, IDS)

    new = f"{topic}-new"
    numbers = range(len(led))  # the nodes lead one partition each
    with RawConnection(led[0]) as connection:
        first = fetch(*((new, number, 0) for number in numbers), session=(0, 0))
        unknown = (0, [(number, ErrorCode.UNKNOWN_TOPIC_ID) for number in numbers])
        assert included(first) == included(fetch(session=(first.session_id, 1))) == unknown
        with monkeypatch.context() as fixed:
            fixed.setattr("spark_groupsource.broker.storage.log_manager.uuid", SimpleNamespace(uuid4=lambda: wanted))
            assert create_topic(connection, new, len(led)).error_code == 0
        other_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
        resolved = [(n, 0 if broker.leader(new, n).node_id == 1 else other_leader) for n in numbers]
        assert sorted(code for _, code in resolved) == [0, *[other_leader] * (len(led) - 1)]
        assert included(fetch(session=(first.session_id, 2))) == (0, resolved)
        # known from now on: a partition without a change is left out
        failing = [each for each in resolved if each[1]]
        assert included(fetch(session=(first.session_id, 3))) == (0, failing)


def test_a_session_belongs_to_its_node(broker, led, topic):
    with RawConnection(led[0]) as at_first, RawConnection(led[1]) as at_second:
        session_id = at_first.call(request((topic, 0, 0), (topic, 1, 0)), 12).session_id
        elsewhere = at_second.call(request(session=(session_id, 1)), 12)
        assert included(elsewhere) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        at_first.post(request(session=(session_id, 1), wait_ms=60_000), 12)
        broker.move_leader(topic, 1, 2)
        at_first.read_frame()
        moved = [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert included(at_first.call(request(session=(session_id, 2), wait_ms=60_000), 12)) == (0, moved)
        broker.move_leader(topic, 1, 1)
        assert included(at_first.call(request(session=(session_id, 3)), 12)) == (0, [(1, 0)])


def test_a_stopped_node_drops_its_sessions(topic):
    with EmbeddedBroker(brokers=2) as own:
        addresses = own.bootstrap_servers.split(",")
        with RawConnection(addresses[1]) as connection:
            session_id = connection.call(request((topic, 0, 0)), 12).session_id
            assert session_id > 0
        own.stop_node(2)
        own.start_node(2)
        with RawConnection(addresses[1]) as connection:
            response = connection.call(request(session=(session_id, 1)), 12)
            assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_broker_with_zero_slots_creates_no_sessions(topic):
    with EmbeddedBroker(config={"max.incremental.fetch.session.cache.slots": "0"}) as own:
        with RawConnection(own.bootstrap_servers) as connection:
            create_topic(connection, topic)
            response = connection.call(request((topic, 0, 0)), 12)
            assert (response.session_id, included(response)) == (0, (0, [(0, 0)]))


def test_a_fetch_does_not_wait_for_more_bytes_than_its_response_limit(led, topic):
    with RawConnection(led[0]) as connection:
        produce(connection, topic, batch(b"v" * 500))
        wanted = request((topic, 0, 0), wait_ms=60_000, min_bytes=1 << 20, max_bytes=100)
        assert fetched_values(connection.call(wanted, 12).responses[0].partitions[0]) == [b"v" * 500]


def test_a_fetch_does_not_wait_for_records_that_its_response_has_no_room_for(led, topic):
    with RawConnection(led[0]) as connection:
        for _ in range(3):
            produce(connection, topic, batch(b"v" * 500))
        for least in (1_000, 1 << 20):
            wanted = request((topic, 0, 0), wait_ms=60_000, min_bytes=least, max_bytes=1_000)
            assert fetched_values(connection.call(wanted, 12).responses[0].partitions[0]) == [b"v" * 500]
