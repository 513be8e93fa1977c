"""Attacks that fill the memory bounds of a broker, alone or together.

    PYTHONPATH=jobs:tests python tests/attacks/full_bounds.py [NAME ...] [--document docs/security.md]

prints what each bound costs on a new broker, and writes it into the table of the page after each bound; the other rows
stay. `hostile.py --document` does this, too.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

from attacks.attack_frames import create_topics, fetch, half_sent, join_group, metadata_of, produce
from attacks.client_attacks import Client, Outcome, Target
from attacks.hostile_report import BoundCost, write_bounds
from attacks.state_attacks import begin_transaction, commit_frame, find_coordinator, frame
from support.commit_requests import commit_topics
from support.raw_broker import BrokerProcess

from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.messages import (
    FetchRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

_TOPIC, _WIDTH = "full-wide-0", 5_000
_PIPELINED, _REJECTED = 50, 300
_PARTITIONS_OF_PRODUCERS = 20
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
Fill = Callable[[Target, ExitStack], None]
"""Fills one bound; keeps connections open in the stack if the state belongs to them."""


def _send_all(client: Client, frames: Iterator[bytes], code_at: slice = slice(0, 0)) -> None:
    """Sends frames, some at a time, and reads their responses.

    Ends when the broker has rejected many requests on end, by the error code at `code_at` of their responses.
    """
    rejected = 0
    while rejected < _REJECTED and (some := list(islice(frames, _PIPELINED))):
        client.send(b"".join(some))
        for _ in some:
            response = client.read()
            if response is None:
                return
            rejected = rejected + 1 if any(response[code_at]) else 0


def _wide_topic(target: Target) -> None:
    with target.connect() as client:
        client.call(create_topics(1, _WIDTH, "full-wide"))


def partitions(target: Target, stack: ExitStack) -> None:
    """12,000 partitions"""
    _wide_topic(target)
    with target.connect() as client:
        client.call(create_topics(1, 7_000, "full-wider"))


def topics(target: Target, stack: ExitStack) -> None:
    """2,000 topics with one partition and names of 200 characters"""
    with target.connect() as client:
        for number in range(2):
            client.call(create_topics(1_000, 1, f"{'t' * 200}-{number}"))


def group_offsets(target: Target, stack: ExitStack) -> None:
    """Offsets without metadata, up to group.coordinator.max.state.bytes."""
    _wide_topic(target)
    with target.connect() as client:
        find_coordinator(client, _GROUP_KEY, "g")
        for number in range(40):
            client.call(commit_frame(f"full-offsets-{number}", _TOPIC, range(_WIDTH)))


def groups(target: Target, stack: ExitStack) -> None:
    """Groups with one offset, up to group.coordinator.max.state.bytes."""
    _wide_topic(target)
    with target.connect() as client:
        find_coordinator(client, _GROUP_KEY, "g")
        frames = (commit_frame(f"full-{number}", _TOPIC, range(1)) for number in range(30_000))
        _send_all(client, frames, slice(-5, -3))


def members(target: Target, stack: ExitStack) -> None:
    """Groups with one member, up to group.coordinator.max.state.bytes."""
    with target.connect() as client:
        find_coordinator(client, _GROUP_KEY, "g")
        frames = (join_group(f"full-member-{number}", b"m", session_timeout_ms=300_000) for number in range(30_000))
        _send_all(client, frames, slice(8, 10))


def pending_offsets(target: Target, stack: ExitStack) -> None:
    """Offsets in open transactions, up to group.coordinator.max.state.bytes."""
    _wide_topic(target)
    topics = commit_topics(TxnOffsetCommitRequest, {_TOPIC: dict.fromkeys(range(_WIDTH), 1)})
    with target.connect() as client:
        find_coordinator(client, _GROUP_KEY, "g")
        for number in range(30):
            name = f"full-pending-{number}"
            ids = begin_transaction(client, name, _TOPIC, 1, 900_000)
            request = TxnOffsetCommitRequest(transactional_id=name, group_id=name, topics=topics, **ids)
            client.call(frame(request, 3))


def producers(target: Target, stack: ExitStack, count: int = 20_000) -> None:
    """Producers with five batches each, as many as partitions know."""
    _wide_topic(target)
    timestamp_ms = int(time.time() * 1000)
    records = [Record(None, b"v", timestamp_ms)]
    topic_data = ProduceRequest.TopicProduceData

    def frames() -> Iterator[bytes]:
        for number in range(10**9, 10**9 + count, _PARTITIONS_OF_PRODUCERS):
            for sequence in range(5):
                parts = [
                    topic_data.PartitionProduceData(
                        index=partition,
                        records=bytes(
                            encode_batch(
                                records, producer_id=number + partition, producer_epoch=0, base_sequence=sequence
                            )
                        ),
                    )
                    for partition in range(_PARTITIONS_OF_PRODUCERS)
                ]
                data = [topic_data(name=_TOPIC, partition_data=parts)]
                yield frame(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data), 8)

    with target.connect() as client:
        _send_all(client, frames())


def transactional_ids(target: Target, stack: ExitStack) -> None:
    """Transactional ids, as many as the coordinator accepts."""
    with target.connect() as client:
        find_coordinator(client, _TRANSACTION_KEY, "id")
        _send_all(
            client,
            (
                frame(InitProducerIdRequest(transactional_id=f"full-{number}", transaction_timeout_ms=60_000), 2)
                for number in range(20_000)
            ),
            slice(9, 11),
        )


def transactions(target: Target, stack: ExitStack) -> None:
    """Transactions of 5,000 partitions, as many as the coordinator accepts."""
    _wide_topic(target)
    with target.connect() as client:
        for number in range(30):
            begin_transaction(client, f"full-transaction-{number}", _TOPIC, _WIDTH, 900_000)


def _fetch_frame(partitions: int, session_epoch: int, max_wait_ms: int, first: int = 0) -> bytes:
    wanted = FetchRequest.FetchTopic
    parts = [
        wanted.FetchPartition(
            partition=number, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000
        )
        for number in range(first, first + partitions)
    ]
    request = FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=10_000, isolation_level=0, session_id=0,
        session_epoch=session_epoch, topics=[wanted(topic=_TOPIC, partitions=parts)], forgotten_topics_data=[],
        rack_id="",
    )  # fmt: skip
    return frame(request, 11)


def fetch_sessions(target: Target, stack: ExitStack) -> None:
    """Fetch sessions of 4,000 partitions, as many as a node keeps."""
    _wide_topic(target)
    with target.connect() as client:
        _send_all(client, (_fetch_frame(4_000, 0, 0, 900) for _ in range(30)))


def delayed_fetches(target: Target, stack: ExitStack) -> None:
    """100 fetches of 4,000 partitions that wait for records."""
    _wide_topic(target)
    request = _fetch_frame(4_000, -1, 600_000, 900)
    for _ in range(100):
        stack.enter_context(target.connect()).send(request)


def connections(target: Target, stack: ExitStack) -> None:
    """5,000 connections with an incomplete request of 16 kB each."""
    data = half_sent(1_000_000, 16_000)
    for _ in range(5_000):
        with suppress(OSError):
            client = stack.enter_context(target.connect())
            client.socket.setblocking(False)
            client.socket.send(data)


def _at_once(sends: Sequence[Callable[[bytes], object]], data: bytes) -> None:
    """Sends the data by all clients at the same time; waits up to a minute for each."""
    threads = [threading.Thread(target=send, args=(data,), daemon=True) for send in sends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def incomplete_requests(target: Target, stack: ExitStack) -> None:
    """100 incomplete requests of 4 MB."""
    data = half_sent(100_000_000, 4_000_000)
    clients = [stack.enter_context(target.connect()) for _ in range(100)]
    _at_once([client.send_available for client in clients], data)


def waiting_requests(target: Target, stack: ExitStack) -> None:
    """1,000 clients that send requests of 60 kB, which are handled in time slices, and read nothing."""
    data = metadata_of([f"{'n' * 100}-{number}" for number in range(560)])
    for _ in range(1_000):
        client = stack.enter_context(target.connect(receive_bytes=4096))
        client.socket.setblocking(False)
        with suppress(OSError):
            client.socket.send(data)


def large_requests(target: Target, stack: ExitStack) -> None:
    """20 clients with requests of 39,000 names each, whose responses are as large."""
    data = metadata_of([f"n-{number}" for number in range(39_000)])
    clients = [stack.enter_context(target.connect()) for _ in range(20)]
    _at_once([client.call for client in clients], data)


def unread_responses(target: Target, stack: ExitStack) -> None:
    """50 clients that request records and do not read them."""
    batch = bytes(encode_batch([Record(None, bytes(900_000), int(time.time() * 1000))]))
    with target.connect() as client:
        client.call(create_topics(1, 1, "full-bulk"))
        for _ in range(20):
            client.call(produce("full-bulk-0", batch))
    for _ in range(50):
        stack.enter_context(target.connect(receive_bytes=4096)).send(fetch("full-bulk-0", 50_000_000) * 20)
    time.sleep(2)


STATE: dict[str, Fill] = {
    each.__name__: each
    for each in (
        partitions, topics, group_offsets, groups, members, pending_offsets, producers, transactional_ids, transactions,
        fetch_sessions,
    )
}  # fmt: skip
"""Bounds of what stays when the clients are gone."""

TRANSIENT: dict[str, Fill] = {
    each.__name__: each
    for each in (
        delayed_fetches, connections, incomplete_requests, waiting_requests, large_requests, unread_responses,
    )
}  # fmt: skip
"""Bounds of what belongs to requests and connections."""


def fill_all_bounds(target: Target) -> Outcome:
    """Fills the memory of all state, then those of requests and connections at the same time."""
    with ExitStack() as held:
        producers(target, held, 2_000)
        for fill in (transactions, fetch_sessions, group_offsets):
            fill(target, held)
        threads = [threading.Thread(target=fill, args=(target, held), daemon=True) for fill in TRANSIENT.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return Outcome()


_SETTINGS = (
    "offsets.topic.num.partitions=5", "transaction.state.log.num.partitions=5", "group.initial.rebalance.delay.ms=0",
)  # fmt: skip


def measure(name: str) -> BoundCost:
    """Fills one bound of a new broker; returns its memory before, at most, and 6 s afterwards."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(Path(directory) / "data", *_SETTINGS))
        target = Target(broker.bootstrap_servers, broker.process.pid)
        time.sleep(1)
        before = peak = target.memory_mb()
        is_done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not is_done.wait(0.01):
                peak = max(peak, target.memory_mb())

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ExitStack() as held:
            (STATE | TRANSIENT)[name](target, held)
            time.sleep(6)  # until the broker has returned free pages
            after = target.memory_mb()
        is_done.set()
        watcher.join()
    return BoundCost(_description(name), before, peak, after)


def measure_all(names: Iterable[str], document: Path | None) -> None:
    """Measures bounds; prints each, and writes it into the page."""
    for name in names:
        cost = measure(name)
        print(cost.row, flush=True)
        if document is not None:
            write_bounds(document, [cost], [_description(each) for each in STATE | TRANSIENT])


def _description(name: str) -> str:
    return ((STATE | TRANSIENT)[name].__doc__ or "").rstrip(".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="bounds; default: all")
    parser.add_argument("--document", type=Path, metavar="FILE", help="page with the table of bounds")
    options = parser.parse_args()
    measure_all(options.names or [*STATE, *TRANSIENT], options.document)


if __name__ == "__main__":
    main()
