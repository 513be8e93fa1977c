"""Records histories of clients of a cluster with faults.

    PYTHONPATH=jobs:tests python tests/histories/record.py --histories 1000 --seed 7 [--kafka] [--spark]

Several processes record beside each other, because clients of a broker with a fault mostly wait. A process starts a
cluster for each part of 10 histories, and each history has a topic of its own. With --spark, a Spark query that copies
the topic exactly once is one of the clients, and a history has several faults, also of its processes. A history with
anomalies is printed, and ends the run with status 1. A table has the faults, and what became of the operations:
transactions that are committed, aborted, or neither as far as their client knows, and single sends of which some are
indefinite, too.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from uuid import uuid4

from support.clients import open_cluster
from support.topics import create_topic

from histories.checker import Anomaly, find_anomalies
from histories.clients import (
    API_TIMEOUT_S,
    REQUEST_TIMEOUT_MS,
    Client,
    LibrdkafkaReader,
    Recorder,
    clients,
    fetch_offset,
)
from histories.faulty_clusters import FaultyCluster, OneBroker, ThreeBrokers
from histories.history import History, Operation, Outcome
from histories.spark_copies import SparkCopies
from spark_groupsource.client.records.transactions import Transactions

PARTITIONS = 2
_PART = 10
# operations before a fault, and from its end on: a number, so that histories of a busy machine have them, too
_BEFORE, _AFTER = (5, 40), (20, 40)
_OPERATIONS_S = 20.0
# the start of a Spark application takes longer than a fault
_SPARK_FAULTS = 8
_END_S = 60.0
_TRANSACTIONS = ("committed", "aborted", "unknown")
_COUNTED = (
    "histories", "faults", "operations", *_TRANSACTIONS, "sends", "indefinite", "batches", "polls", "values", "errors",
)  # fmt: skip

Seconds = Counter[str]
"""Time by phase of a history"""
Counts = Counter[tuple[str, str]]
"""What happened, by fault and column of the table"""


class Stopwatch:
    """Adds the time since the last call to a phase."""

    def __init__(self) -> None:
        self.seconds: Seconds = Counter()
        self._began_s = time.monotonic()

    def end(self, phase: str) -> None:
        now_s = time.monotonic()
        self.seconds[phase] += now_s - self._began_s  # type: ignore[assignment]
        self._began_s = now_s


def record(cluster: FaultyCluster, seed: int, spark: Path | None = None) -> tuple[list[str], History, Seconds]:
    """Records one history; returns the faults that were injected, the history, and the time of its phases.

    Args:
        spark: a directory for a Spark application, which takes part.
    Raises: AssertionError if a client fails, or if the logs cannot be read to their ends.
    """
    draw, watch = random.Random(seed), Stopwatch()
    bootstrap_servers = cluster.bootstrap_servers
    recorder = Recorder(f"h{uuid4().hex[:10]}", PARTITIONS)
    create_topic(bootstrap_servers, recorder.topic, PARTITIONS)
    copies = None if spark is None else SparkCopies(spark, bootstrap_servers, recorder)
    try:
        if copies is None:
            faults = [draw.choice(cluster.faults)]
        else:
            faults = draw.choices([*cluster.faults, *SparkCopies.faults], k=_SPARK_FAULTS)
            copies.wait_ready()
        timeouts = {
            "default_api_timeout_ms": str(int(API_TIMEOUT_S * 1000)), "request_timeout_ms": str(REQUEST_TIMEOUT_MS)
        }  # fmt: skip
        with open_cluster(bootstrap_servers, **timeouts) as own:
            running = list(clients(recorder, bootstrap_servers, own, seed))
            ended, errors = threading.Event(), list[BaseException]()
            threads = [threading.Thread(target=_run, args=(client, ended, errors), daemon=True) for client in running]
            for thread in threads:
                thread.start()
            watch.end("start")
            for fault in faults:
                _wait_for(recorder, draw.randint(*_BEFORE))
                watch.end("before the fault")
                if copies is not None and fault in SparkCopies.faults:
                    copies.inject(fault)
                else:
                    cluster.inject(fault, draw)
                watch.end("fault")
            _wait_for(recorder, draw.randint(*_AFTER))
            watch.end("after it")
            ended.set()
            for thread in threads:
                thread.join(_END_S)
                assert not thread.is_alive(), f"a client did not end:\n{_stack(thread)}"
            assert not errors, f"a client failed: {errors}"
            watch.end("last operations")
        with open_cluster(bootstrap_servers) as own:
            # a transaction that is open hides what comes after it
            for name in "abc":
                transactional_id = f"{recorder.topic}-{name}"
                Transactions(own, transactional_id).init(1_000)
                group, partition = recorder.group(transactional_id)
                recorder.add(Operation("end", group=group, fetched=fetch_offset(own, group, partition)))
        last = LibrdkafkaReader(recorder, bootstrap_servers, "end")
        deadline_s = time.monotonic() + _END_S
        assert last.read_to_end(lambda: time.monotonic() > deadline_s), "the logs could not be read to their ends"
        watch.end("read to the end")
        for client in [*running, last]:
            client.close()
        watch.end("close")
        copied = [] if copies is None else copies.operations()
        watch.end("copies")
    finally:
        if copies is not None:
            copies.close()
    return faults, recorder.history + copied, watch.seconds


def _wait_for(recorder: Recorder, count: int) -> None:
    """Waits until the clients have performed `count` more operations, for at most 20 s."""
    expected, deadline_s = len(recorder.history) + count, time.monotonic() + _OPERATIONS_S
    while len(recorder.history) < expected and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _stack(thread: threading.Thread) -> str:
    """Returns where a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _run(client: Client, ended: threading.Event, errors: list[BaseException]) -> None:
    try:
        while not ended.is_set():
            client.step()
    except BaseException as error:
        errors.append(error)


