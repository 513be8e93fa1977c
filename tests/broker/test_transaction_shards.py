"""Transaction coordinator runtime: loading, failed appends, expiration, lists of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.held_replay import held_replay
from support.raw_broker import RawConnection, create_topic
from support.raw_transactions import RawTransactions
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.transactions.transaction_states import COMPLETE_COMMIT, EMPTY, ONGOING, PREPARE_ABORT
from spark_groupsource.common.coroutines import begin, run_at_once
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.wire.messages import DescribeTransactionsRequest, InitProducerIdRequest, ListTransactionsRequest
from spark_groupsource.wire.transaction_records import TRANSACTIONS_TOPIC

NONE = ErrorCode.NONE
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
CONFIG = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(config=CONFIG, brokers=2) as running:
        yield running


@pytest.fixture
def connection(broker, topic):
    with RawConnection(broker.bootstrap_servers.split(",")[0]) as opened:
        create_topic(opened, topic, 2)
        move(broker, 1)
        yield opened


def move(broker: EmbeddedBroker, node_id: int) -> None:
    """Makes a node the coordinator of all transactional ids."""
    broker.call(lambda b: b.transaction_coordinator.shards.ensure_topic())
    broker.move_leader(TRANSACTIONS_TOPIC, 0, node_id)


def begun(connection: RawConnection, topic: str, transactional_id: str) -> RawTransactions:
    producer = RawTransactions(connection, transactional_id)
    wait_until(lambda: producer.init() is NONE, "the coordinator is loaded")
    assert producer.add(topic, 0) == [NONE]
    return producer


def value_of(broker: EmbeddedBroker, transactional_id: str) -> Any:
    """The stored state of a transactional id, None if there is none."""
    return broker.call(lambda b: b.transaction_coordinator.shards.loaded_shard(0).state_machine.transactions).get(
        transactional_id
    )


def listed(connection: RawConnection, version: int = 2, **filters: Any) -> Any:
    request = ListTransactionsRequest(
        **{"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
    )
    return connection.call(request, version)


def described(connection: RawConnection, transactional_id: str) -> Any:
    (found,) = connection.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
    return found


class FailingAppends:
    """Makes the next `count` appends to the transaction log fail with a code."""

    def __init__(self, broker: EmbeddedBroker, code: ErrorCode, count: int = 1) -> None:
        log = broker.call(lambda b: b.partitions.partition(TRANSACTIONS_TOPIC, 0))
        self._append = append = Partition.append_from_coordinator
        left = [count]

        def append_or_raise(partition: Partition, *arguments: Any) -> Any:
            left[0] -= partition is log
            if partition is log and left[0] >= 0:
                raise ApiError(code, "rejected")
            return append(partition, *arguments)

        self._broker = broker
        self._replace(append_or_raise)

    def end(self) -> None:
        self._replace(self._append)

    def _replace(self, append: Callable[..., Any]) -> None:
        # an instance has slots; its class is patched in the thread of the broker
        self._broker.call(lambda b: setattr(Partition, "append_from_coordinator", append))


# --- loading and unloading


@pytest.mark.conformance("TC-007", "TC-012", "TC-042", "TC-068", "TS-015")
def test_every_request_gets_an_error_while_the_log_is_loaded(broker, connection, topic, group):
    producer = begun(connection, topic, group)
    broker.call(lambda b: b.transaction_coordinator.shards.pause_loading(True))
    move(broker, 2)
    with RawConnection(broker.bootstrap_servers.split(",")[1]) as other:
        producer.connection = other
        assert (producer.init(), producer.add(topic, 1), producer.end(True)) == (LOADING, [LOADING], LOADING)
        assert (described(other, group).error_code, listed(other).error_code) == (LOADING, LOADING)
        broker.call(lambda b: b.transaction_coordinator.shards.pause_loading(False))
        assert producer.end(True) is NONE
        assert listed(other).error_code == 0


@pytest.mark.conformance("TC-006", "TC-011", "TC-041", "TC-060", "TS-003", "TS-005", "TS-014", "TS-031")
def test_the_ids_of_a_partition_move_with_its_leader_and_return_with_their_state(broker, connection, topic, group):
    producer = begun(connection, topic, group)
    move(broker, 2)
    moved = ErrorCode.NOT_COORDINATOR
    assert (producer.init(), producer.add(topic, 1), producer.end(True)) == (moved, [moved], moved)
    assert described(connection, group).error_code == moved
    assert group not in [each.transactional_id for each in listed(connection).transaction_states]
    move(broker, 1)
    wait_until(lambda: described(connection, group).error_code != LOADING, "the log is loaded")
    assert described(connection, group).transaction_state == "Ongoing"
    assert producer.end(True) is NONE


@pytest.mark.conformance("TS-004")
def test_a_partition_that_moves_while_it_is_loaded_is_not_served_by_the_former_leader(broker, connection, topic, group):
    begun(connection, topic, group)
    shards = broker.call(lambda b: b.transaction_coordinator.shards)
    broker.call(lambda b: shards.pause_loading(True))
    move(broker, 2)
    loading = broker.call(lambda b: shards.get_or_load(0))
    move(broker, 1)
    broker.call(lambda b: shards.pause_loading(False))
    wait_until(lambda: broker.call(lambda b: shards.find_loaded(0)) is not None, "the log is loaded")
    assert broker.call(lambda b: shards.find_loaded(0)) is not loading
    assert not loading.is_loaded and loading.state_machine.transactions == {}
    assert value_of(broker, group).status is ONGOING


@pytest.mark.conformance("TS-004")
def test_a_partition_that_moves_during_a_pause_of_its_replay_is_not_served_by_the_former_leader(
    broker, connection, topic, group
):
    begun(connection, topic, group)
    shards = broker.call(lambda b: b.transaction_coordinator.shards)
    with held_replay():
        move(broker, 2)
        loading = broker.call(lambda b: shards.get_or_load(0))
        move(broker, 1)
    wait_until(lambda: broker.call(lambda b: shards.find_loaded(0)) is not None, "the log is loaded")
    assert broker.call(lambda b: shards.find_loaded(0)) is not loading and not loading.is_loaded
    assert value_of(broker, group).status is ONGOING


@pytest.mark.conformance("TC-002")
def test_idempotent_producers_get_consecutive_producer_ids(connection):
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
    )
    first, second = (connection.call(request, 4) for _ in range(2))
    assert (first.error_code, first.producer_epoch) == (second.error_code, second.producer_epoch) == (0, 0)
    assert second.producer_id == first.producer_id + 1


# --- failed appends


@pytest.mark.conformance("TS-007", "TS-008", "TS-010")
@pytest.mark.parametrize(
    ("code", "returned"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_append_changes_nothing_and_is_an_error_of_the_coordinator(
    broker, connection, topic, group, code, returned
):
    producer = begun(connection, topic, group)
    before = value_of(broker, group)
    failing = FailingAppends(broker, code, 2)
    assert (producer.end(True), producer.add(topic, 1)) == (returned, [returned])
    failing.end()
    assert value_of(broker, group) == before
    assert producer.end(True) is NONE
    assert value_of(broker, group).status is COMPLETE_COMMIT


@pytest.mark.conformance("TC-052")
def test_failed_appends_of_an_abort_do_not_raise_the_epoch_repeatedly(broker, connection, topic, group):
    producer = begun(connection, topic, group)
    failing = FailingAppends(broker, ErrorCode.NOT_ENOUGH_REPLICAS, 2)
    errors = [producer.init() for _ in range(3)]
    failing.end()
    not_available = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert errors == [not_available, not_available, ErrorCode.CONCURRENT_TRANSACTIONS]
    assert value_of(broker, group).producer_epoch == producer.epoch + 1


@pytest.mark.slow
@pytest.mark.conformance("TC-064")
def test_a_failed_append_of_a_timeout_does_not_raise_the_epoch_and_is_retried(broker, connection, topic, group):
    producer = RawTransactions(connection, group, timeout_ms=1_000)
    wait_until(lambda: producer.init() is NONE, "the coordinator is loaded")
    failing = FailingAppends(broker, ErrorCode.NOT_ENOUGH_REPLICAS, 1)
    assert producer.add(topic, 0) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    failing.end()
    assert producer.add(topic, 0) == [NONE]
    failing = FailingAppends(broker, ErrorCode.NOT_ENOUGH_REPLICAS, 1)
    wait_until(lambda: value_of(broker, group).status not in (ONGOING, PREPARE_ABORT), "the transaction is aborted")
    failing.end()
    assert value_of(broker, group).producer_epoch == producer.epoch + 1


# --- expiration


@pytest.mark.conformance("TS-023", "TS-028")
def test_an_id_whose_tombstone_is_not_stored_remains(broker, connection, group):
    producer = RawTransactions(connection, group)
    wait_until(lambda: producer.init() is NONE, "the coordinator is loaded")
    failing = FailingAppends(broker, ErrorCode.NOT_ENOUGH_REPLICAS, 1_000)
    expire(broker)
    failing.end()
    assert value_of(broker, group).status is EMPTY
    expire(broker)
    assert value_of(broker, group) is None


def test_an_id_that_is_used_between_two_steps_of_the_expiration_remains(broker, connection, topic, group):
    """Its transaction would be lost with its state."""
    producer = RawTransactions(connection, group)
    wait_until(lambda: producer.init() is NONE, "the coordinator is loaded")

    def begin_expiration(b):
        machine = b.transaction_coordinator.shards.loaded_shard(0).state_machine
        config = machine.config
        machine.config = config.__class__(config.transaction_max_timeout_ms, -1)
        work = b.transaction_coordinator.expire_transactional_ids()
        begin(work, 0)  # the expired ids are found
        return work, machine, config

    work, machine, config = broker.call(begin_expiration)
    assert producer.add(topic, 0) == [NONE]
    broker.call(lambda b: run_at_once(work))
    machine.config = config
    assert value_of(broker, group).status is ONGOING


@pytest.mark.conformance("TS-027", "TS-029")
def test_tombstones_of_many_ids_are_stored_in_batches_below_the_limit(broker, connection, group):
    for number in range(20):
        producer = RawTransactions(connection, f"{group}-{number}")
        wait_until(lambda producer=producer: producer.init() is NONE, "the coordinator is loaded")

    def set_limit(b, limit: str) -> int:
        settings = {**b.partitions.topic(TRANSACTIONS_TOPIC).settings, "max.message.bytes": limit}
        run_at_once(b.partitions.alter_topic(TRANSACTIONS_TOPIC, settings))
        return b.partitions.partition(TRANSACTIONS_TOPIC, 0).log.log_end_offset

    end = broker.call(lambda b: set_limit(b, "50"))
    expire(broker)
    assert value_of(broker, f"{group}-0").status is EMPTY, "a limit below the size of a tombstone"
    broker.call(lambda b: set_limit(b, "150"))
    expire(broker)
    broker.call(lambda b: set_limit(b, "1048588"))
    assert [value_of(broker, f"{group}-{number}") for number in range(20)] == [None] * 20
    log = broker.call(lambda b: b.partitions.partition(TRANSACTIONS_TOPIC, 0).log)
    sizes = broker.call(lambda b: [stored.header.size for stored in log.batches(end)])
    assert len(sizes) >= 20 and max(sizes) <= 150


def expire(broker: EmbeddedBroker) -> None:
    """Expires every transactional id without an open transaction."""

    def run(b) -> None:
        machine = b.transaction_coordinator.shards.loaded_shard(0).state_machine
        config = machine.config
        machine.config = config.__class__(config.transaction_max_timeout_ms, -1)
        run_at_once(b.transaction_coordinator.expire_transactional_ids())
        machine.config = config

    broker.call(run)


# --- tables


@pytest.mark.conformance("TS-016")
def test_list_transactions_filters_by_state_producer_duration_and_pattern(connection, topic, group):
    ongoing = begun(connection, topic, f"{group}-ongoing")
    completed = begun(connection, topic, f"{group}-completed")
    assert completed.end(True) is NONE
    expected = {"ongoing": ongoing, "completed": completed}

    def names(**filters: Any) -> set[str]:
        response = listed(connection, **filters)
        assert response.error_code == 0
        own = [each for each in response.transaction_states if each.transactional_id.startswith(group)]
        for each in own:
            assert each.producer_id == expected[each.transactional_id.removeprefix(f"{group}-")].producer_id
        return {each.transactional_id.removeprefix(f"{group}-") for each in own}

    assert names() == {"ongoing", "completed"}
    assert names(state_filters=["Ongoing"]) == {"ongoing"}
    assert names(state_filters=["Ongoing", "CompleteCommit"]) == {"ongoing", "completed"}
    assert names(state_filters=["PrepareAbort"]) == set()
    assert names(producer_id_filters=[completed.producer_id]) == {"completed"}
    assert names(producer_id_filters=[10**12]) == set()
    assert names(state_filters=["Ongoing"], producer_id_filters=[completed.producer_id]) == set()
    assert names(duration_filter=10**9) == set()
    assert names(transactional_id_pattern=f"{group}-.*ing") == {"ongoing"}
    assert names(transactional_id_pattern="ongoing") == set(), "the whole id has to match"
    known = ["Ongoing", "Dead", "PrepareEpochFence"]
    assert listed(connection, state_filters=[*known, "x"]).unknown_state_filters == ["x"]


@pytest.mark.conformance("TC-066", "TC-067", "TC-069", "TS-002")
def test_describe_transactions_returns_the_stored_state(broker, connection, topic, group):
    producer = begun(connection, topic, group)
    assert producer.add(topic, 1) == [NONE]
    found = described(connection, group)
    stored = value_of(broker, group)
    assert (found.error_code, found.transactional_id, found.transaction_state) == (0, group, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (producer.timeout_ms, stored.start_ms)
    assert [(each.topic, sorted(each.partitions)) for each in found.topics] == [(topic, [0, 1])]
    assert described(connection, "").error_code == ErrorCode.INVALID_REQUEST
    assert described(connection, f"{group}-unknown").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
