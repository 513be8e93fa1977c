"""State tables of a transactional id, checked against a transaction coordinator shard."""

from __future__ import annotations

from itertools import product

import pytest

from spark_groupsource.broker.state_transitions import check_transition
from spark_groupsource.broker.transactions import Decision, TransactionConfig, TransactionShard, is_ending
from spark_groupsource.broker.transactions.transaction_states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TRANSACTION_RULES,
    TRANSACTION_STATE_NAMES,
    TRANSACTION_TRANSITIONS,
    TransactionOperation,
)
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.wire.transaction_records import TransactionStatus, encode_key, encode_value

T = "transaction"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 1_000
LAST_EPOCH = 2**15 - 2
CONFIG = TransactionConfig(transaction_max_timeout_ms=10_000, transactional_id_expiration_ms=100_000)


class Context:
    """One shard with its log and clock; `keep` appends and replays the record of a decision, as the broker does."""

    def __init__(self) -> None:
        self.shard = TransactionShard(CONFIG)
        self.log: list[tuple[bytes, bytes]] = []
        self.timestamp_ms = 5_000
        self._ids = 100

    def next_producer_id(self) -> int:
        self._ids += 1
        return self._ids

    def keep(self, decision: Decision) -> ErrorCode:
        if decision.value is not None:
            record = encode_key(T), encode_value(decision.value)
            self.log.append(record)
            self.shard.replay(*record)
            self.shard.on_stored(T, decision)
        return decision.error

    @property
    def value(self):
        return self.shard.transactions[T]

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.value.producer_id, self.value.producer_epoch)

    def init(self, expected: ProducerIdAndEpoch | None = None, timeout_ms: int = TIMEOUT_MS) -> ErrorCode:
        return self.keep(self.shard.init_producer_id(T, timeout_ms, expected, self.timestamp_ms, self.next_producer_id))

    def add(self, *partitions: TopicPartition, producer: ProducerIdAndEpoch | None = None) -> ErrorCode:
        return self.keep(self.shard.add_partitions(T, producer or self.producer, partitions, self.timestamp_ms))

    def end(self, committed: bool, producer: ProducerIdAndEpoch | None = None) -> ErrorCode:
        return self.keep(self.shard.end_transaction(T, producer or self.producer, committed, self.timestamp_ms))

    def complete(self) -> None:
        assert self.keep(self.shard.complete_transaction(T, self.timestamp_ms)) is ErrorCode.NONE

    def in_state(self, status: TransactionStatus) -> Context:
        self.init()
        if status is not EMPTY:
            self.add(P0)
        if status not in (EMPTY, ONGOING):
            self.end(status in (PREPARE_COMMIT, COMPLETE_COMMIT))
        if status in (COMPLETE_COMMIT, COMPLETE_ABORT):
            self.complete()
        assert self.value.status is status
        return self


def perform(context: Context, operation: TransactionOperation) -> ErrorCode:
    if operation is TransactionOperation.INIT:
        return context.init()
    if operation is TransactionOperation.ADD:
        return context.add(P1)
    if operation is TransactionOperation.EXPIRE:
        context.timestamp_ms += TIMEOUT_MS
        return context.keep(context.shard.abort_timed_out(T, context.timestamp_ms))
    return context.end(operation is TransactionOperation.COMMIT)


INIT, ADD, COMMIT, ABORT, EXPIRE = TransactionOperation
OK, BUSY, INVALID = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
# From Kafka's TransactionCoordinator, independent of the tables of this package: state -> operation -> error, following
# state, steps of the epoch, records
EXPECTED = {
    EMPTY: {
        INIT: (OK, EMPTY, 1, 1), ADD: (OK, ONGOING, 0, 1), COMMIT: (INVALID, EMPTY, 0, 0),
        ABORT: (INVALID, EMPTY, 0, 0), EXPIRE: (OK, EMPTY, 0, 0),
    },
    ONGOING: {
        INIT: (BUSY, PREPARE_ABORT, 1, 1), ADD: (OK, ONGOING, 0, 1), COMMIT: (OK, PREPARE_COMMIT, 0, 1),
        ABORT: (OK, PREPARE_ABORT, 0, 1), EXPIRE: (OK, PREPARE_ABORT, 1, 1),
    },
    PREPARE_COMMIT: {
        **dict.fromkeys((INIT, ADD, COMMIT, ABORT), (BUSY, PREPARE_COMMIT, 0, 0)), EXPIRE: (OK, PREPARE_COMMIT, 0, 0),
    },
    PREPARE_ABORT: {
        **dict.fromkeys((INIT, ADD, COMMIT, ABORT), (BUSY, PREPARE_ABORT, 0, 0)), EXPIRE: (OK, PREPARE_ABORT, 0, 0),
    },
    COMPLETE_COMMIT: {
        INIT: (OK, EMPTY, 1, 1), ADD: (OK, ONGOING, 0, 1), COMMIT: (OK, COMPLETE_COMMIT, 0, 0),
        ABORT: (INVALID, COMPLETE_COMMIT, 0, 0), EXPIRE: (OK, COMPLETE_COMMIT, 0, 0),
    },
    COMPLETE_ABORT: {
        INIT: (OK, EMPTY, 1, 1), ADD: (OK, ONGOING, 0, 1), COMMIT: (INVALID, COMPLETE_ABORT, 0, 0),
        ABORT: (OK, COMPLETE_ABORT, 0, 0), EXPIRE: (OK, COMPLETE_ABORT, 0, 0),
    },
}  # fmt: skip