def counted(faults: Sequence[str], history: History) -> Counts:
    """Returns what happened in a history."""
    name = faults[0] if len(faults) == 1 else "several"
    found = Counter({(name, "histories"): 1, (name, "operations"): len(history)})
    if len(faults) > 1:
        found.update((fault, "faults") for fault in faults)
    else:
        found[name, "faults"] = 1
    outcomes = {Outcome.OK: "committed", Outcome.FAILED: "aborted", Outcome.UNKNOWN: "unknown"}
    for operation in history:
        if operation.process == "spark":
            found[name, "batches"] += 1
        elif operation.is_transaction:
            found[name, outcomes[operation.outcome]] += 1
        elif operation.sent:
            found[name, "sends"] += 1
            found[name, "indefinite"] += operation.outcome is Outcome.UNKNOWN
        found[name, "polls"] += bool(operation.polled)
        found[name, "values"] += len(operation.polled)
        found[name, "errors"] += bool(operation.error)
    return found


def run_part(
    seeds: Sequence[int], start: Callable[[Path], FaultyCluster] = OneBroker, has_spark: bool = False
) -> tuple[Counts, Seconds]:
    """Records and checks histories one after another on one cluster.

    Raises: AssertionError with the anomalies of the first history that has some.
    """
    counts: Counts = Counter()
    seconds: Seconds = Counter()
    with tempfile.TemporaryDirectory() as directory:
        cluster = start(Path(directory))
        try:
            for seed in seeds:
                faults, history, spent = record(cluster, seed, Path(directory) if has_spark else None)
                anomalies = find_anomalies(history)
                counts += counted(faults, history)
                seconds += spent
                assert not anomalies, _report(seed, faults, anomalies, history)
        finally:
            cluster.stop()
    return counts, seconds


def run(
    histories: int,
    seed: int,
    processes: int = 1,
    start: Callable[[Path], FaultyCluster] = OneBroker,
    has_spark: bool = False,
) -> tuple[Counts, Seconds]:
    """Records and checks histories in parts; returns what happened, and the time of the phases.

    Raises: AssertionError with the anomalies of the first history that has some.
    """
    counts: Counts = Counter()
    seconds: Seconds = Counter()
    end, began_s = seed + histories, time.monotonic()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        parts = [range(first, min(first + _PART, end)) for first in range(seed, end, _PART)]
        for done in as_completed([pool.submit(run_part, part, start, has_spark) for part in parts]):
            of_part, spent = done.result()
            counts += of_part
            seconds += spent
            print(f"after {time.monotonic() - began_s:.0f} s:", *table(counts, seconds), sep="\n", flush=True)
    return counts, seconds


def _report(seed: int, faults: Sequence[str], anomalies: list[Anomaly], history: History) -> str:
    lines = [f"history {seed} ({', '.join(faults)}) has {len(anomalies)} anomalies:"]
    lines += [f"  {kind}: {text}" for kind, text in anomalies[:20]]
    lines += [f"  {number}: {operation}" for number, operation in enumerate(history)]
    return "\n".join(lines)


def table(counts: Counts, seconds: Seconds) -> Iterable[str]:
    """Yields lines with what happened by fault, and with the mean time of each phase of a history."""
    faults = sorted({fault for fault, _ in counts})
    yield f"{'fault':<15}" + "".join(f"{name:>11}" for name in _COUNTED)
    for fault in faults:
        yield f"{fault:<15}" + "".join(f"{counts[fault, name]:>11,}" for name in _COUNTED)
    yield f"{'all':<15}" + "".join(f"{sum(counts[f, name] for f in faults):>11,}" for name in _COUNTED)
    histories = sum(counts[fault, "histories"] for fault in faults)
    yield "seconds of a history: " + ", ".join(f"{name} {spent / histories:.1f}" for name, spent in seconds.items())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, help="default: 8, and 1 with a real Kafka or Spark")
    parser.add_argument("--kafka", action="store_true", help="a real Apache Kafka of one broker")
    parser.add_argument("--three-brokers", action="store_true", help="a real Apache Kafka of three brokers")
    parser.add_argument("--spark", action="store_true", help="with a Spark query that writes exactly once")
    options = parser.parse_args()
    start: Callable[[Path], FaultyCluster] = partial(OneBroker, kafka=options.kafka)
    if options.three_brokers:
        start = ThreeBrokers
    processes = options.processes or (1 if options.kafka or options.three_brokers or options.spark else 8)
    try:
        counts, _ = run(options.histories, options.seed, processes, start, options.spark)
    except AssertionError as error:
        print(error)
        return 1
    print(f"{sum(n for (_, name), n in counts.items() if name == 'histories')} histories, no anomaly")
    return 0


if __name__ == "__main__":
    sys.exit(main())
