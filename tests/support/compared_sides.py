"""One of two compared brokers, and what its responses have assigned."""

from __future__ import annotations

import json
import re
import selectors
import time
from typing import Any, NamedTuple

from support.compared_brokers import CLOSED, ComparedBroker, Json, normalize, whole_batches

from spark_groupsource.errors import NetworkError, RequestTimeoutError
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import ApiMessage

# the records that are compared are older
_OF_BROKER_MS = 1_800_000
_GENERATED_ID = re.compile(r"-[0-9a-f]{8}-[0-9a-f-]{27}$")


class Request(NamedTuple):
    """A request with the version in which it is sent."""

    message: ApiMessage
    version: int


class Producer(NamedTuple):
    """Attributes: the id and the epoch that InitProducerId returned."""

    producer_id: int = 123_456
    epoch: int = 0


class Membership(NamedTuple):
    """Attributes: the member id and the generation of the last response to JoinGroup."""

    member_id: str = ""
    generation: int = -1


class ComparedSide:
    """A broker of a comparison.

    A request that may wait, JoinGroup and SyncGroup, is sent on a connection of its member, which the broker's client
    id names. So the ids of members begin with their names on both sides.
    """

    def __init__(self, label: str, bootstrap_servers: str, prefix: str) -> None:
        self.label = label
        self.broker = ComparedBroker(bootstrap_servers, prefix)
        self.members: dict[tuple[str, str], Membership] = {}
        self.leaders: dict[str, str] = {}
        self.groups: set[str] = set()
        self.producers: dict[str, Producer] = {}
        self.sequences: dict[tuple[str, str, int], int] = {}
        self.session_epoch = 0
        self.pending: dict[str, Request] = {}
        self._connections: dict[str, ComparedBroker] = {}

    def close(self) -> None:
        """Closes all connections."""
        for connection in (self.broker, *self._connections.values()):
            connection.__exit__()

    def is_waiting(self, group: str) -> bool:
        """Returns whether a request of a member of the group waits."""
        return any(name.startswith(f"{group}-") for name in self.pending)

    def awaits_assignment(self, group: str) -> bool:
        """Returns whether a SyncGroup request of a member of the group waits."""
        waiting = [request.message for name, request in self.pending.items() if name.startswith(f"{group}-")]
        return any(message.API_KEY == ApiKey.SYNC_GROUP for message in waiting)

    def member(self, group: str, name: str) -> Membership:
        """What the broker has last assigned to a member."""
        return self.members.get((group, name), Membership())

    def member_ids(self, group: str) -> dict[str, str]:
        """Member ids of a group by name."""
        return {name: each.member_id for (of, name), each in self.members.items() if of == group}

    def exchange(self, request: Request) -> Json:
        """Returns the comparable response to a request that does not wait, and the response itself."""
        try:
            response = self.broker.exchange(*request)
        except RequestTimeoutError:
            return "no response", None
        except NetworkError:
            self.broker.reconnect()
            return CLOSED, None
        self.broker.session_id = getattr(response, "session_id", 0) or self.broker.session_id
        return self.comparable(response), response

    def post(self, name: str, request: Request) -> None:
        """Sends a request that may wait."""
        if name not in self._connections:
            self._connections[name] = ComparedBroker(self.broker.bootstrap_servers, self.broker.prefix, client_id=name)
        self._connections[name].send(*request)
        self.pending[name] = request

    def has_response(self, name: str, timeout_s: float) -> bool:
        """Returns whether the pending request of a member has a response within `timeout_s`."""
        # not select: a process with many connections has descriptors that it does not accept
        with selectors.DefaultSelector() as selector:
            selector.register(self._connections[name].socket, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def take(self, name: str) -> tuple[Json, Any]:
        """Returns the comparable response to the pending request of a member, and the response itself."""
        request = self.pending.pop(name)
        connection = self._connections[name]
        try:
            response = connection.receive(*request)
        except NetworkError:
            connection.reconnect()
            return CLOSED, None
        return self.comparable(response), response

    def comparable(self, response: Any) -> Json:
        """Returns a response without what may differ between two brokers."""
        if type(response).__name__ == "ListTransactionsResponse":
            prefix = self.broker.prefix
            response.transaction_states = [
                each for each in response.transaction_states if each.transactional_id.startswith(prefix)
            ]
        return _without_own(normalize(self.broker, response, described_batches, _member_name))


def described_batches(data: bytes) -> bytes:
    """Returns the batches of a Fetch response without producer ids, and without the times of the broker."""
    found = []
    data = whole_batches(data)
    for header in iter_batches(data):
        fields = {**header._asdict(), "records": data[header.position + 61 : header.position + header.size].hex()}
        for name in ("producer_id", "crc", "position"):
            del fields[name]
        found.append(_without_own(fields))
    return json.dumps(found).encode()


def _member_name(member_id: str) -> str:
    return _GENERATED_ID.sub("-id", member_id)


def _without_own(value: Json, field: str = "") -> Json:
    if isinstance(value, dict):
        return {name: _without_own(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_own(inner, field) for inner in value]
    if field.endswith("timestamp") and value > time.time() * 1000 - _OF_BROKER_MS:
        return "now"
    return value
