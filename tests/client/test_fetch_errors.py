"""Fetch errors, lost connections, followers, and ListOffsets of scripted brokers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import client_settings, open_cluster
from support.fake_leader import EMPTY, TP, FakeLeader, fake_leader

from spark_groupsource.client.cluster.cluster_client import EARLIEST, LATEST, UNKNOWN_TOPIC_TIMEOUT_MS, ClusterClient
from spark_groupsource.client.cluster.metadata import EpochEndOffset
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.errors import BrokerError, DataLossError, ErrorCode, NetworkError, UnsupportedVersionError
from spark_groupsource.model import OffsetRange
from spark_groupsource.wire.messages import FetchResponse, ListOffsetsResponse

SETTINGS = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "2", "default_api_timeout_ms": "5000"}
SHORT = {**SETTINGS, "default_api_timeout_ms": "150", "request_timeout_ms": "100"}
EVERYTHING = list(range(1, 11))


@pytest.fixture
def broker() -> Iterator[FakeLeader]:
    with fake_leader() as running:
        yield running


@pytest.fixture
def follower(broker: FakeLeader) -> Iterator[FakeLeader]:
    with fake_leader() as running:
        broker.followers, running.topic_id = {2: running}, broker.topic_id
        running.responses["Metadata"] = broker.responses["Metadata"]
        yield running


@pytest.fixture
def client(broker: FakeLeader) -> Iterator[ClusterClient]:
    with open_cluster(str(broker.address), **SETTINGS) as opened:
        yield opened


def fetch(client: ClusterClient, start: int = 0, end: int = 10) -> list[int]:
    blocks = list(PartitionFetcher(client).fetch_blocks([OffsetRange(TP, start, end)]))
    assert not any(block.error for block in blocks), blocks
    return [block.next_offset for block in blocks]


def lose_later_metadata(broker: FakeLeader) -> None:
    """Sends no response to a Metadata request after the first one with the topic."""
    respond = broker.responses["Metadata"]

    def lose(request: Any, version: int) -> Any:
        if request.topics:
            broker.responses["Metadata"] = lambda *_: None
        return respond(request, version)

    broker.responses["Metadata"] = lose


RETRIED = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


def test_leader_that_accepts_no_connection_is_looked_up_again(broker: FakeLeader) -> None:
    """As a suspended process, which is replaced after broker.session.timeout.ms."""
    current = broker.responses["Metadata"]
    with socket.create_server(("127.0.0.1", 0)) as frozen:

        def former(request: Any, version: int) -> Any:
            response = current(request, version)
            response.brokers[0].port = frozen.getsockname()[1]
            if request.topics:
                broker.responses["Metadata"] = current
            return response

        broker.responses["Metadata"] = former
        settings = {"request_timeout_ms": "30000", "socket_connection_setup_timeout_ms": "50"}
        with open_cluster(str(broker.address), **{**SETTINGS, **settings}) as client:
            before = time.monotonic()
            assert fetch(client) == EVERYTHING
            assert time.monotonic() - before < 25


@pytest.mark.conformance("FT-016", "FT-038", "FT-080")
@pytest.mark.parametrize("code", RETRIED, ids=lambda code: code.name)
def test_partition_error_refreshes_the_metadata_and_is_retried(
    broker: FakeLeader, client: ClusterClient, code: ErrorCode
) -> None:
    client.metadata(["t"])
    before = len(broker.sent("Metadata"))
    broker.steps = [code]
    assert fetch(client) == EVERYTHING
    assert len(broker.sent("Metadata")) > before
    assert [each.fetch_offset for each in broker.fetches][:2] == [0, 0], "the position is that before the error"


def whole_request(code: ErrorCode = ErrorCode.NONE, throttle_time_ms: int = 0) -> FetchResponse:
    """A response without partitions, as a broker sends it that fails to process a request, or has a quota."""
    return FetchResponse(throttle_time_ms=throttle_time_ms, error_code=code, session_id=0, responses=[])


def respond_first(broker: FakeLeader, *responses: FetchResponse) -> None:
    """Sends these responses to the first Fetch requests."""
    prepared, respond = list(responses), broker.responses["Fetch"]
    broker.responses["Fetch"] = lambda request, version: prepared.pop(0) if prepared else respond(request, version)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]
)
def test_error_of_a_whole_request_is_retried(broker: FakeLeader, client: ClusterClient, code: ErrorCode) -> None:
    client.metadata(["t"])
    before = len(broker.sent("Metadata"))
    respond_first(broker, whole_request(code), whole_request(code))
    assert fetch(client) == EVERYTHING
    assert len(broker.sent("Metadata")) > before


def test_fatal_error_of_a_whole_request_is_raised(broker: FakeLeader, client: ClusterClient) -> None:
    respond_first(broker, whole_request(ErrorCode.UNSUPPORTED_VERSION))
    with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
        fetch(client)


def test_time_of_throttling_counts_in_no_timeout(broker: FakeLeader, caplog: pytest.LogCaptureFixture) -> None:
    respond_first(broker, *[whole_request(throttle_time_ms=60_000)] * 3)
    settings = client_settings(str(broker.address), **SETTINGS)
    with ClusterClient(settings.bootstrap, settings, clock := ManualClock()) as client:
        client.metadata(["t"])
        before = len(broker.sent("Metadata"))
        assert fetch(client) == EVERYTHING
        assert clock.now_ms() == 180_000, "each request is sent after the time of the response before it"
        assert len(broker.sent("Metadata")) == before
    (line,) = caplog.messages
    assert line == f"[broker={broker.address}] A quota of the broker delays fetches of this task: 60000 ms."


def test_throttled_responses_are_no_gap_of_a_compacted_topic(broker: FakeLeader, client: ClusterClient) -> None:
    broker.cleanup_policy, respond = "compact", broker.responses["Fetch"]
    broker.steps = [EMPTY] * 3

    def throttled(request: object, version: int) -> object:
        response = respond(request, version)
        response.throttle_time_ms = 0 if response.responses[0].partitions[0].records else 1
        return response

    broker.responses["Fetch"] = throttled
    assert fetch(client) == EVERYTHING


@pytest.mark.conformance("FT-028", "FT-079")
@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Grant the user READ on the topic"),
        (ErrorCode.CORRUPT_MESSAGE, "The broker's log is damaged there"),
    ],
)
def test_fatal_error_names_partition_and_offset(
    broker: FakeLeader, client: ClusterClient, code: ErrorCode, hint: str
) -> None:
    broker.steps = [lambda: None, code]
    with pytest.raises(BrokerError, match=f"Fetch of t-0 at offset 1 from .*{code.name}.* {hint}"):
        fetch(client)


@pytest.mark.conformance("FT-047", "FT-014")
def test_lost_connections_are_retried_after_a_backoff(broker: FakeLeader, client: ClusterClient) -> None:
    broker.lost = 3
    assert fetch(client) == EVERYTHING


def test_lost_connections_fail_after_the_timeout(broker: FakeLeader) -> None:
    broker.lost = 1_000_000
    with open_cluster(str(broker.address), **SHORT) as client, pytest.raises(NetworkError):
        fetch(client)


@pytest.mark.conformance("FT-027")
def test_incomplete_batch_is_no_progress(broker: FakeLeader) -> None:
    respond = broker.responses["Fetch"]

    def cut(request: object, version: int) -> object:
        response = respond(request, version)
        data = response.responses[0].partitions[0]
        data.records = data.records[:-1]
        return response

    broker.responses["Fetch"] = cut
    with open_cluster(str(broker.address), **SHORT) as client:
        with pytest.raises(DataLossError, match="COULD_NOT_READ_OFFSET_RANGE.*t-0 at offset 0 of 10"):
            fetch(client)


# -- followers -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("FT-073")
def test_preferred_replica_is_fetched_from(broker: FakeLeader, follower: FakeLeader, client: ClusterClient) -> None:
    broker.preferred_replica = 2
    assert fetch(client) == EVERYTHING
    assert (len(broker.fetches), len(follower.fetches)) == (1, 10)


def test_leader_is_asked_again_for_the_preferred_replica(broker: FakeLeader, follower: FakeLeader) -> None:
    broker.preferred_replica = 2
    settings = client_settings(str(broker.address), **SETTINGS, metadata_max_age_ms="1000")
    with ClusterClient(settings.bootstrap, settings, clock := ManualClock()) as client:
        follower.steps = [lambda: None, lambda: clock.advance_ms(999), lambda: None, lambda: clock.advance_ms(1)]
        assert fetch(client) == EVERYTHING
    assert [at.fetch_offset for at in broker.fetches] == [0, 4] and len(follower.fetches) == 10


@pytest.mark.conformance("FT-074")
def test_lost_connection_to_a_follower_leads_back_to_the_leader(
    broker: FakeLeader, follower: FakeLeader, client: ClusterClient
) -> None:
    broker.preferred_replica, follower.lost = 2, 1
    assert fetch(client) == EVERYTHING
    assert len(broker.fetches) == 2


@pytest.mark.conformance("FT-076")
def test_error_of_a_follower_leads_back_to_the_leader(
    broker: FakeLeader, follower: FakeLeader, client: ClusterClient
) -> None:
    broker.preferred_replica, follower.steps = 2, [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert fetch(client) == EVERYTHING
    assert len(broker.fetches) == 2


@pytest.mark.conformance("FT-077")
def test_out_of_range_response_of_a_follower_leads_back_to_the_leader(
    broker: FakeLeader, follower: FakeLeader, client: ClusterClient
) -> None:
    broker.preferred_replica = 2

    def lead() -> None:
        broker.preferred_replica = -1

    follower.steps, broker.steps = [ErrorCode.OFFSET_OUT_OF_RANGE], [lambda: None, lead]
    assert fetch(client) == EVERYTHING
    assert not broker.sent("ListOffsets"), "the follower's log may be behind"


# -- ListOffsets and OffsetForLeaderEpoch ----------------------------------------------------------------------------


@pytest.mark.conformance("OF-004", "OF-009", "OF-025", "OF-027")
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
    ids=lambda code: code.name,
)
def test_retriable_error_of_listoffsets_refreshes_the_metadata(
    broker: FakeLeader, client: ClusterClient, code: ErrorCode
) -> None:
    broker.list_errors = [code]
    assert client.list_offsets({TP: LATEST})[TP].offset == 10
    assert len(broker.sent("Metadata")) >= 2 and len(broker.sent("ListOffsets")) == 2


def test_leader_that_does_not_know_the_partition_yet_is_retried_until_the_timeout(broker: FakeLeader) -> None:
    settings = client_settings(str(broker.address))
    with ClusterClient(settings.bootstrap, settings, clock := ManualClock()) as client:
        broker.list_errors = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 12
        assert client.list_offsets({TP: LATEST})[TP].offset == 10
        assert clock.now_ms() > 2 * UNKNOWN_TOPIC_TIMEOUT_MS
        broker.list_errors = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1_000
        with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE.*does not know the partition"):
            client.list_offsets({TP: LATEST})


@pytest.mark.conformance("OF-018")
def test_authorization_error_of_listoffsets_is_raised(broker: FakeLeader, client: ClusterClient) -> None:
    broker.list_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(BrokerError, match="ListOffsets of t-0 .*TOPIC_AUTHORIZATION_FAILED"):
        client.list_offsets({TP: EARLIEST})


@pytest.mark.conformance("OF-005", "OF-006", "OF-028")
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_listoffsets_carries_isolation_level_and_leader_epoch(broker: FakeLeader, level: str) -> None:
    broker.leader_epoch = 99
    with open_cluster(str(broker.address), **SETTINGS, isolation_level=level) as client:
        client.list_offsets({TP: LATEST})
        client.list_offsets({TP: LATEST}, read_committed=False)
    (_, first), (_, second) = broker.sent("ListOffsets")
    assert (first.isolation_level, second.isolation_level) == (int(level == "read_committed"), 0)
    assert first.topics[0].partitions[0].current_leader_epoch == 99


@pytest.mark.conformance("OF-023", "OF-032", "KC-101")
@pytest.mark.conformance("KC-099", "KC-100")
def test_listoffsets_without_a_response_ends_at_its_timeout(broker: FakeLeader, client: ClusterClient) -> None:
    broker.responses["ListOffsets"] = lambda request, version: None
    with pytest.raises(NetworkError, match="ListOffsets request to .*No response within"):
        client.list_offsets({TP: LATEST}, timeout_ms=100)


@pytest.mark.conformance("OF-030", "OF-012")
def test_lost_connections_of_listoffsets_are_retried(broker: FakeLeader) -> None:
    respond, codes = broker.responses["ListOffsets"], [True, True]

    def lose(request: object, version: int) -> object:
        return b"" if codes and codes.pop() else respond(request, version)

    broker.responses["ListOffsets"] = lose
    with open_cluster(str(broker.address), **{**SETTINGS, "request_timeout_ms": "50"}) as client:
        assert client.list_offsets({TP: LATEST})[TP].offset == 10


@pytest.mark.conformance("OF-029")
def test_leader_that_is_not_known_at_first_is_looked_up(broker: FakeLeader, client: ClusterClient) -> None:
    respond, missing = broker.responses["Metadata"], [True, True]

    def appear(request: object, version: int) -> object:
        broker.topic_error = ErrorCode.LEADER_NOT_AVAILABLE if missing and missing.pop() else ErrorCode.NONE
        return respond(request, version)

    broker.responses["Metadata"] = appear
    assert client.list_offsets({TP: EARLIEST})[TP].offset == 0


@pytest.mark.conformance("OF-044")
@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_rejected_epoch_of_a_validation_is_retried_with_new_metadata(
    broker: FakeLeader, client: ClusterClient, code: ErrorCode
) -> None:
    broker.leader_epoch, broker.epoch_ends, broker.epoch_errors = 3, {2: (1, 6)}, [code]
    assert client.end_offsets_for_epochs({TP: 2}) == {TP: EpochEndOffset(1, 6)}
    assert len(broker.sent("OffsetForLeaderEpoch")) == 2


@pytest.mark.conformance("OF-036")
def test_epochs_are_not_requested_from_old_brokers(broker: FakeLeader, client: ClusterClient) -> None:
    broker.epoch_versions = (0, 2)
    with pytest.raises(UnsupportedVersionError):
        client.end_offsets_for_epochs({TP: 2})
    assert not broker.sent("OffsetForLeaderEpoch")


def test_metadata_are_requested_again_after_a_lost_connection(broker: FakeLeader) -> None:
    """A leader that no longer responds may have a successor, which a call with a short timeout must find, too."""
    settings = client_settings(str(broker.address), **SETTINGS)
    clock = ManualClock(1)
    with ClusterClient(settings.bootstrap, settings, clock) as client:
        for requests in (1, 2):
            # metadata of the millisecond of the loss may be from before it
            clock.advance_ms(1)
            client.metadata(["t"])
            client.metadata(["t"])
            assert len(broker.sent("Metadata")) == requests
            client.connection_lost(broker.address)


def test_lookup_without_metadata_at_its_timeout_fails_with_the_error_before(broker: FakeLeader) -> None:
    broker.list_errors = [ErrorCode.OFFSET_NOT_AVAILABLE] * 100
    lose_later_metadata(broker)
    with open_cluster(str(broker.address), **SHORT) as client:
        with pytest.raises(BrokerError, match="OFFSET_NOT_AVAILABLE") as raised:
            client.list_offsets({TP: LATEST})
    assert isinstance(raised.value.__cause__, NetworkError)


def test_calls_without_a_timeout_have_that_of_the_caller(client: ClusterClient) -> None:
    limit_ms = client.settings.default_api_timeout_ms
    assert limit_ms - 1_000 < client.retry().remaining_ms <= limit_ms
    client.call_timeout_ms = 700
    assert client.retry().remaining_ms <= 700 < client.retry(2_000).remaining_ms


def test_unexpected_error_of_a_lookup_is_retried(broker: FakeLeader, client: ClusterClient) -> None:
    """Source: Kafka `OffsetFetcherUtils.handleListOffsetResponse`, `OffsetsForLeaderEpochUtils`."""
    broker.list_errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert client.list_offsets({TP: LATEST})[TP].offset == 10
    broker.epoch_errors, broker.epoch_ends = [ErrorCode.UNKNOWN_SERVER_ERROR], {0: (0, 6)}
    assert client.end_offsets_for_epochs({TP: 0})[TP].end_offset == 6


@pytest.mark.slow
def test_lookup_of_a_partition_that_the_response_lacks_ends_at_its_timeout(broker: FakeLeader) -> None:
    broker.responses["ListOffsets"] = lambda request, version: ListOffsetsResponse(throttle_time_ms=0, topics=[])
    # the second request has at least 280 ms, and the third one would be after the timeout
    settings = {**SETTINGS, "retry_backoff_ms": "600", "retry_backoff_max_ms": "600"}
    with open_cluster(str(broker.address), **settings) as client:
        with pytest.raises(NetworkError, match="Lookup of t-0 failed: the responses of the leaders lack them"):
            client.list_offsets({TP: LATEST}, timeout_ms=1_000)
    assert len(broker.sent("ListOffsets")) == 2
