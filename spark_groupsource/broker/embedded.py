"""Embedded broker: a broker in a thread of a Python process."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import shutil
import tempfile
import threading
from collections import deque
from functools import partial
from pathlib import Path
from types import CoroutineType, TracebackType
from typing import Any, Callable, Collection, Coroutine, Mapping, TypeVar, overload

from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.direct_produce import append, check_records, encoded_records, records_of, topic_partitions
from spark_groupsource.broker.leaders import Leader
from spark_groupsource.broker.network import event_loop
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.report_writer import (
    DescriptorWriter,
    ReportWriter,
    WriteLines,
    log_report,
    log_request,
    open_log,
)
from spark_groupsource.broker.server import BrokerServer
from spark_groupsource.broker.storage.catalog import INTERNAL_TOPICS
from spark_groupsource.common.arguments import check_integer, check_mapping, check_text, near_names, shown
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.model import TopicPartition

_LOGGER = logging.getLogger(__name__)
_EMBEDDED_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
_NOT_STARTED = "The embedded broker is not running. Call start(), or use it as a context manager (with)."
_TOPICS = "a mapping from names of topics to numbers of partitions or records"
Result = TypeVar("Result")


class NotStartedError(GroupSourceError, AttributeError):
    """The embedded broker is not running, so it has no address. Inspection skips such an attribute."""


class EmbeddedBroker:
    """A broker, or several, in a thread of this process.

    It starts with `start` or as a context manager, and with nothing else: attributes, representations and completion
    in a notebook start no broker. It stops with `stop`, at the end of the ``with`` block, or when the process exits.

    ::

        broker = EmbeddedBroker(topics={"flights": 4, "airlines": [{"code": "UA"}, {"code": "DL"}]}).start()
        broker.produce("flights", [{"carrier": "UA", "delay": 12}])
        spark.read.format("groupsource").option("kafka.bootstrap.servers", broker.bootstrap_servers)

    Args: `data_dir`, None for a temporary directory that `stop` removes; `port`, 0 for any free port; `config`,
    settings by Kafka's names; `brokers`, number of nodes with consecutive ids, from ``node.id``, and consecutive ports:
    partition leaders and coordinators are distributed over the nodes, which share the data directory; `add_scram`,
    users, each ``SCRAM-SHA-256=[name=USER,password=PASSWORD]``; `topics`, name -> number of partitions, or the
    records of a topic with one partition (see `produce`), for topics that do not exist yet; `log_requests`, True for a
    line of level DEBUG for each request in the logger ``kafka.request.logger``, or a file to which it is appended.

    The first rebalance of a group does not wait for further members: ``group.initial.rebalance.delay.ms`` is 0, as in
    Kafka's server.properties for development; Kafka's default of 3 seconds is set by `config`.

    Raises: ConfigurationError for an invalid argument; on `start` ConfigurationError, StorageError.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, str] | None = None,
        brokers: int = 1,
        add_scram: Collection[str] = (),
        topics: Mapping[str, Any] | None = None,
        log_requests: bool | str | Path = False,
    ) -> None:
        check_integer("brokers", brokers, 1)
        check_integer("port", port, 0, 65_535)
        check_text("host", host)
        check_mapping("config", config, "a mapping from names of settings to values")
        check_mapping("topics", topics, _TOPICS)
        if not isinstance(log_requests, (bool, str, Path)):
            raise ConfigurationError(f"Argument log_requests must be True, False or a file, got {shown(log_requests)}.")
        for topic, content in (topics or {}).items():
            if not isinstance(content, int) or isinstance(content, bool):
                check_records(f"topics[{topic!r}]", content)
            else:
                check_integer(f"topics[{topic!r}]", content, 1)
        self._add_scram = tuple(add_scram)
        self._brokers = brokers
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._address = Address(host, port)
        self._config = broker_config({**_EMBEDDED_DEFAULTS, **(config or {})})
        self._topics = dict(topics or {})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._server: BrokerServer | None = None
        self._failure: BaseException | None = None
        self._write_line: ReportWriter | None = None
        self._log_requests = log_requests
        self._write_request: ReportWriter | None = None
        self._request_file: int | None = None
        self.data_dir: Path | None = None
        self._bootstrap_servers = ""
        self._addresses: dict[str, str] = {}
        self.reports: deque[str] = deque(maxlen=1000)

    def start(self) -> EmbeddedBroker:
        """Returns when clients can connect."""
        if self._thread is not None:
            raise RuntimeError("The broker is already running.")
        write_request = self._open_request_log()
        self.data_dir = self._given_dir or Path(tempfile.mkdtemp(prefix="groupsource-broker-"))
        self._write_line = ReportWriter(log_report)
        self._write_request = None if write_request is None else ReportWriter(write_request)
        ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="groupsource-broker", daemon=True)
        self._thread.start()
        try:
            self._bootstrap_servers = ready.result()
        except BaseException:
            self._join()
            raise
        assert self._server is not None
        if self._server.warning:
            _LOGGER.warning(self._server.warning)
        atexit.register(self.stop)
        try:
            for topic, content in self._topics.items():
                self._create_topic(topic, content)
        except BaseException:
            self.stop()
            raise
        return self

    def _open_request_log(self) -> WriteLines | None:
        """Raises: ConfigurationError."""
        if isinstance(self._log_requests, bool):
            return log_request if self._log_requests else None
        self._request_file = open_log(self._log_requests, "log_requests")
        return DescriptorWriter(self._request_file)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the nodes, separated by commas: of the first listener, where `listeners` has several.

        A stopped broker keeps its last address.

        Raises: NotStartedError before the first `start`.
        """
        if not self._bootstrap_servers:
            raise NotStartedError(_NOT_STARTED)
        return self._bootstrap_servers

    def address(self, protocol: str) -> str:
        """Returns `bootstrap_servers` of the listener of a protocol, for example SASL_SSL; see the setting `listeners`.

        Raises: ConfigurationError if the broker has no such listener; NotStartedError.
        """
        self.bootstrap_servers  # noqa: B018
        if protocol not in self._addresses:
            raise ConfigurationError(
                f"The broker has no listener {protocol}, but {', '.join(self._addresses)}. Add it to listeners."
            )
        return self._addresses[protocol]

    def produce(self, topic: str, records: Any, partition: int | None = None) -> int:
        """Appends records made from Python objects and returns their number.

        An object is the value, a tuple is ``(key, value)``. Bytes are used as they are, None is null, text is encoded
        as UTF-8, and everything else as JSON. A missing topic is created with ``num.partitions``, as for Kafka's
        producers, and a warning in the log names it; with ``auto.create.topics.enable=false`` it is an error.

        A data frame of Spark or pandas, or another table that PyArrow reads: each row is a JSON object. If it has a
        column `value` and no column that the source does not have, then `key`, `value`, `headers` and `partition` are
        those of the record.

        Args:
            records: a list or another iterable of objects, or a table. A text, byte string or mapping is one record.
            partition: None for the partition of the key, as Kafka's producer computes it, and round-robin without one.
        Raises: ConfigurationError for an invalid argument, a missing topic that is not created, an unknown partition,
            and an object that cannot be encoded; ApiError for records that the topic rejects; NotStartedError.
        """
        check_text("topic", topic, meaning="the name of a topic")
        given = records_of("records", records)
        check_integer("partition", partition, 0, optional=True)
        count = self._partition_count(topic)
        for batch in encoded_records(topic, given, partition, count, SystemClock().timestamp_ms()):
            self.call(partial(append, batches=[batch]))
        return len(given)

    def _partition_count(self, topic: str) -> int:
        """Returns the number of partitions of a topic; creates a missing topic, unless the configuration forbids it."""
        known = self.call(lambda broker: frozenset(broker.partitions.topics))
        if topic in known:
            return self.call(lambda broker: topic_partitions(broker, topic))
        hint = near_names(topic, known - INTERNAL_TOPICS)
        if not self._config.auto_create_topics_enable:
            raise ConfigurationError(
                f"Argument topic: topic {topic} does not exist, and auto.create.topics.enable is false. Create it or "
                f"correct the name. {hint}".rstrip()
            )
        count = self.call(lambda broker: topic_partitions(broker, topic))
        text = f"[topic={topic}] Created a topic that did not exist, with num.partitions={count}. {hint}"
        _LOGGER.warning("%s", text.rstrip())
        return count

    def _create_topic(self, topic: str, content: Any) -> None:
        count = content if isinstance(content, int) else 1
        is_new = self.call(lambda broker: topic not in broker.partitions.topics)
        self.call(lambda broker: topic_partitions(broker, topic, count))
        if is_new and not isinstance(content, int):
            self.produce(topic, content)

    def stop(self) -> None:
        """Stops the broker, if it runs.

        Raises: StorageError when the logs cannot be closed.
        """
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @overload
    def call(self, function: Callable[[Broker], Coroutine[Any, Any, Result]]) -> Result: ...

    @overload
    def call(self, function: Callable[[Broker], Result]) -> Result: ...

    def call(self, function: Callable[[Broker], Any]) -> Any:
        """Returns the result of `function` with the broker, or of its coroutine, in the broker's thread.

        For inspection and tests. Raises: NotStartedError.
        """
        if self._loop is None or self._server is None:
            raise NotStartedError(_NOT_STARTED)
        server = self._server

        async def run() -> Any:
            try:
                result = function(server.broker)
                return await result if isinstance(result, CoroutineType) else result
            finally:
                server.after_call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Makes another node the leader of a partition. Raises: ApiError; ValueError for a node that does not run."""
        self.call(lambda broker: broker.move_leader(TopicPartition(topic, partition), node_id))

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Makes another node the coordinator of a group, and of all groups in the same `__consumer_offsets` partition.

        Raises: as `move_leader`.
        """

        async def move(broker: Broker) -> None:
            await broker.group_coordinator.shards.ensure_topic()
            broker.move_leader(broker.group_coordinator.shards.partition_of(group_id), node_id)

        self.call(move)

    def leader(self, topic: str, partition: int) -> Leader:
        """Returns the leader of a partition and its epoch."""
        return self.call(lambda broker: broker.leaders.leader(TopicPartition(topic, partition)))

    def coordinator(self, group_id: str) -> int:
        """Returns the node that coordinates a group. Raises: ApiError."""

        async def coordinator_node(broker: Broker) -> int:
            await broker.group_coordinator.shards.ensure_topic()
            return broker.group_coordinator.shards.coordinator_node(group_id)

        return self.call(coordinator_node)

    def pause_loading(self, paused: bool = True) -> None:
        """Pauses the loading of group coordinators, so that they return COORDINATOR_LOAD_IN_PROGRESS; or resumes it."""
        self.call(lambda broker: broker.group_coordinator.shards.pause_loading(paused))

    def stop_node(self, node_id: int) -> None:
        """Stops one node: closes its connections; other nodes become leaders of its partitions."""
        self._run_in_loop(lambda server: server.stop_node(node_id))

    def start_node(self, node_id: int) -> None:
        """Starts a stopped node at its previous address."""
        self._run_in_loop(lambda server: server.start_node(node_id))

    def _run_in_loop(self, work: Callable[[BrokerServer], Coroutine[None, None, None]]) -> None:
        if self._loop is None or self._server is None:
            raise NotStartedError(_NOT_STARTED)
        asyncio.run_coroutine_threadsafe(work(self._server), self._loop).result()

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that clients have not read yet; use within `call`."""
        return self._server.unsent_bytes if self._server is not None else 0

    @property
    def connection_count(self) -> int:
        """Number of connected clients; use within `call`."""
        return self._server.connection_count if self._server is not None else 0

    def __repr__(self) -> str:
        if self._thread is None:
            return "EmbeddedBroker(not running)"
        return f"EmbeddedBroker({self._bootstrap_servers!r})"

    def __enter__(self) -> EmbeddedBroker:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, ready: concurrent.futures.Future[str]) -> None:
        try:
            event_loop.run(self._serve(ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            else:
                self._failure = error

    async def _serve(self, ready: concurrent.futures.Future[str]) -> None:
        assert self.data_dir is not None
        clock = SystemClock()
        self._server = BrokerServer(
            self.data_dir,
            self._address,
            self._config,
            clock,
            self._note,
            self._brokers,
            self._add_scram,
            listen_option="port",
            write_request=self._write_request,
        )
        self._stopped = asyncio.Event()
        addresses = await self._server.start()
        self._loop = asyncio.get_running_loop()
        self._addresses = {protocol: ",".join(map(str, each)) for protocol, each in addresses.items()}
        ready.set_result(next(iter(self._addresses.values())))
        try:
            await self._stopped.wait()
        finally:
            self._loop = None
            await self._server.stop()

    def _note(self, line: str, level: int = logging.WARNING, /) -> None:
        self.reports.append(line)
        if self._write_line is not None and _LOGGER.isEnabledFor(level):
            self._write_line(line, level)

    def _join(self) -> None:
        atexit.unregister(self.stop)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for writer in (self._write_line, self._write_request):
            if writer is not None:
                writer.close()
        self._write_line = self._write_request = None
        if self._request_file is not None:
            os.close(self._request_file)
            self._request_file = None
        if self._given_dir is None and self.data_dir is not None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.data_dir = None
