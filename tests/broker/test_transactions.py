"""Transactions: responses, markers, timeouts, recovery at start."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.held_replay import held_replay
from support.java_tools import JavaTools
from support.raw_broker import BrokerProcess, RawConnection, create_topic
from support.raw_transactions import RawTransactions, committed_offset, latest, read_committed
from support.waiting import wait_until

from spark_groupsource.broker.coordinators.transaction_runtime import TransactionTimer
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.transactions import transaction_shard
from spark_groupsource.broker.transactions.transaction_states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_COMMIT,
    TRANSACTION_RULES,
    TransactionAction,
    TransactionOperation,
    TransactionRule,
)
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import DescribeTransactionsRequest, FindCoordinatorRequest

NONE = ErrorCode.NONE
CONFIG = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
}
GROUP = "group"


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(config=CONFIG) as running:
        yield running


@pytest.fixture
def connection(broker, topic):
    with RawConnection(broker.bootstrap_servers) as opened:
        create_topic(opened, topic, 2)
        yield opened


def state_of(broker, transactional_id: str):
    """The state that node 1 has of a transactional id."""
    return broker.transaction_coordinator.transaction(1, transactional_id)


def begun(connection: RawConnection, topic: str, transactional_id: str, **options) -> RawTransactions:
    """A producer with an ongoing transaction and one record in partition 0."""
    producer = RawTransactions(connection, transactional_id, **options)
    assert producer.find() is NONE
    assert producer.init() is NONE
    assert producer.add(topic, 0) == [NONE]
    assert producer.send(topic, b"first") is NONE
    return producer


def test_committed_records_are_read_and_aborted_transactions_are_listed(connection, topic, group):
    producer = begun(connection, topic, group)
    assert read_committed(connection, topic) == ([], [], 0)
    assert (latest(connection, topic, 1), latest(connection, topic, 0)) == (0, 1)
    assert latest(connection, topic, 1, timestamp=0) == -1 and latest(connection, topic, 0, timestamp=0) == 0
    assert producer.end(True) is NONE
    values, aborted, stable = read_committed(connection, topic)
    assert (values[0], aborted, stable) == (b"first", [], 2)
    assert producer.add(topic, 0) == [NONE] and producer.send(topic, b"second") is NONE
    assert producer.end(False) is NONE
    assert read_committed(connection, topic)[1:] == ([(producer.producer_id, 2)], 4)
    assert latest(connection, topic, 1) == latest(connection, topic, 0) == 4


def test_records_of_a_partition_outside_the_transaction_are_rejected(connection, topic, group):
    producer = begun(connection, topic, group)
    assert producer.send(topic, b"x", partition=1) is ErrorCode.INVALID_TXN_STATE
    assert producer.send(topic, b"x", partition=1, version=11) is ErrorCode.TRANSACTION_ABORTABLE
    assert producer.end(True) is NONE
    assert producer.send(topic, b"late") is ErrorCode.INVALID_TXN_STATE
    assert latest(connection, topic, 1, partition=1) == 0


def test_adding_an_unknown_partition_adds_no_partition(connection, topic, group):
    producer = RawTransactions(connection, group)
    assert producer.init() is NONE
    assert producer.add(topic, 0, 7) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.send(topic, b"x") is ErrorCode.INVALID_TXN_STATE


def test_a_fenced_producer_gets_the_error_of_its_request_version(connection, topic, group):
    zombie = begun(connection, topic, group)
    heir = RawTransactions(connection, group)
    assert heir.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert heir.init() is NONE and heir.epoch == zombie.epoch + 2
    assert zombie.add(topic, 1) == [ErrorCode.PRODUCER_FENCED]
    assert zombie.add(topic, 1, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert (zombie.end(True), zombie.end(True, version=1)) == (
        ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
    )  # fmt: skip
    assert zombie.add_offsets(GROUP) is ErrorCode.PRODUCER_FENCED
    assert zombie.send(topic, b"x") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.commit_offset(group, topic, 1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert read_committed(connection, topic)[1:] == ([(zombie.producer_id, 0)], 2)


@pytest.mark.conformance("TC-008", "TC-024")
def test_unknown_producers_and_invalid_requests_are_rejected(connection, topic, group):
    stranger = RawTransactions(connection, group)
    stranger.producer_id, stranger.epoch = 12_345, 0
    assert stranger.end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.add(topic, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    stranger.timeout_ms = 900_001
    assert stranger.init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    stranger.timeout_ms, stranger.transactional_id = 1_000, ""
    assert stranger.init() is ErrorCode.INVALID_REQUEST


def test_transactional_offsets_apply_when_the_transaction_commits(connection, topic, group):
    producer = begun(connection, topic, group)
    assert producer.commit_offset(group, topic, 5) == [ErrorCode.INVALID_TXN_STATE]
    assert producer.commit_offset(group, topic, 5, version=4) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert producer.add_offsets(group) is NONE
    assert producer.commit_offset(group, topic, 5, 0, 9) == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert committed_offset(connection, group, topic) == -1
    assert committed_offset(connection, group, topic, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.end(True) is NONE
    assert committed_offset(connection, group, topic, stable=True) == 5
    assert producer.add_offsets(group) is NONE and producer.commit_offset(group, topic, 6) == [NONE]
    assert producer.end(False) is NONE
    assert committed_offset(connection, group, topic, stable=True) == 5


@pytest.mark.slow
@pytest.mark.conformance("TC-061")
def test_a_transaction_is_aborted_after_its_timeout(connection, topic, group):
    producer = begun(connection, topic, group, timeout_ms=2_000)
    wait_until(lambda: read_committed(connection, topic)[2] == 2, "the transaction is aborted")
    assert producer.end(True) is ErrorCode.PRODUCER_FENCED
    assert producer.init() is NONE and producer.epoch == 2


@pytest.mark.slow
def test_a_failed_marker_is_retried_and_the_id_returns_concurrent_transactions(broker, connection, topic, group):
    producer = begun(connection, topic, group)
    assert producer.add(topic, 1) == [NONE] and producer.send(topic, b"x", partition=1) is NONE

    partition = broker.call(lambda b: b.partitions.partition(topic, 0))

    def set_offline(reason: str) -> None:
        broker.call(lambda b: setattr(partition, "offline_reason", reason))

    set_offline("a bad disk")
    assert producer.end(True) is NONE, "the commit is stored"
    assert read_committed(connection, topic, 1)[2] == 2, "the online partition has its marker"
    assert producer.end(True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.add(topic, 1) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert producer.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.call(lambda b: state_of(b, group)).status is PREPARE_COMMIT
    reported = f"[transactional.id={group}] Completing the transaction failed"
    assert any(reported in line and "a bad disk" in line for line in broker.reports)
    set_offline("")
    wait_until(
        lambda: broker.call(lambda b: state_of(b, group)).status is COMPLETE_COMMIT, "the transaction completes"
    )
    assert read_committed(connection, topic)[2] == 2


def test_a_refused_marker_does_not_count_as_written_and_the_others_are_written_once(broker, connection, topic, group):
    producer = begun(connection, topic, group)
    assert producer.add(topic, 1) == [NONE] and producer.send(topic, b"x", partition=1) is NONE
    # as after a marker of a coordinator with a newer epoch
    entries = broker.call(lambda b: b.partitions.partition(topic, 0).producers())
    broker.call(lambda b: setattr(entries[producer.producer_id], "coordinator_epoch", 1))
    assert producer.end(True) is NONE, "the commit is stored"
    reported = f"[transactional.id={group}] Completing the transaction failed"
    refused = f"{topic}-0: TRANSACTION_COORDINATOR_FENCED"
    assert any(reported in line and refused in line for line in broker.reports)
    for _ in range(3):  # the retries
        broker.call(lambda b: complete(b, group))
        assert broker.call(lambda b: state_of(b, group)).status is PREPARE_COMMIT
    assert read_committed(connection, topic)[2] == 0
    assert (read_committed(connection, topic, 1)[2], latest(connection, topic, 0, partition=1)) == (2, 2)
    assert producer.add(topic, 1) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    (found,) = connection.call(DescribeTransactionsRequest(transactional_ids=[group]), 0).transaction_states
    (unmarked,) = found.topics
    assert (found.transaction_state, unmarked.topic, unmarked.partitions) == ("PrepareCommit", topic, [0])
    broker.call(lambda b: setattr(entries[producer.producer_id], "coordinator_epoch", 0))
    broker.call(lambda b: complete(b, group))
    assert broker.call(lambda b: state_of(b, group)).status is COMPLETE_COMMIT
    assert [read_committed(connection, topic, number)[2] for number in range(2)] == [2, 2]


def complete(broker, transactional_id: str) -> None:
    coordinator = broker.transaction_coordinator
    shard = coordinator.shards.loaded_shard(coordinator.shards.partition_of(transactional_id).partition)
    coordinator.on_timer(shard, (TransactionTimer.COMPLETION, transactional_id))


def test_an_illegal_transition_is_an_error_response(broker, connection, topic, group, monkeypatch):
    producer = begun(connection, topic, group)
    rules = {**TRANSACTION_RULES[ONGOING], TransactionOperation.ADD: TransactionRule(TransactionAction.BEGIN)}
    monkeypatch.setattr(transaction_shard, "TRANSACTION_RULES", {**TRANSACTION_RULES, COMPLETE_COMMIT: rules})
    assert producer.end(True) is NONE
    assert producer.end(True) is ErrorCode.UNKNOWN_SERVER_ERROR
    monkeypatch.undo()
    assert producer.end(True) is NONE, "the connection is open"
    unexpected = f"[transactional.id={group}] Unexpected error in a request; responding UNKNOWN_SERVER_ERROR: "
    assert [line for line in broker.reports if line.startswith(unexpected)]


def test_a_deleted_topic_needs_no_marker(connection, topic, group, broker):
    producer = begun(connection, topic, group)
    broker.call(lambda b: run_at_once(b.delete_topic(topic)))
    assert producer.end(True) is NONE
    assert broker.call(lambda b: state_of(b, group)).status is COMPLETE_COMMIT


def test_unused_transactional_ids_expire(tmp_path):
    with EmbeddedBroker(tmp_path, config={**CONFIG, "transactional.id.expiration.ms": "1"}) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "t", 1)
            producer = RawTransactions(connection)
            assert producer.init() is NONE
            open_one = begun(connection, "t", "open")
            first = producer.producer_id

            def forgotten() -> bool:
                def look(b) -> bool:
                    run_at_once(b.transaction_coordinator.expire_transactional_ids())
                    return state_of(b, "id") is None

                return broker.call(look)

            wait_until(forgotten, "the id expires")
            assert open_one.end(True) is NONE, "an ongoing transaction keeps its id"
            assert producer.end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert producer.init() is NONE
            assert producer.producer_id != first and producer.epoch == 0


# --- starts


def before_the_end(connection: RawConnection, **options) -> RawTransactions:
    """An ongoing transaction with a record and an offset, after an aborted transaction."""
    create_topic(connection, "t", 1)
    producer = begun(connection, "t", "id", **options)
    assert producer.end(False) is NONE
    assert producer.add("t", 0) == [NONE] and producer.send("t", b"open") is NONE
    assert producer.add_offsets(GROUP) is NONE and producer.commit_offset(GROUP, "t", 7) == [NONE]
    return producer


SETTINGS = [f"{name}={value}" for name, value in CONFIG.items()]


@pytest.mark.parametrize("end", ("kill", "terminate"))
@pytest.mark.slow
def test_an_ongoing_transaction_continues_after_a_restart(tmp_path, end):
    with BrokerProcess(tmp_path, *SETTINGS) as broker, RawConnection(broker.bootstrap_servers) as connection:
        producer = before_the_end(connection)
        getattr(broker, end)()
    with BrokerProcess(tmp_path, *SETTINGS) as broker, RawConnection(broker.bootstrap_servers) as connection:
        producer.connection = connection
        assert read_committed(connection, "t")[1:] == ([(producer.producer_id, 0)], 2)
        assert committed_offset(connection, GROUP, "t", stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert producer.send("t", b"more") is NONE
        assert producer.end(True) is NONE
        assert read_committed(connection, "t")[1:] == ([(producer.producer_id, 0)], 5)
        assert committed_offset(connection, GROUP, "t", stable=True) == 7


@pytest.mark.slow
def test_a_transaction_timeout_applies_after_a_kill(tmp_path):
    with BrokerProcess(tmp_path, *SETTINGS) as broker, RawConnection(broker.bootstrap_servers) as connection:
        producer = before_the_end(connection, timeout_ms=4_000)
        broker.kill()
    with BrokerProcess(tmp_path, *SETTINGS) as broker, RawConnection(broker.bootstrap_servers) as connection:
        wait_until(lambda: read_committed(connection, "t")[2] == 4, "the transaction is aborted")
        assert read_committed(connection, "t")[1] == [(producer.producer_id, 0), (producer.producer_id, 2)]
        wait_until(lambda: committed_offset(connection, GROUP, "t", stable=True) == -1, "its offsets are dropped")
        assert broker.process.poll() is None


@pytest.mark.parametrize("committed", (True, False))
@pytest.mark.conformance("TS-018", "TS-019")
def test_a_restart_writes_the_markers_of_a_prepared_transaction(tmp_path, committed):
    running, copy = tmp_path / "running", tmp_path / "copy"
    with EmbeddedBroker(running, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        producer = before_the_end(connection)
        broker.call(lambda b: setattr(b.transaction_coordinator, "_complete", lambda shard, transactional_id: None))
        assert producer.end(committed) is NONE
        assert read_committed(connection, "t")[2] == 2
        shutil.copytree(running, copy)  # what a kill would leave
    with EmbeddedBroker(copy, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        wait_until(lambda: read_committed(connection, "t")[2] == 4, "the markers are written")
        status = broker.call(lambda b: state_of(b, "id")).status
        assert status is (COMPLETE_COMMIT if committed else COMPLETE_ABORT)
        assert committed_offset(connection, GROUP, "t", stable=True) == (7 if committed else -1)
        aborted = [(producer.producer_id, 0)] + [(producer.producer_id, 2)] * (not committed)
        assert read_committed(connection, "t")[1] == aborted


@pytest.mark.conformance("TS-032")
def test_a_corrupt_transaction_partition_is_reported_and_only_its_ids_are_unavailable(tmp_path):
    names = {0: "", 1: ""}
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        shards = broker.call(lambda b: b.transaction_coordinator.shards)
        broker.call(lambda _: shards.ensure_topic())
        for number in range(20):
            name = f"id-{number}"
            names[broker.call(lambda b, name=name: shards.partition_of(name).partition)] = name
        for name in names.values():
            assert RawTransactions(connection, name).init() is NONE
    path = next((tmp_path / "__transaction_state-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert RawTransactions(connection, names[1]).init() is NONE
        assert RawTransactions(connection, names[0]).find() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert RawTransactions(connection, names[0]).init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert any("Loading transactions of __transaction_state-0 failed" in line for line in broker.reports)


def test_a_long_transaction_log_is_loaded_beside_requests(tmp_path):
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        producer = RawTransactions(connection)
        for _ in range(10):
            assert producer.init() is NONE
    with ExitStack() as opened:
        with held_replay():
            broker = opened.enter_context(EmbeddedBroker(tmp_path, config=CONFIG))
            again = RawTransactions(opened.enter_context(RawConnection(broker.bootstrap_servers)))
            assert again.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        wait_until(lambda: again.init() is NONE, "the log is loaded")
        assert again.producer_id == producer.producer_id and again.epoch >= 10


@pytest.mark.kafka
def test_the_dump_tool_reads_every_file_of_transactions(tmp_path: Path, java: JavaTools):
    config = {**CONFIG, "log.segment.bytes": "2000"}
    with EmbeddedBroker(tmp_path, config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        producer = before_the_end(connection)
        assert producer.end(True) is NONE
        for number in range(20):
            assert producer.add("t", 0) == [NONE] and producer.send("t", b"%d" % number) is NONE
            assert producer.end(number % 2 == 0) is NONE
        assert producer.add("t", 0) == [NONE] and producer.send("t", b"open") is NONE
    files = [str(path) for path in sorted(tmp_path.glob("*-*/*"))]
    names = ("__transaction_state", "__consumer_offsets", "/t-0/")
    by_topic = {name: [path for path in files if name in path] for name in names}
    kinds = {Path(path).suffix for path in by_topic["/t-0/"]}
    assert {".log", ".index", ".timeindex", ".snapshot", ".txnindex"} <= kinds
    decoders = {"__transaction_state": ["--transaction-log-decoder"], "__consumer_offsets": ["--offsets-decoder"]}
    printed = {name: dump(java, paths, *decoders.get(name, [])) for name, paths in by_topic.items()}
    assert "endTxnMarker: COMMIT" in printed["/t-0/"] and "endTxnMarker: ABORT" in printed["/t-0/"]
    assert "isTransactional: true" in printed["/t-0/"] and "isControl: true" in printed["/t-0/"]
    assert f"producerId: {producer.producer_id}" in printed["/t-0/"] and "lastStableOffset: " in printed["/t-0/"]
    returned = printed["__transaction_state"].replace('"', "").replace(" ", "")
    assert "transactionalId:id" in returned or "transactionalId=id" in returned
    assert "endTxnMarker: COMMIT" in printed["__consumer_offsets"]


def dump(java: JavaTools, paths: list[str], *options: str) -> str:
    done = java.call(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", *options,
        "--files", ",".join(paths),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "isvalid: false" not in done.stdout and "Exception" not in done.stderr, done.stderr
    return done.stdout


# --- several nodes


def test_each_node_coordinates_the_ids_of_the_partitions_it_leads():
    with EmbeddedBroker(config=CONFIG, brokers=3) as broker:
        addresses = broker.bootstrap_servers.split(",")
        with RawConnection(addresses[0]) as first:
            create_topic(first, "t", 1)
            request = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
            (found,) = first.call(request, 4).coordinators
        other = found.node_id % 3 + 1
        with RawConnection(f"{found.host}:{found.port}") as own, RawConnection(addresses[other - 1]) as wrong:
            producer = RawTransactions(own)
            assert producer.init() is NONE and producer.add("t", 0) == [NONE]
            producer.connection = wrong
            assert producer.init() is ErrorCode.NOT_COORDINATOR
            assert producer.end(True) is ErrorCode.NOT_COORDINATOR
            broker.call(lambda b: b.move_leader(b.transaction_coordinator.shards.partition_of("id"), other))
            assert producer.end(True) is NONE, "the new coordinator knows the transaction"
            producer.connection = own
            assert producer.end(True) is ErrorCode.NOT_COORDINATOR


@pytest.mark.slow
def test_a_librdkafka_producer_follows_its_coordinator_and_leaders():
    with EmbeddedBroker(config=CONFIG, brokers=3) as broker:
        with RawConnection(broker.bootstrap_servers.split(",")[0]) as connection:
            create_topic(connection, "t", 3)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "id", "linger.ms": 0})
        producer.init_transactions(30)
        for number in range(6):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce("t", b"%d" % number, partition=partition)
            producer.flush(30)
            node = number % 3 + 1
            broker.call(lambda b, node=node: b.move_leader(b.transaction_coordinator.shards.partition_of("id"), node))
            broker.move_leader("t", number % 3, node)
            producer.commit_transaction(30)

        def stable(b):
            partitions = [b.partitions.partition("t", number) for number in range(3)]
            return [(each.last_stable_offset, each.log.log_end_offset) for each in partitions]

        assert broker.call(stable) == [(12, 12)] * 3
