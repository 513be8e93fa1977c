"""The tables of a transactional id: every state times every ask, walked against a live shard on a manual clock."""

from __future__ import annotations

from itertools import product

import pytest

from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.transactions import Decision, ProducerIdAndEpoch, TransactionConfig, TransactionShard, is_ending
from spark_groupsource.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TRANSACTION_RULES,
    TRANSACTION_STATE_NAMES,
    TRANSACTION_TRANSITIONS,
    TransactionAction,
    TransactionOperation,
)
from spark_groupsource.wire.transaction_records import TransactionStatus, encode_key, encode_value

T = "transaction"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 1_000
LAST_EPOCH = 2**15 - 2
CONFIG = TransactionConfig(transaction_max_timeout_ms=10_000, transactional_id_expiration_ms=100_000)


class Context:
    """One shard with its log and clock; `keep` does what a broker does with a decision, markers aside."""

    def __init__(self) -> None:
        self.shard = TransactionShard(CONFIG)
        self.log: list[tuple[bytes, bytes]] = []
        self.now_ms = 5_000
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
        return self.keep(self.shard.init_producer_id(T, timeout_ms, expected, self.now_ms, self.next_producer_id))

    def add(self, *partitions: TopicPartition, producer: ProducerIdAndEpoch | None = None) -> ErrorCode:
        return self.keep(self.shard.add_partitions(T, producer or self.producer, partitions, self.now_ms))

    def end(self, committed: bool, producer: ProducerIdAndEpoch | None = None) -> ErrorCode:
        return self.keep(self.shard.end_transaction(T, producer or self.producer, committed, self.now_ms))

    def complete(self) -> None:
        assert self.keep(self.shard.complete_transaction(T, self.now_ms)) is ErrorCode.NONE

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


def ask(context: Context, what: TransactionOperation) -> ErrorCode:
    if what is TransactionOperation.INIT:
        return context.init()
    if what is TransactionOperation.ADD:
        return context.add(P1)
    if what is TransactionOperation.EXPIRE:
        context.now_ms += TIMEOUT_MS
        return context.keep(context.shard.abort_timed_out(T, context.now_ms))
    return context.end(what is TransactionOperation.COMMIT)


AFTER = {
    TransactionAction.RAISE_EPOCH: EMPTY,
    TransactionAction.FENCE: PREPARE_ABORT,
    TransactionAction.BEGIN: ONGOING,
    TransactionAction.EXTEND: ONGOING,
}


@pytest.mark.parametrize("what", TransactionOperation, ids=lambda what: what.name)
@pytest.mark.parametrize("status", TransactionStatus, ids=lambda status: status.name)
def test_each_state_answers_each_ask_as_the_table_says(status: TransactionStatus, what: TransactionOperation) -> None:
    context = Context().in_state(status)
    before, records = context.value, len(context.log)
    rule = TRANSACTION_RULES[status][what]

    assert ask(context, what) is rule.error

    if rule.action in (TransactionAction.REJECT, TransactionAction.CONFIRM):
        assert (context.value, len(context.log)) == (before, records)
        return
    assert len(context.log) == records + 1
    end = PREPARE_COMMIT if what is TransactionOperation.COMMIT else PREPARE_ABORT
    assert context.value.status is AFTER.get(rule.action, end)
    raised = rule.action in (TransactionAction.RAISE_EPOCH, TransactionAction.FENCE)
    assert context.value.producer_epoch == before.producer_epoch + raised
    assert before.status in TRANSACTION_TRANSITIONS[context.value.status]


def test_the_tables_are_complete() -> None:
    assert set(TRANSACTION_RULES) == set(TRANSACTION_TRANSITIONS) == set(TRANSACTION_STATE_NAMES) == set(
        TransactionStatus
    )
    assert all(set(row) == set(TransactionOperation) for row in TRANSACTION_RULES.values())
    assert {status for status in TransactionStatus if is_ending(status)} == {PREPARE_COMMIT, PREPARE_ABORT}


@pytest.mark.parametrize("old, new", list(product(TransactionStatus, TransactionStatus)))
def test_no_decision_breaks_the_table_of_transitions(old: TransactionStatus, new: TransactionStatus) -> None:
    context = Context().in_state(old)
    changed = context.value.__class__(**{**vars(context.value), "status": new})
    if old in TRANSACTION_TRANSITIONS[new]:
        context.shard._store(T, changed)
    else:
        with pytest.raises(RuntimeError, match=f"{T} cannot go from {old.name} to {new.name}"):
            context.shard._store(T, changed)


# --- producers


def test_a_first_producer_gets_an_id_and_epoch_0() -> None:
    context = Context()
    assert context.init() is ErrorCode.NONE
    assert (context.producer, context.value.timeout_ms) == (ProducerIdAndEpoch(101, 0), TIMEOUT_MS)
    assert context.init(timeout_ms=7) is ErrorCode.NONE
    assert (context.producer, context.value.timeout_ms) == (ProducerIdAndEpoch(101, 1), 7)


@pytest.mark.parametrize("timeout_ms", (0, -1, 10_001))
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    assert Context().init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_empty_transactional_id_is_refused_and_one_that_no_record_holds() -> None:
    shard = TransactionShard()
    assert shard.init_producer_id("ä" * 2**14, 1, None, 0, int).error is ErrorCode.INVALID_REQUEST
    longest = shard.init_producer_id("ä" * (2**14 - 1), 1, None, 0, int)
    assert longest.error is ErrorCode.NONE and encode_key("ä" * (2**14 - 1))
    assert shard.init_producer_id("", 1, None, 0, int).error is ErrorCode.INVALID_REQUEST
    assert shard.add_partitions("", ProducerIdAndEpoch(1, 0), [P0], 0).error is ErrorCode.INVALID_REQUEST
    assert shard.end_transaction("", ProducerIdAndEpoch(1, 0), True, 0).error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("status", TransactionStatus, ids=lambda status: status.name)
