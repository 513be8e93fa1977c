"""Check of a transactional id: its transaction and its progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_groupsource.cli.doctor_findings import CheckResult, Status
from spark_groupsource.client.cluster.cluster_client import ClusterClient, TopicInfo
from spark_groupsource.client.transaction_states import (
    OpenTransaction,
    TransactionState,
    describe_transaction,
    open_transactions,
)
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.source.positions.published_progress import WriterProgress, progress_group, read_progress

_EMPTY_STATES = frozenset({"Empty", "CompleteCommit", "CompleteAbort"})


class TransactionFacts(NamedTuple):
    """What is known of a transactional id; `state` is None if it does not exist, `now_ms` in epoch milliseconds."""

    transactional_id: str
    state: TransactionState | None
    open: Sequence[OpenTransaction]
    progress: Sequence[WriterProgress]
    now_ms: int


def read_transaction(cluster: ClusterClient, name: str, topics: Sequence[TopicInfo]) -> TransactionFacts:
    """Reads the state of a transactional id, and the open transactions of its partitions and of topics."""
    state = describe_transaction(cluster, name)
    partitions = set(state.partitions) if state is not None else set()
    partitions |= {TopicPartition(topic.name, number) for topic in topics for number in topic.partitions}
    found = open_transactions(cluster, partitions) if partitions else []
    progress = read_progress(cluster.fetch_committed(progress_group(name)).values())
    return TransactionFacts(name, state, found, progress, SystemClock().timestamp_ms())


def evaluate_transaction(found: TransactionFacts) -> Iterator[CheckResult]:
    """Returns the lines of a transactional id."""
    name, state = f"Transactional id {found.transactional_id!r}", found.state
    if state is None:
        fix = "The first batch of the query creates it; it expires when it is not used for 7 days."
        yield CheckResult(Status.UNKNOWN, f"{name} does not exist.", fix)
    elif state.state in _EMPTY_STATES:
        yield CheckResult(Status.GOOD, f"{name} has no open transaction (state {state.state}, {_producer(state)}).")
    else:
        yield _of_open(name, state, found.now_ms)
    for progress in found.progress:
        text = f"Batch {progress.batch} is the last one that query {progress.writer} has published."
        yield CheckResult(Status.GOOD, text)
    yield from _hanging(found)


def _of_open(name: str, state: TransactionState, now_ms: int) -> CheckResult:
    age_ms = now_ms - state.started_ms
    held = bounded_names(state.partitions)
    text = (
        f"{name} has a transaction in state {state.state} for {age_ms / 1000:,.1f} s, of {_producer(state)}, in "
        f"{held or 'no partition yet'}: read_committed consumers do not get later records, nor the group its offsets."
    )
    left_ms = state.timeout_ms - age_ms
    if state.state == "Ongoing" and left_ms > 0:
        fix = f"It ends with its batch; if the query is gone, when it starts again, or in {left_ms / 1000:,.1f} s."
        return CheckResult(Status.UNKNOWN, text, fix)
    fix = "The coordinator does not end it: check that the brokers of these partitions run, and their logs."
    return CheckResult(Status.BAD, text, fix)


def _hanging(found: TransactionFacts) -> Iterator[CheckResult]:
    """Transactions in the log that the coordinator does not know: nothing ends them."""
    state = found.state
    known = set(state.partitions) if state is not None and state.state not in _EMPTY_STATES else set()
    for each in found.open:
        is_own = state is not None and each.producer.producer_id == state.producer.producer_id
        if is_own and each.topic_partition not in known:
            text = (
                f"{each.topic_partition} has a transaction of producer id {each.producer.producer_id} since offset "
                f"{each.start_offset} that its coordinator does not know: it hangs, and nothing ends it."
            )
            fix = (
                f"Run: kafka-transactions.sh abort --topic {each.topic_partition.topic} --partition "
                f"{each.topic_partition.partition} --start-offset {each.start_offset}."
            )
            yield CheckResult(Status.BAD, text, fix)
        elif not is_own:
            age_s = max(found.now_ms - each.last_timestamp_ms, 0) / 1000
            text = (
                f"{each.topic_partition} has a transaction of another producer (id {each.producer.producer_id}) since "
                f"offset {each.start_offset}, whose last record is {age_s:,.1f} s old."
            )
            fix = "If it lasts, run: kafka-transactions.sh find-hanging --broker-id ID."
            yield CheckResult(Status.UNKNOWN, text, fix)


def _producer(state: TransactionState) -> str:
    return f"producer id {state.producer.producer_id}, epoch {state.producer.epoch}"