@pytest.mark.parametrize("operation", TransactionOperation, ids=lambda operation: operation.name)
@pytest.mark.parametrize("status", TransactionStatus, ids=lambda status: status.name)
@pytest.mark.conformance(
    "TC-014", "TC-015", "TC-017", "TC-018", "TC-019", "TC-020", "TC-027", "TC-028", "TC-029", "TC-030", "TC-031",
    "TC-037", "TC-038", "TC-046", "TC-047", "TC-048", "TC-049", "TC-061", "TS-006", "TS-017",
)  # fmt: skip
def test_every_operation_in_every_state_has_kafkas_result(
    status: TransactionStatus, operation: TransactionOperation
) -> None:
    context = Context().in_state(status)
    before, records = context.value, len(context.log)
    error, after, steps, added = EXPECTED[status][operation]

    assert perform(context, operation) is error

    assert (context.value.status, len(context.log)) == (after, records + added)
    assert context.value.producer_epoch == before.producer_epoch + steps
    if not added:
        assert context.value == before


def test_the_tables_are_complete() -> None:
    assert set(TRANSACTION_RULES) == set(TRANSACTION_TRANSITIONS) == set(TRANSACTION_STATE_NAMES) == set(
        TransactionStatus
    )
    assert all(set(row) == set(TransactionOperation) for row in TRANSACTION_RULES.values())
    assert {status for status in TransactionStatus if is_ending(status)} == {PREPARE_COMMIT, PREPARE_ABORT}


@pytest.mark.parametrize("old, new", list(product(TransactionStatus, TransactionStatus)))
def test_only_the_transitions_of_the_table_are_allowed(old: TransactionStatus, new: TransactionStatus) -> None:
    arguments = f"'{T}'", TRANSACTION_TRANSITIONS, old, new, TRANSACTION_STATE_NAMES.__getitem__
    if old in TRANSACTION_TRANSITIONS[new]:
        check_transition(*arguments)
    else:
        names = f"{TRANSACTION_STATE_NAMES[old]} to {TRANSACTION_STATE_NAMES[new]}"
        with pytest.raises(RuntimeError, match=f"'{T}' cannot transition from {names}"):
            check_transition(*arguments)


# --- producers


@pytest.mark.conformance("TC-003", "TC-004", "TC-045")
def test_first_producer_gets_a_producer_id_and_epoch_0() -> None:
    context = Context()
    assert context.init() is ErrorCode.NONE
    assert (context.producer, context.value.timeout_ms) == (ProducerIdAndEpoch(101, 0), TIMEOUT_MS)
    assert context.init(timeout_ms=7) is ErrorCode.NONE
    assert (context.producer, context.value.timeout_ms) == (ProducerIdAndEpoch(101, 1), 7)
    unknown = Context()
    assert unknown.init(expected=ProducerIdAndEpoch(55, 3)) is ErrorCode.NONE
    assert unknown.producer == ProducerIdAndEpoch(101, 0)


@pytest.mark.parametrize("timeout_ms", (0, -1, 10_001))
@pytest.mark.conformance("TS-001")
def test_timeout_out_of_bounds_is_rejected(timeout_ms: int) -> None:
    assert Context().init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.conformance("TC-001", "TC-009", "TC-040")
def test_empty_and_too_long_transactional_ids_are_rejected() -> None:
    shard = TransactionShard()
    assert shard.init_producer_id("ä" * 2**14, 1, None, 0, int).error is ErrorCode.INVALID_REQUEST
    longest = shard.init_producer_id("ä" * (2**14 - 1), 1, None, 0, int)
    assert longest.error is ErrorCode.NONE and encode_key("ä" * (2**14 - 1))
    assert shard.init_producer_id("", 1, None, 0, int).error is ErrorCode.INVALID_REQUEST
    assert shard.add_partitions("", ProducerIdAndEpoch(1, 0), [P0], 0).error is ErrorCode.INVALID_REQUEST
    assert shard.end_transaction("", ProducerIdAndEpoch(1, 0), True, 0).error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("status", TransactionStatus, ids=lambda status: status.name)
