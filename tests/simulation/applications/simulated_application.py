"""Simulated Spark application around the real session, members and heartbeats.

A batch is delivered when its `commits/N` is written, or, where the query writes exactly once, when its transaction is
committed. The processes of the driver, the reader and the executor are
killed together; the driver alone may be suspended.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence
from uuid import UUID

from simulation.applications.simulated_cluster import BOOTSTRAP, GROUP
from simulation.applications.simulated_topic import OUTPUT, TOPIC
from simulation.applications.simulated_transactions import Publishing
from simulation.applications.virtual_kernel import Process, VirtualClock, VirtualThread

from spark_groupsource.client.network.outage import Outage
from spark_groupsource.client.records.transactions import can_begin_again
from spark_groupsource.errors import (
    BrokerError,
    DataLossError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    TransactionAbortedError,
)
from spark_groupsource.model import OffsetRange, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.source.group.ownership import GroupPartitions
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.source_options import SourceOptions
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.positions.offset_json import decode_offset, logged_ranges
from spark_groupsource.source.positions.published_progress import WriterProgress
from spark_groupsource.source.session import StreamSession
from spark_groupsource.source.sink.publisher import JoinedOffsets, Publication, publish
from spark_groupsource.source.tasks.task_partition import GroupInputPartition
from spark_groupsource.source.tasks.task_reader import open_heartbeat
from spark_groupsource.wire.messages import FetchRequest

if TYPE_CHECKING:
    from simulation.applications.application_run import ApplicationRun

SESSION_MS = 10_000
MAX_POLL_MS = 30_000
# the control socket's thread of a reader acts as often
_CONTROL_MS = 700


@lru_cache(maxsize=64)
def parsed_options(extra: tuple[tuple[str, str], ...]) -> SourceOptions:
    options = {
        "kafka.bootstrap.servers": BOOTSTRAP,
        "subscribe": TOPIC,
        "kafka.group.id": GROUP,
        "startingOffsets": "earliest",
        "kafka.session.timeout.ms": str(SESSION_MS),
        "kafka.heartbeat.interval.ms": "3000",
        "kafka.max.poll.interval.ms": str(MAX_POLL_MS),
        **dict(extra),
    }
    return parse_options(options, "stream")


@dataclass(frozen=True)
class Workload:
    """How one application behaves.

    Attributes:
        trigger_ms: interval of its trigger; 0 starts the next batch at once.
        batch_ms: usual duration of the tasks of a batch.
        is_registered: finished batches are reported to the reader at once.
    """

    members: int
    trigger_ms: int
    batch_ms: int
    max_offsets: int | None
    is_registered: bool
    is_foreign: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


class PhantomAssignor:
    """An assignor of another client, which assigns a partition that does not exist to the last member."""

    def __init__(self, assignor: Any) -> None:
        self._assignor = assignor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._assignor, name)

    def assign(self, counts: Any, members: Sequence[Any], racks: Any = None) -> Any:
        assigned = dict(self._assignor.assign(counts, members, racks))
        last = max(member.member_id for member in members)
        assigned[last] = [*assigned.get(last, ()), TopicPartition(TOPIC, 99)]
        return assigned


class Application:
    """One query with its checkpoint: `start` is the end of the last finished batch, `logged` that of `offsets/N`."""

    def __init__(self, run: ApplicationRun, name: str, workload: Workload) -> None:
        self.run, self.name, self.workload = run, name, workload
        self.kernel = run.kernel
        self.random: Random = run.random
        self.start: dict[str, Any] = {}
        self.logged: dict[str, Any] | None = None
        self.finished: list[dict[str, Any]] = []
        # where a batch begins that was logged, and then finished without its records
        self.left_out: dict[TopicPartition, int] = {}
        self.number = 0
        self.is_drained = False
        self.is_leaving = False
        self.is_running = False
        self.is_replaying = False
        self.has_planned = False
        self.session: StreamSession | None = None
        # the partitions of the first assignment, with the group's offsets
        self.first_owned: dict[TopicPartition, int] | None = None
        self.warnings: list[str] = []
        self.driver = self.reader = self.executor = self._process("none")
        self._reports: deque[dict[str, Any]] = deque()
        self._in_batch = False
        self._drain_requested = False
        # requested before everything is read: the application starts again
        self.is_restarting = False
        self._batches = 0

    @property
    def is_transactional(self) -> bool:
        return "kafka.transactional.id" in self.workload.options

    @property
    def client_id(self) -> str:
        return f"{self.name}.{self.number}"

    def _process(self, kind: str) -> Process:
        return Process(self.kernel, f"{self.name} {kind}")

    # -- life of one run ---------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Starts the query from its checkpoint."""
        self.number += 1
        self.is_leaving = self._drain_requested = self.has_planned = self._in_batch = False
        self.is_running = True
        self.session = self.first_owned = None
        self.is_restarting = self.is_replaying = False
        self.warnings = []
        self._reports.clear()
        self.driver, self.reader, self.executor = map(self._process, ("driver", "reader", "executor"))
        self.driver.start(f"query {self.client_id}", self._query)

    def kill(self) -> None:
        self.run.trace(f"{self.name} is killed")
        self.is_running = False
        for process in (self.driver, self.reader, self.executor):
            process.kill()

    @contextmanager
    def _inside(self, process: Process) -> Iterator[None]:
        """The thread of the block waits for a callback in another process."""
        thread = self.kernel.current
        former = thread.process
        _move(thread, process)
        try:
            if process.paused_until_ms > self.kernel.now_ms:
                self.kernel.sleep_ms(process.paused_until_ms - self.kernel.now_ms)
            yield
        finally:
            _move(thread, former)

    def _query(self) -> None:
        try:
            self._run_query()
        except GroupSourceError as error:
            self.run.query_failed(self, error)
            self.is_leaving = True
            session = self.session
            if session is not None:
                with self._inside(self.reader):
                    session.close("the query has failed")
            self._end()
            self.run.ended(self)

    def _end(self) -> None:
        """The processes end, the thread of the query last."""
        self.is_running = False
        for process in (self.reader, self.executor):
            process.kill()

    def _open(self) -> StreamSession:
        workload, process = self.workload, self.reader
        options = parsed_options(tuple(sorted(workload.options.items()))).with_client_id(self.client_id)
        cluster = self.run.cluster.client(process, options.client_settings(BOOTSTRAP))
        clock = VirtualClock(process)
        ownership = GroupPartitions(cluster, options, clock, workload.members)
        self._shared = ownership._group.shared
        if workload.is_foreign:
            for member in self._shared.members:
                member.assignors = {name: PhantomAssignor(each) for name, each in member.assignors.items()}
        settings = options.task_settings(cluster.settings)
        self.sink_client = self.run.cluster.client(self.driver, cluster.settings)
        self.task_client = self.run.cluster.client(self.executor, settings)
        session = StreamSession(cluster, options, ownership, clock, None, ownership.reports)
        positions = session._start_positions
        resolve = positions.resolve

        def first(owned: frozenset[TopicPartition], *rest: Any) -> Any:
            if self.first_owned is None:
                self.first_owned = {p: self.run.cluster.coordinator.stored(p) for p in owned}
            return resolve(owned, *rest)

        positions.resolve = first  # type: ignore[method-assign, assignment]
        return session

    def _run_query(self) -> None:
        kernel, run, random = self.kernel, self.run, self.random
        kernel.sleep_ms(random.randrange(300))
        with self._inside(self.reader):
            self.session = session = self._open()
        self.reader.start(f"control {self.client_id}", self._control)
        if self.logged is not None:
            run.events["replay"] += 1
            self.is_replaying = True
            with self._inside(self.reader):
                tasks = session.input_partitions(self.start, self.logged)
            self.is_replaying = False
            run.replayed(self, tasks)
            self._run_batch(tasks, self.logged)
        while True:
            started_ms = kernel.now_ms
            with self._inside(self.reader):
                end = _copy(session.latest_offset(_copy(self.start) if self.start else None, self._limits()))
            if session.drained.is_set():
                self._drained()
                return
            run.planned(self, self.start, end)
            if end != self.start:
                self._in_batch = True
                kernel.sleep_ms(random.randrange(20))
                self.logged = end
                kernel.sleep_ms(random.randrange(20))
                with self._inside(self.reader):
                    tasks = session.input_partitions(_copy(self.start), _copy(end))
                self._run_batch(tasks, end)
                self._in_batch = False
            if run.is_ending and run.may_drain(self):
                self._drain_requested = self.is_leaving = True
            left_ms = started_ms + run.trigger_ms(self) - kernel.now_ms
            kernel.sleep_ms(max(left_ms, 20 if end != self.start else 200))

    def request_drain(self) -> None:
        """Stops the query gracefully before everything is read."""
        if self.is_running and not self.is_leaving:
            self.run.events["drain of a replay" if self.is_replaying else "graceful restart"] += 1
            self.run.trace(f"{self.name} is stopped gracefully")
            self._drain_requested = self.is_leaving = self.is_restarting = True

    def _limits(self) -> Limits:
        return Limits(max_offsets=None if self.run.is_ending else self.workload.max_offsets)

    def _drained(self) -> None:
        if self.is_drained or not self.is_running:
            return
        self.is_drained = not self.is_restarting
        self.run.drained(self)
        self._end()

    # -- a batch -----------------------------------------------------------------------------------------------------

    def _run_batch(self, tasks: list[GroupInputPartition], end: dict[str, Any]) -> None:
        kernel, run = self.kernel, self.run
        errors: list[GroupSourceError] = []
        skipped: set[TopicPartition] = set()
        waiting: list[VirtualThread] = []
        batch_ms = run.batch_ms(self)
        for task in tasks:
            target = partial(self._run_task, task, batch_ms, errors, skipped)
            waiting.append(self.executor.start(f"task of {self.client_id}", target))
        for thread in waiting:
            if not thread.is_ended:
                kernel.wait(thread.ended, None)
        if errors:
            raise errors[0]
        kernel.sleep_ms(run.sink_ms(self))
        if self.is_transactional:
            self._publish(tasks)
        # commits/N
        run.deliver(self, tasks, skipped)
        self._batches += 1
        ranges, _ = logged_ranges(decode_offset(self.start), decode_offset(end))
        is_left_out = self.is_transactional and not tasks
        self.left_out = {each.topic_partition: each.start for each in ranges} if is_left_out else {}
        self.start, self.logged = _copy(end), None
        self.finished.append(self.start)
        if self.workload.is_registered:
            self._reports.append(self.start)
        kernel.sleep_ms(self.random.randrange(20))

    def _run_task(
        self,
        task: GroupInputPartition,
        batch_ms: int,
        errors: list[GroupSourceError],
        skipped: set[TopicPartition],
    ) -> None:
        kernel, client = self.kernel, self.task_client
        clock = VirtualClock(self.executor)
        client.add_known_brokers(task.known_brokers)
        longest_ms = client.settings.default_api_timeout_ms
        outage = Outage("task", clock, limit_ms=task.max_outage_ms, report_after_ms=longest_ms)
        try:
            with open_heartbeat(client, task.membership, outage) as heartbeat:
                for part in task.ranges:
                    kernel.sleep_ms(batch_ms // len(task.ranges))
                    if not self._fetch(part, task):
                        skipped.add(part.topic_partition)
                    heartbeat.check()
                started_ms = kernel.now_ms
                heartbeat.check_now()
                self.run.task_ended(self, task, started_ms)
        except GroupSourceError as error:
            errors.append(error)

    def _fetch(self, part: OffsetRange, task: GroupInputPartition) -> bool:
        """Fetches from the leader until it responds, as the fetcher does; returns False for a lost range."""
        p, client = part.topic_partition, self.task_client
        topic_class = FetchRequest.FetchTopic
        topic_id = UUID(task.topic_ids[p.topic])
        retry = client.retry()
        while True:
            try:
                view = client.metadata([p.topic], refresh=retry.attempt > 0)
                code = ErrorCode.UNKNOWN_TOPIC_ID
                known = view.topics.get(p.topic)
                if known is not None and known.topic_id == topic_id:
                    row = topic_class.FetchPartition(
                        partition=p.partition, current_leader_epoch=view.leader_epoch(p), fetch_offset=part.end
                    )
                    request = FetchRequest(topics=[topic_class(topic_id=topic_id, partitions=[row])])
                    response = client.call_node(view.leader(p).node_id, request)
                    code = ErrorCode(response.responses[0].partitions[0].error_code)
                    if code is ErrorCode.NONE:
                        return True
                # nodes learn of a topic sooner than the fetcher takes it for deleted
                if code is ErrorCode.UNKNOWN_TOPIC_ID and self.run.cluster.topic.present.topic_id != topic_id:
                    if task.fail_on_data_loss:
                        raise DataLossError("TOPIC_PARTITIONS_DELETED", f"{p} was deleted.", "")
                    return False
            except (NetworkError, BrokerError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
            retry.attempt += 1
            self.kernel.sleep_ms(500)

    # -- the sink of a query that writes exactly once ---------------------------------------------------------------

    def _publish(self, tasks: list[GroupInputPartition]) -> None:
        ranges = [each for task in tasks for each in task.ranges if each.end > each.start]
        publication = Publication(
            transactional_id=self.workload.options["kafka.transactional.id"],
            batches=[Publishing(self.name, each).encoded() for each in ranges],
            writer=f"query {self.name}",
            number=self._batches,
            topic=OUTPUT,
        )
        is_new = publish(self.sink_client, publication, self)
        self.run.events["published" if is_new else "published before"] += 1
        # before Spark writes commits/N
        self.kernel.sleep_ms(self.random.choice([5, 50, 2_000]))

    def ends(self) -> Mapping[str, str]:
        """As `ReaderSources`: the reader replies over its control socket."""
        return self.join(ProducerIdAndEpoch(-1, -1), None).ends

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        session = self.session
        assert session is not None
        with self._inside(self.reader):
            try:
                joined = session.join_transaction(producer, self._batches) if producer.producer_id >= 0 else []
            except GroupSourceError as error:
                kind = NetworkError if can_begin_again(error) else TransactionAbortedError
                raise kind(str(error)) from error
            return JoinedOffsets(session.end_in_flight(), min(joined, default=None))

    # -- control socket ----------------------------------------------------------------------------------------------

    def _control(self) -> None:
        session, kernel = self.session, self.kernel
        assert session is not None
        while True:
            kernel.sleep_until(self._is_controlled, _CONTROL_MS)
            try:
                if self._reports:
                    self.run.events["report"] += 1
                    session.batch_finished(self._reports.popleft())
                if self._drain_requested:
                    proof = None if self._in_batch or not self.start else _copy(self.start)
                    if session.request_drain(proof):
                        self._drained_by_control()
                        return
                elif session.status()["generation"] >= 0:
                    session.rejoin_if_idle()
            except GroupSourceError:
                # logged by the control server
                self.run.events["control error"] += 1

    def _is_controlled(self) -> bool:
        """Whether the control thread would do anything; without the lock of the members, which never blocks here."""
        return bool(self._reports) or self._drain_requested or self._shared.rejoin_needed()

    def _drained_by_control(self) -> None:
        if not self.is_drained and self.is_running:
            self.driver.kill()
            self._drained()


def _copy(offset: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(offset))
    return copied


def _move(thread: VirtualThread, process: Process) -> None:
    if thread.process is not process:
        thread.process.threads.remove(thread)
        process.threads.append(thread)
        thread.process = process