def test_who_is_not_the_producer_is_refused_in_every_state(status: TransactionStatus) -> None:
    context = Context().in_state(status)
    stranger, zombie = ProducerIdAndEpoch(55, 0), ProducerIdAndEpoch(
        context.producer.producer_id, context.producer.epoch - 1
    )
    for who, code in ((stranger, ErrorCode.INVALID_PRODUCER_ID_MAPPING), (zombie, ErrorCode.PRODUCER_FENCED)):
        assert context.add(P1, producer=who) is code
        assert context.end(True, who) is code
        assert context.shard.verify(T, who, P0) is code
    assert context.shard.verify("unknown", stranger, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_second_producer_aborts_what_is_open_and_gets_a_later_epoch_than_the_markers() -> None:
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
def test_after_the_last_epoch_comes_another_producer_id(expects: bool) -> None:
    context = with_epoch(LAST_EPOCH)
    last = context.producer
    assert context.init(last if expects else None) is ErrorCode.NONE
    assert context.producer == ProducerIdAndEpoch(102, 0)
    assert context.value.previous_producer_id == last.producer_id
    # the answer was lost: who says what it had is told again, if it had said so before
    assert context.init(last) is (ErrorCode.NONE if expects else ErrorCode.PRODUCER_FENCED)
    assert context.producer == ProducerIdAndEpoch(102, 0)


def test_an_open_transaction_is_fenced_even_in_the_last_epoch() -> None:
    context = with_epoch(LAST_EPOCH, ONGOING)
    assert context.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert context.value.producer_epoch == LAST_EPOCH + 1
    context.complete()
    assert context.init() is ErrorCode.NONE
    assert context.producer == ProducerIdAndEpoch(102, 0)


# --- a producer that goes on after an error (KIP-360)


def test_a_producer_raises_its_own_epoch_and_may_ask_again() -> None:
    context = Context().in_state(COMPLETE_ABORT)
    before = context.producer
    assert context.init(before) is ErrorCode.NONE
    assert context.producer.epoch == before.epoch + 1
    records = len(context.log)
    assert context.init(before) is ErrorCode.NONE, "its answer was lost"
    assert context.producer.epoch == before.epoch + 1
    assert len(context.log) == records + 1


def test_a_producer_that_was_replaced_is_fenced() -> None:
    context = Context().in_state(EMPTY)
    before = context.producer
    context.init()
    assert context.init(before) is ErrorCode.PRODUCER_FENCED
    assert context.init(ProducerIdAndEpoch(55, 0)) is ErrorCode.PRODUCER_FENCED


def test_a_transaction_in_between_leaves_the_last_epoch_known() -> None:
    context = Context().in_state(EMPTY)
    before = context.producer
    context.init(before)
    context.add(P0)
    context.end(True)
    context.complete()
    assert context.init(before) is ErrorCode.NONE
    assert context.producer.epoch == before.epoch + 1


# --- partitions and time


def test_partitions_are_gathered_and_known_ones_cost_no_record() -> None:
    context = Context().in_state(ONGOING)
    start = context.value.start_ms
    records = len(context.log)
    assert context.add(P0) is ErrorCode.NONE and len(context.log) == records
    context.now_ms += 10
    assert context.add(P0, P1) is ErrorCode.NONE and len(context.log) == records + 1
    assert context.value.partitions == {P0, P1} and context.value.start_ms == start


def test_only_partitions_of_the_open_transaction_are_vouched_for() -> None:
    context = Context().in_state(ONGOING)
    verify = context.shard.verify
    assert verify(T, context.producer, P0) is ErrorCode.NONE
    assert verify(T, context.producer, P1) is ErrorCode.TRANSACTION_ABORTABLE
    context.end(True)
    assert verify(T, context.producer, P0) is ErrorCode.CONCURRENT_TRANSACTIONS
    context.complete()
    assert verify(T, context.producer, P0) is ErrorCode.TRANSACTION_ABORTABLE


def test_a_transaction_has_its_time_from_its_beginning() -> None:
    context = Context().in_state(ONGOING)
    context.now_ms += TIMEOUT_MS - 1
    context.add(P1)
    assert context.shard.time_left_ms(T, context.now_ms) == 1
    assert context.shard.abort_timed_out(T, context.now_ms).value is None
    context.now_ms += 1
    assert context.keep(context.shard.abort_timed_out(T, context.now_ms)) is ErrorCode.NONE
    assert context.value.status is PREPARE_ABORT
    assert context.end(True, ProducerIdAndEpoch(101, 0)) is ErrorCode.PRODUCER_FENCED
    assert context.shard.abort_timed_out("gone", context.now_ms).value is None


def test_unused_ids_are_named_when_nothing_is_open() -> None:
    for status in TransactionStatus:
        context = Context().in_state(status)
        limit = context.now_ms + CONFIG.transactional_id_expiration_ms
        assert list(context.shard.expired_ids(limit - 1)) == []
        closed = status in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
        assert list(context.shard.expired_ids(limit)) == ([T] if closed else [])


def test_replay_finds_what_was_kept_and_tombstones_forget() -> None:
    for status in TransactionStatus:
        context = Context().in_state(status)
        loaded = TransactionShard(CONFIG)
        for key, value in context.log:
            loaded.replay(key, value)
        assert loaded.transactions == context.shard.transactions
        loaded.replay(b"\x00\x09new", b"?")  # a key of a newer kind
        loaded.replay(encode_key(T), None)
        assert loaded.transactions == {}