@pytest.mark.conformance("TC-013", "TC-016", "TC-025", "TC-026", "TC-043", "TC-044")
def test_other_producers_are_rejected_in_every_state(status: TransactionStatus) -> None:
    context = Context().in_state(status)
    stranger, current = ProducerIdAndEpoch(55, 0), context.producer
    zombie, future = (ProducerIdAndEpoch(current.producer_id, current.epoch + step) for step in (-1, 1))
    fenced = ErrorCode.PRODUCER_FENCED
    for producer, code in ((stranger, ErrorCode.INVALID_PRODUCER_ID_MAPPING), (zombie, fenced), (future, fenced)):
        # the state of an ending transaction changes by itself, so AddPartitionsToTxn is retried before it is checked
        assert context.add(P1, producer=producer) is (ErrorCode.CONCURRENT_TRANSACTIONS if is_ending(status) else code)
        assert context.end(True, producer) is code
        assert context.shard.verify(T, producer, P0) is code
    if is_ending(status):
        assert context.init(stranger) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert context.shard.verify("unknown", stranger, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.conformance("TC-050")
def test_new_producer_aborts_the_open_transaction_and_gets_an_epoch_after_the_markers() -> None:
    context = Context().in_state(ONGOING)
    assert context.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (context.value.status, context.value.producer_epoch) == (PREPARE_ABORT, 1)
    assert context.value.partitions == {P0}
    context.complete()
    assert context.init() is ErrorCode.NONE
    assert context.producer.epoch == 2


def with_epoch(epoch: int, status: TransactionStatus = EMPTY) -> Context:
    context = Context().in_state(status)
    value = context.value.__class__(**{**vars(context.value), "producer_epoch": epoch})
    context.shard.replay(encode_key(T), encode_value(value))
    return context


@pytest.mark.parametrize("expects", (True, False))
@pytest.mark.conformance("TC-005", "TC-058", "TC-059")
def test_last_epoch_is_followed_by_a_new_producer_id(expects: bool) -> None:
    context = with_epoch(LAST_EPOCH)
    last = context.producer
    assert context.init(last if expects else None) is ErrorCode.NONE
    assert context.producer == ProducerIdAndEpoch(102, 0)
    assert context.value.previous_producer_id == last.producer_id
    # a retry after a lost response gets the same result, if the first request had the expected epoch
    assert context.init(last) is (ErrorCode.NONE if expects else ErrorCode.PRODUCER_FENCED)
    # neither another epoch of the former producer id nor the last epoch of another one
    for producer_id, epoch in ((last.producer_id, last.epoch - 1), (last.producer_id, 0), (55, last.epoch)):
        assert context.init(ProducerIdAndEpoch(producer_id, epoch)) is ErrorCode.PRODUCER_FENCED
    assert context.producer == ProducerIdAndEpoch(102, 0)


@pytest.mark.conformance("TC-053")
def test_open_transaction_is_fenced_in_the_last_epoch() -> None:
    context = with_epoch(LAST_EPOCH, ONGOING)
    assert context.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert context.value.producer_epoch == LAST_EPOCH + 1
    context.complete()
    assert context.init() is ErrorCode.NONE
    assert context.producer == ProducerIdAndEpoch(102, 0)


# --- a producer that recovers from an error (KIP-360)


def test_fenced_producer_does_not_continue_after_the_last_epoch() -> None:
    """Its transaction could not be fenced: a further epoch has no representation."""
    context = with_epoch(LAST_EPOCH, ONGOING)
    fenced = context.producer
    perform(context, TransactionOperation.EXPIRE)
    context.complete()
    assert context.producer.epoch == LAST_EPOCH + 1
    with pytest.raises(RuntimeError, match="has no further epoch"):
        context.init(fenced)
    assert context.init() is ErrorCode.NONE and context.producer.epoch == 0


def test_transaction_in_the_largest_epoch_can_be_aborted() -> None:
    """Other brokers may have stored it."""
    context = with_epoch(LAST_EPOCH + 1, ONGOING)
    perform(context, TransactionOperation.EXPIRE)
    assert (context.value.status, context.producer.epoch) == (PREPARE_ABORT, LAST_EPOCH + 1)


@pytest.mark.conformance("TC-056")
def test_producer_raises_its_epoch_and_may_retry() -> None:
    context = Context().in_state(COMPLETE_ABORT)
    before = context.producer
    assert context.init(before) is ErrorCode.NONE
    assert context.producer.epoch == before.epoch + 1
    records = len(context.log)
    assert context.init(before) is ErrorCode.NONE, "a retry after the response was lost"
    assert context.producer.epoch == before.epoch + 1
    assert len(context.log) == records + 1


@pytest.mark.conformance("TC-054", "TC-055", "TC-057")
def test_replaced_producer_is_fenced() -> None:
    context = Context().in_state(EMPTY)
    before = context.producer
    context.init()
    assert context.init(before) is ErrorCode.PRODUCER_FENCED
    assert context.init(ProducerIdAndEpoch(55, 0)) is ErrorCode.PRODUCER_FENCED
    loaded = with_epoch(4)  # from a log, which does not have the epoch before
    assert loaded.init(ProducerIdAndEpoch(loaded.producer.producer_id, 3)) is ErrorCode.PRODUCER_FENCED


def test_last_epoch_is_kept_during_a_transaction() -> None:
    context = Context().in_state(EMPTY)
    before = context.producer
    context.init(before)
    context.add(P0)
    context.end(True)
    context.complete()
    assert context.init(before) is ErrorCode.NONE
    assert context.producer.epoch == before.epoch + 1


@pytest.mark.parametrize("reason", ("timeout", "another InitProducerId", "its own InitProducerId"))
def test_fenced_producer_continues_with_the_raised_epoch_unless_it_is_replaced(reason: str) -> None:
    """KIP-588: a producer whose transaction has timed out sends InitProducerId with its epoch."""
    context = Context().in_state(ONGOING)
    before = context.producer
    if reason == "timeout":
        context.timestamp_ms += TIMEOUT_MS
        assert context.keep(context.shard.abort_timed_out(T, context.timestamp_ms)) is ErrorCode.NONE
    else:
        expected = before if reason == "its own InitProducerId" else None
        assert context.init(expected) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert context.init(before) is ErrorCode.CONCURRENT_TRANSACTIONS
    context.complete()
    for _ in range(2):
        assert context.init(before) is ErrorCode.NONE
        assert context.producer == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert context.init() is ErrorCode.NONE
    assert context.producer.epoch == before.epoch + 2
    assert context.init(before) is ErrorCode.PRODUCER_FENCED


# --- partitions and timeouts


@pytest.mark.conformance("TC-021")
def test_known_partitions_add_no_record() -> None:
    context = Context().in_state(ONGOING)
    start = context.value.start_ms
    records = len(context.log)
    assert context.add(P0) is ErrorCode.NONE and len(context.log) == records
    context.timestamp_ms += 10
    assert context.add(P0, P1) is ErrorCode.NONE and len(context.log) == records + 1
    assert context.value.partitions == {P0, P1} and context.value.start_ms == start


@pytest.mark.conformance("TC-013", "TC-022", "TC-023")
def test_only_partitions_of_the_open_transaction_are_verified() -> None:
    context = Context().in_state(ONGOING)
    verify = context.shard.verify
    assert verify(T, context.producer, P0) is ErrorCode.NONE
    assert verify(T, context.producer, P1) is ErrorCode.TRANSACTION_ABORTABLE
    context.end(True)
    assert verify(T, context.producer, P0) is ErrorCode.CONCURRENT_TRANSACTIONS
    context.complete()
    assert verify(T, context.producer, P0) is ErrorCode.TRANSACTION_ABORTABLE


def test_transaction_timeout_starts_with_the_transaction() -> None:
    context = Context().in_state(ONGOING)
    context.timestamp_ms += TIMEOUT_MS - 1
    context.add(P1)
    assert context.shard.time_left_ms(T, context.timestamp_ms) == 1
    assert context.shard.abort_timed_out(T, context.timestamp_ms).value is None
    context.timestamp_ms += 1
    assert context.keep(context.shard.abort_timed_out(T, context.timestamp_ms)) is ErrorCode.NONE
    assert context.value.status is PREPARE_ABORT
    assert context.end(True, ProducerIdAndEpoch(101, 0)) is ErrorCode.PRODUCER_FENCED
    assert context.shard.abort_timed_out("gone", context.timestamp_ms).value is None


@pytest.mark.conformance("TS-020", "TS-021", "TS-022", "TS-024", "TS-025", "TS-026")
def test_unused_ids_expire_unless_a_transaction_is_open() -> None:
    for status in TransactionStatus:
        context = Context().in_state(status)
        limit = context.timestamp_ms + CONFIG.transactional_id_expiration_ms
        assert list(context.shard.expired_ids(limit - 1)) == []
        closed = status in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
        assert list(context.shard.expired_ids(limit)) == ([T] if closed else [])


@pytest.mark.conformance("TS-005", "TS-034")
def test_replay_restores_transactions_and_tombstones_remove_them() -> None:
    for status in TransactionStatus:
        context = Context().in_state(status)
        loaded = TransactionShard(CONFIG)
        for key, value in context.log:
            loaded.replay(key, value)
        assert loaded.transactions == context.shard.transactions
        loaded.replay(b"\x00\x09new", b"?")  # a key of a newer kind
        loaded.replay(encode_key(T), None)
        assert loaded.transactions == {}
