"""A broker without sockets, which gets encoded requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Coroutine, Mapping

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext, ResponseAction
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.model import Node, TopicPartition
from spark_groupsource.wire.frames import decode_response, encode_request, encode_response, read_request_header

TOPICS = {"a": 3, "b": 1, "c": 2}


class BrokerWithoutSockets:
    """A running broker with `TOPICS`."""

    def __init__(self, directory: Path, config: Mapping[str, str] = {}) -> None:
        self.clock = ManualClock()
        self._sent: dict[int, Any] = {}
        data, send = DataDirectory(directory), self._sent.__setitem__
        self.broker = Broker(broker_config(config), data, self.clock, send, lambda *line: None)
        self.broker.start()
        self.broker.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
        for name, count in TOPICS.items():
            run_at_once(self.broker.create_topic(name, count, {}))
        self._dispatcher = RequestDispatcher(self.broker, SERVED, self._respond, self._run)
        self._token = 0

    def _run(self, token: int, work: Coroutine[Any, Any, Any], slice_ns: int, **_: bool) -> None:
        self._respond(token, run_at_once(work))

    def _respond(self, token: int, response: Any) -> None:
        if not isinstance(response, ResponseAction):
            self._sent[token] = response

    def partition(self, name: str, number: int) -> Any:
        return self.broker.partitions.find(TopicPartition(name, number))

    def call(self, request: Any, version: int) -> Any:
        """Returns the decoded response, None if there is none or it is delayed.

        Raises: RemoteProtocolError where the broker closes the connection.
        """
        self._token += 1
        frame = memoryview(bytes(encode_request(request, version, 5, "c")))[4:]
        header, position = read_request_header(frame)
        context = ApiRequestContext(self._token, header.api_key, version, "c", "127.0.0.1", 1)
        self._dispatcher.handle_frame(context, frame, header, position)
        response = self._sent.pop(self._token, None)
        if response is None:
            return None
        return decode_response(memoryview(bytes(encode_response(response, version, 5)))[4:], request, version, 5)
