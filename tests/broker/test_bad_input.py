"""Invalid input: error messages, and service of other clients."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.partition_logs import batch
from support.raw_broker import (
    RawConnection,
    create_topic,
    fetch,
    fetch_request,
    fetched_values,
    metadata,
    produce,
    produce_request,
)
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.errors import ConfigurationError, ErrorCode, StorageError
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.frames import encode_request
from spark_groupsource.wire.messages import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest


@pytest.fixture(scope="module")
def broker():
    config = {"socket.request.max.bytes": "1000000", "message.max.bytes": "50000", "offsets.topic.num.partitions": "2"}
    with EmbeddedBroker(config=config) as running:
        yield running


@pytest.fixture
def other_client(broker):
    """A client that connects before the test; after it, the client is served and its records are unchanged."""
    with RawConnection(broker.bootstrap_servers) as connection:
        if not metadata(connection, "other_client").topics[0].partitions:
            assert create_topic(connection, "other_client").error_code == 0
        base = produce(connection, "other_client", batch(b"before")).base_offset
        yield connection
        assert fetched_values(fetch(connection, "other_client", base))[0] == b"before"


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


GOOD = bytes(encode_request(MetadataRequest(topics=None, allow_auto_topic_creation=True), 9, 7, "client"))

INVALID_FRAMES = {
    "a frame that claims 2 GB": struct.pack(">i", 2**31 - 1),
    "a frame above the limit": struct.pack(">i", 1_000_001),
    "a negative length": struct.pack(">i", -1),
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS where none is spoken": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "a frame without a header": frame_of(b"\0\x03"),
    "an empty frame": frame_of(b""),
    "a client id past the end": frame_of(struct.pack(">hhih", 3, 9, 1, 300) + b"x"),
    "a body cut short": frame_of(GOOD[4:-3]),
    "a body of noise": frame_of(struct.pack(">hhih", 0, 9, 1, -1) + b"\0" + b"\xff" * 60),
    "an array of 2**31 - 1 entries": frame_of(struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff"),
    "an unknown API": frame_of(struct.pack(">hhih", 999, 0, 1, -1)),
    "a version that is not served": frame_of(struct.pack(">hhih", 3, 99, 1, -1)),
}


@pytest.mark.parametrize("data", INVALID_FRAMES.values(), ids=INVALID_FRAMES.keys())
def test_invalid_bytes_close_only_their_own_connection(broker, other_client, data):
    seen = len(broker.reports)
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send(data)
        assert connection.is_closed_by_peer()
    reason = list(broker.reports)[seen:]
    assert any("[client=127.0.0.1] Closing the connection: " in line for line in reason), reason


@pytest.mark.parametrize("size", range(0, len(GOOD), 5))
def test_a_truncated_frame_does_not_affect_other_clients(broker, other_client, size):
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send(GOOD[:size])
    assert metadata(other_client, "other_client").topics[0].error_code == 0


def test_an_incomplete_frame_does_not_block_other_clients(broker, other_client):
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send(GOOD[:10])
        assert metadata(other_client, "other_client").topics[0].error_code == 0
        connection.send(GOOD[10:])
        assert connection.read_frame()


def test_a_large_frame_length_allocates_only_received_bytes(broker, other_client):
    held = [RawConnection(broker.bootstrap_servers) for _ in range(50)]
    try:
        for connection in held:
            connection.send(struct.pack(">i", 1_000_000) + b"\0" * 10)
        assert metadata(other_client, "other_client").topics[0].error_code == 0
    finally:
        for connection in held:
            connection.socket.close()


def test_an_unsupported_api_versions_request_gets_a_version_0_response(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.send(frame_of(struct.pack(">hhih", 18, 77, 5, -1)))
        frame = connection.read_frame()
        correlation_id, code, count, key, low, high = struct.unpack_from(">ihihhh", frame)
        assert (correlation_id, code, count, key, low, high) == (5, 35, 1, 18, 0, 5)
        # the connection stays open
        assert len(connection.call(ApiVersionsRequest(), 0).api_keys) > 15


def test_responses_are_in_request_order(broker, other_client):
    base = produce(other_client, "other_client", batch(b"x")).base_offset + 1
    with RawConnection(broker.bootstrap_servers) as connection:
        waiting = connection.post(fetch_request("other_client", base, max_wait_ms=60_000), 11)
        behind = [connection.post(MetadataRequest(topics=[], allow_auto_topic_creation=False), 9) for _ in range(3)]
        produce(other_client, "other_client", batch(b"wakes the fetch"))
        received = [struct.unpack_from(">i", connection.read_frame())[0] for _ in range(4)]
        assert received == [waiting, *behind]


def test_a_delayed_fetch_is_dropped_when_its_client_disconnects(broker, other_client):
    end = produce(other_client, "other_client", batch(b"x")).base_offset + 1
    with RawConnection(broker.bootstrap_servers) as connection:
        connection.post(fetch_request("other_client", end, max_wait_ms=600_000), 11)
        wait_until(lambda: broker.call(lambda b: len(b.fetch_manager)) == 1, "the fetch is delayed")
    wait_until(lambda: broker.call(lambda b: len(b.fetch_manager)) == 0, "the fetch is dropped")


def test_a_client_that_does_not_read_blocks_no_other_client_and_receives_all_responses(broker, other_client):
    create_topic(other_client, "bulk")
    for _ in range(40):
        assert produce(other_client, "bulk", batch(b"x" * 40_000)).error_code == 0
    with RawConnection(broker.bootstrap_servers) as connection:
        requested = [connection.post(fetch_request("bulk", 0), 11) for _ in range(60)]  # about 60 MB of responses
        # on a busy machine, the broker fills the buffers of the sockets only after a while
        wait_until(lambda: broker.call(lambda b: broker.unsent_bytes) > 0, "a response is not sent")
        for _ in range(20):
            assert produce(other_client, "other_client", batch(b"meanwhile")).error_code == 0
        assert 0 < broker.call(lambda b: broker.unsent_bytes) < 5_000_000
        received = []
        for _ in requested:
            frame = connection.read_frame()
            assert len(frame) > 900_000
            received.append(struct.unpack_from(">i", frame)[0])
        assert received == requested


@pytest.mark.slow
def test_an_idle_connection_is_closed():
    with EmbeddedBroker(config={"connections.max.idle.ms": "200"}) as running:
        with RawConnection(running.bootstrap_servers) as connection:
            connection.send(GOOD[:9])
            assert connection.is_closed_by_peer()
        assert "idle for 200 ms" in running.reports[-1]


# --- records ---


def damaged(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


TWO = batch(b"a") + batch(b"b")
BAD_RECORDS = {
    "a wrong checksum": (damaged(batch(b"abc"), 65), ErrorCode.CORRUPT_MESSAGE, "stored CRC"),
    "an old format": (damaged(batch(b"abc"), 16), ErrorCode.CORRUPT_MESSAGE, "format version is 3"),
    "cut short": (batch(b"abc")[:-1], ErrorCode.INVALID_RECORD, "exactly one whole record batch"),
    "two batches": (TWO, ErrorCode.INVALID_RECORD, "exactly one whole record batch"),
    "none": (b"", ErrorCode.INVALID_RECORD, "exactly one whole record batch"),
    "too large": (batch(b"x" * 60_000), ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes (50000)"),
    "control records": (batch(b"abc", control=True), ErrorCode.INVALID_RECORD, "data records"),
    "transactional": (batch(b"abc", transactional=True), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ""),
}


@pytest.mark.conformance("UL-060")
@pytest.mark.parametrize("data, code, reason", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_invalid_batches_are_rejected_and_not_stored(broker, other_client, data, code, reason):
    end = produce(other_client, "other_client", batch(b"x")).base_offset + 1
    response = produce(other_client, "other_client", data)
    assert (response.error_code, response.base_offset) == (code, -1)
    assert reason in (response.error_message or "")
    assert produce(other_client, "other_client", batch(b"y")).base_offset == end


def test_produce_to_unknown_partitions(broker, other_client):
    response = produce(other_client, "nowhere", batch(b"x"))
    assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = produce(other_client, "other_client", batch(b"x"), partition=7)
    assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_produce_with_invalid_acks_or_without_an_ongoing_transaction(broker, other_client):
    def code_of(request):
        return other_client.call(request, 9).responses[0].partition_responses[0].error_code

    assert code_of(produce_request("other_client", batch(b"x"), acks=2)) == ErrorCode.INVALID_REQUIRED_ACKS
    data = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    request = produce_request("other_client", data, transactional_id="t")
    assert code_of(request) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code_of(produce_request("other_client", data)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("key_type, topic", [(0, "__consumer_offsets"), (1, "__transaction_state")])
def test_produce_to_internal_topics_is_rejected(broker, other_client, key_type, topic):
    # creates the topic: as in Kafka, a missing one is reported first
    other_client.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"]), 4)
    assert produce(other_client, topic, batch(b"x")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("offset", [-5, 10**9])
def test_fetch_out_of_range(broker, other_client, offset):
    assert fetch(other_client, "other_client", offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# --- topics ---


@pytest.mark.parametrize(
    "name, partitions, settings, code, reason",
    [
        ("a/b", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "is illegal"),
        ("..", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "is illegal"),
        ("x" * 250, 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "is illegal"),
        ("other_client", 1, {}, ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        ("fine", 0, {}, ErrorCode.INVALID_PARTITIONS, "1 to 100000 partitions"),
        ("fine", 1, {"segment_byte": "1"}, ErrorCode.INVALID_CONFIG, "closest name is segment.bytes."),
        ("fine", 1, {"segment_bytes": "many"}, ErrorCode.INVALID_CONFIG, "must be an integer"),
        ("fine", 1, {"cleanup_policy": "burn"}, ErrorCode.INVALID_CONFIG, "must be a list of delete, compact"),
    ],
)
def test_invalid_topics_are_rejected(broker, other_client, name, partitions, settings, code, reason):
    result = create_topic(other_client, name, partitions, **settings)
    assert (result.error_code, reason in result.error_message) == (code, True), result.error_message
    if name == "fine":
        assert metadata(other_client, name).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- start ---


def test_a_port_in_use_is_an_error_with_the_port(broker, tmp_path):
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is in use by another process. Stop it or"):
        EmbeddedBroker(tmp_path / "data", port=port).start()
    assert not (tmp_path / "data").exists()


def test_a_data_directory_in_use_is_an_error_and_unchanged(broker, other_client):
    with pytest.raises(StorageError, match=r"is in use by another broker \(process \d+\). Stop that"):
        EmbeddedBroker(broker.data_dir).start()


def test_a_foreign_directory_is_an_error_and_unchanged(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageError, match="is not empty and not that of a groupsource broker: it contains thesis.txt"):
        EmbeddedBroker(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_kafka_directory_is_an_error_and_unchanged(tmp_path):
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    with pytest.raises(StorageError, match="belongs to an Apache Kafka broker. Choose"):
        EmbeddedBroker(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"log.segment.byte": "1"}, "log.segment.byte is not a broker setting .*closest name is log.segment.bytes"),
        ({"num.partitions": "0"}, "num.partitions must be between 1 and 100000, got 0"),
        ({"auto.create.topics.enable": "yes"}, "must be true or false, got 'yes'"),
    ],
)
def test_invalid_settings_are_errors_with_their_names(config, reason):
    with pytest.raises(ConfigurationError, match=reason):
        EmbeddedBroker(config=config)


def test_an_address_of_another_host_is_an_error_with_the_address(tmp_path):
    with pytest.raises(ConfigurationError, match="listening on 203.0.113.1:0 failed"):
        EmbeddedBroker(tmp_path / "data", host="203.0.113.1").start()


# --- files damaged while the broker was stopped ---


@pytest.fixture
def stored(tmp_path: Path):
    """A data directory of a stopped broker with topics `harmed` and `whole`, ten batches each."""
    with EmbeddedBroker(tmp_path) as running, RawConnection(running.bootstrap_servers) as connection:
        for name in ("harmed", "whole"):
            create_topic(connection, name)
            for number in range(10):
                assert produce(connection, name, batch(b"%d" % number)).error_code == 0
    return tmp_path


def values(connection, topic):
    found, offset = [], 0
    while True:
        response = fetch(connection, topic, offset, max_bytes=1)
        assert response.error_code == 0
        if offset >= response.high_watermark:
            return found
        found += fetched_values(response)
        offset = len(found)


ALL = [b"%d" % number for number in range(10)]


def killed(stored: Path) -> None:
    """Removes the files of a clean shutdown: its mark and the recovery points."""
    (stored / ".kafka_cleanshutdown").unlink()
    (stored / "recovery-point-offset-checkpoint").unlink()


def test_an_incomplete_last_batch_is_truncated_and_reported(stored):
    path = stored / "harmed-0" / f"{0:020d}.log"
    killed(stored)
    path.write_bytes(path.read_bytes()[:-7])
    with EmbeddedBroker(stored) as running, RawConnection(running.bootstrap_servers) as connection:
        assert "Truncated unflushed bytes" in running.reports[0]
        assert values(connection, "harmed") == ALL[:9]
        assert values(connection, "whole") == ALL
        assert produce(connection, "harmed", batch(b"goes on")).base_offset == 9


@pytest.mark.parametrize("unclean", [False, True])
def test_a_corrupt_batch_is_reported_and_ends_reads(stored, unclean):
    path = stored / "harmed-0" / f"{0:020d}.log"
    if unclean:
        (stored / ".kafka_cleanshutdown").unlink()
    data = path.read_bytes()
    fifth = list(iter_batches(data))[4]
    path.write_bytes(damaged(data, fifth.position + 66))
    with EmbeddedBroker(stored) as running, RawConnection(running.bootstrap_servers) as connection:
        response = fetch(connection, "harmed", 0)
        assert fetched_values(response) == ALL[:4]
        for offset in range(4, 10):
            response = fetch(connection, "harmed", offset)
            assert (response.error_code, bytes(response.records or b"")) == (ErrorCode.CORRUPT_MESSAGE, b"")
        assert any(f"{path} is damaged at byte {fifth.position}" in line for line in running.reports)
        assert produce(connection, "harmed", batch(b"no")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert values(connection, "whole") == ALL
    assert path.read_bytes() == damaged(data, fifth.position + 66)


@pytest.mark.conformance("UL-081")
def test_a_missing_partition_directory_takes_only_that_partition_offline(stored):
    for path in (stored / "harmed-0").iterdir():
        path.unlink()
    with EmbeddedBroker(stored) as running, RawConnection(running.bootstrap_servers) as connection:
        assert "[partition=harmed-0] The partition is offline" in running.reports[0]
        (topic,) = metadata(connection, "harmed").topics
        assert (topic.partitions[0].leader_id, topic.partitions[0].error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        assert fetch(connection, "harmed", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert values(connection, "whole") == ALL


@pytest.mark.parametrize("name", ["topics.json", "meta.properties"])
def test_a_corrupt_catalog_prevents_the_start(stored, name):
    (stored / name).write_bytes(b"\0\0\0")
    with pytest.raises(StorageError, match="is corrupt|belongs to an Apache Kafka broker"):
        EmbeddedBroker(stored).start()
