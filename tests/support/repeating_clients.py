"""A broker without sockets, and connections that repeat their requests."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from support.partition_logs import batch

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import DELAYED, ApiRequestContext
from spark_groupsource.clock import ManualClock
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.storage.data_directory import DataDirectory
from spark_groupsource.storage.steps import run_steps
from spark_groupsource.wire.frames import EncodedResponse, encode_request, encode_response, read_request_header

TOPICS = {"a": 3, "b": 1, "c": 2}
PARTITIONS = [(name, number) for name, count in TOPICS.items() for number in range(count)]
REPEATING = 1
"""The connection that repeats its requests."""
REQUESTS = 10
"""Requests of the same size after which the next one is a repeated one."""


class RepeatingClients:
    """A broker with `TOPICS`; one connection repeats its requests, and others send one each.

    Attributes: `was_repeated`, whether the last request was handled as a repetition.
    """

    def __init__(
        self, directory: Path, config: Mapping[str, str] = {}, creates_topics: bool = True
    ) -> None:
        self.clock = ManualClock()
        self.sent: dict[int, Any] = {}
        fixed = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}
        data, send = DataDirectory(directory), self.sent.__setitem__
        self.broker = Broker(broker_config({**fixed, **config}), data, self.clock, send, lambda *line: None)
        self.broker.start()
        self.broker.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
        for name, count in TOPICS.items() if creates_topics else ():
            self.broker.create_topic(name, count, {})
        self.broker.group_coordinator.shards.ensure_topic()
        self.dispatcher = RequestDispatcher(self.broker, SERVED, self.sent.__setitem__, self._run_steps)
        self.was_repeated = False
        self._token, self._next_connection = 0, REPEATING

    @staticmethod
    def _run_steps(
        token: int, steps: Any, first: Any, on_result: Callable[[Any], None], is_update: bool, *_: bool, **__: bool
    ) -> None:
        """Runs the steps of a request; only a busy processor ends the first one early."""
        assert first is None and is_update, "a small request needs no further steps"
        on_result(run_steps(steps))

    def partition(self, name: str, number: int) -> Any:
        return self.broker.partitions.find(TopicPartition(name, number))

    def topics(
        self, topic_class: Any, named: str | None, numbers: Iterable[int], row: Callable[[int, int], Any]
    ) -> list[Any]:
        """Returns the topics of a request, with a number for each partition.

        Args: `named`, the field of the name, None for topic ids; `row`, (partition, its number) -> its entry.
        """
        left, found = iter(numbers), []
        for name, count in TOPICS.items():
            entry = self.broker.partitions.topics.get(name)
            topic_id = uuid.UUID(int=7) if entry is None else entry.topic_id
            key: dict[str, Any] = {"topic_id": topic_id} if named is None else {named: name}
            found.append(topic_class(partitions=[row(number, next(left)) for number in range(count)], **key))
        return found

    def append(self, name: str, number: int, values: int) -> None:
        data = batch(*[b"x" * 50] * values)
        self.partition(name, number).append(data, 0)
        self.broker.on_append(TopicPartition(name, number), len(data))

    def call(self, connection: int, request: Any, version: int) -> bytes | None:
        """Returns the bytes of the response, None if it is delayed or there is none; a delayed fetch is dropped."""
        self._token += 1
        frame = memoryview(bytes(encode_request(request, version, 5, "c")))[4:]
        header, position = read_request_header(frame)
        context = ApiRequestContext(self._token, header.api_key, version, "c", "127.0.0.1", 1, connection)
        self.dispatcher.handle_frame(context, frame, header, position)
        self.broker.fetch_manager.cancel(self._token)
        response = self.sent.pop(self._token, DELAYED)
        self.was_repeated = isinstance(response, EncodedResponse)
        return None if response is None or response is DELAYED else bytes(encode_response(response, version, 5))

    def repeat(self, request: Any, version: int) -> bytes | None:
        """Sends a request over the connection that repeats its requests."""
        return self.call(REPEATING, request, version)

    def call_once(self, request: Any, version: int) -> bytes | None:
        """Sends a request over a connection of its own."""
        self._next_connection += 1
        found = self.call(self._next_connection, request, version)
        assert not self.was_repeated
        return found
