"""Comparison of the responses of two brokers.

Ids, ports, member ids and message texts differ between brokers and are replaced by names that are equal in both.
Everything else must be equal: error codes, null or empty, defaults, number of entries.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from support.message_fields import fields_of

from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.common.net import dial, parse_addresses, receive_into, send_all
from spark_groupsource.errors import NetworkError, RequestTimeoutError
from spark_groupsource.records.header import last_batch
from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.frames import decode_response, encode_request, frame_length

TIMEOUT_MS = 20_000
CLOSED = "the connection was closed"
NO_ID = uuid.UUID(int=0)
# differs between brokers
_BROKER_SPECIFIC = frozenset(
    "throttle_time_ms port cluster_id log_dir total_bytes usable_bytes producer_id session_id documentation "
    "error_message batch_index_error_message supported_features finalized_features finalized_features_epoch".split()
)
_THIS_CENTURY_MS = 10**12  # the cases use timestamps from 1970
_TOPICS = 2
_MEMBER_FIELDS = frozenset(("member_id", "leader"))

# APIs of which the same versions as Kafka's are advertised
_ALL_VERSIONS = frozenset(SERVED) - {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT}

Json = Any
"""A JSON value."""


class ComparedBroker:
    """A connection to one of two compared brokers; a context manager. `prefix`, of topic and group names, is equal."""

    def __init__(self, bootstrap_servers: str, prefix: str, client_id: str = "broker") -> None:
        self.bootstrap_servers = bootstrap_servers
        (self._address,) = parse_addresses(bootstrap_servers)
        self.socket = dial(self._address, TIMEOUT_MS)
        self._client_id = client_id
        self._correlation_id = 0
        self._topic_names: dict[uuid.UUID, str] = {NO_ID: "none"}
        self._ids: dict[str, uuid.UUID] = {}
        self.prefix = prefix
        self.session_id = 0
        self.version = 0

    def __enter__(self) -> ComparedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def name(self, short: str) -> str:
        """The full name of a topic or group of this run."""
        return f"{self.prefix}-{short}"

    def id(self, short: str) -> uuid.UUID:
        """The id of a topic, an unused id for a topic that does not exist."""
        if short not in self._ids:
            self._ids[short] = self.full_id(self.name(short))
        return self._ids[short]

    def full_id(self, name: str) -> uuid.UUID:
        """As `id`, for a name without prefix."""
        topic = messages.MetadataRequest.MetadataRequestTopic(name=name)
        request = messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
        (found,) = self.exchange(request, 12).topics
        if found.error_code:
            return uuid.uuid5(uuid.NAMESPACE_URL, name)
        self._topic_names[found.topic_id] = name
        return found.topic_id

    def identity(self) -> tuple[str, int]:
        """The id of the cluster and of its one broker."""
        found = self.exchange(messages.MetadataRequest(topics=[], allow_auto_topic_creation=False), 12)
        return found.cluster_id, found.brokers[0].node_id

    def name_of(self, topic_id: uuid.UUID) -> str:
        """The topic name of an id."""
        return self._topic_names.get(topic_id, "unknown")

    def forget(self, short: str) -> None:
        """Drops the cached id of a topic that is recreated."""
        self._ids.pop(short, None)

    def forget_all(self) -> None:
        """Drops all cached ids, for a new prefix."""
        self._ids.clear()

    def exchange(self, request: Any, version: int) -> Any:
        """Returns the response. Raises: NetworkError if the broker closes the connection instead."""
        self._correlation_id += 1
        self.send(request, version)
        return self.receive(request, version)

    def receive(self, request: Any, version: int) -> Any:
        """Returns the response to the last request that was sent. Raises: as `exchange`."""
        prefix = bytearray(4)
        receive_into(self.socket, memoryview(prefix), TIMEOUT_MS)
        frame = bytearray(frame_length(bytes(prefix), 1 << 26))
        receive_into(self.socket, memoryview(frame), TIMEOUT_MS)
        return decode_response(memoryview(frame), request, version, self._correlation_id)

    def send(self, request: Any, version: int) -> None:
        """Sends a request without reading a response."""
        send_all(self.socket, encode_request(request, version, self._correlation_id, self._client_id), TIMEOUT_MS)

    def reconnect(self) -> None:
        self.socket.close()
        self.socket = dial(self._address, TIMEOUT_MS)


class Case(NamedTuple):
    """One request of one API: `build` gets the broker for names, ids and earlier responses."""

    label: str
    build: Callable[[ComparedBroker], Any]
    since: int = 0
    until: int = 99


def comparable_response(broker: ComparedBroker, request: Any, version: int) -> Json:
    """Sends a request; returns the normalized response, `CLOSED` if the broker closes the connection."""
    try:
        response = broker.exchange(request, version)
    except RequestTimeoutError:
        raise  # every request of the cases gets a response
    except NetworkError:
        broker.reconnect()
        return CLOSED
    broker.session_id = getattr(response, "session_id", 0) or broker.session_id
    return normalize(broker, response)


def whole_batches(data: bytes) -> bytes:
    """Removes a truncated last batch, which Kafka may return."""
    last = last_batch(data)
    return data[: last.position + last.size] if last else b""


def _remove_later_aborted(partition: Any) -> None:
    """Removes aborted transactions after the returned records: Kafka's index of offsets has not every batch."""
    last = last_batch(bytes(partition.records or b""))
    if last is not None and partition.aborted_transactions:
        aborted = partition.aborted_transactions
        partition.aborted_transactions = [each for each in aborted if each.first_offset <= last.last_offset]


def normalize(
    broker: ComparedBroker,
    response: Any,
    describe_records: Callable[[bytes], bytes] = whole_batches,
    name_member: Callable[[str], str] | None = None,
) -> Json:
    """Returns a response with broker-specific values replaced and lists sorted.

    Args: `describe_records` returns what is compared of the records of a partition in a Fetch response; `name_member`
    returns what is compared of a member id: by default, generated ids are numbered in the order of the response.
    """
    if type(response).__name__ == "FetchResponse":
        for partition in (each for topic in response.responses for each in topic.partitions):
            _remove_later_aborted(partition)
            partition.records = describe_records(bytes(partition.records or b""))
    returned = fields_of(response)
    if type(response).__name__ == "ListGroupsResponse":
        returned["groups"] = [each for each in returned["groups"] if each["group_id"].startswith(broker.prefix)]
    if type(response).__name__ == "ListConfigResourcesResponse":
        topics = [each for each in returned["config_resources"] if each["resource_type"] == _TOPICS]
        others = [each for each in topics if not each["resource_name"].startswith(broker.prefix)]
        returned["config_resources"] = [each for each in returned["config_resources"] if each not in others]
    if type(response).__name__ == "ApiVersionsResponse":
        returned["api_keys"] = [each for each in returned["api_keys"] if each["api_key"] in _ALL_VERSIONS]
    return _Normalizer(broker, name_member).value("", returned)


class _Normalizer:
    def __init__(self, broker: ComparedBroker, name_member: Callable[[str], str] | None) -> None:
        self._broker = broker
        self._members: dict[str, str] = {"": ""}
        self._name_member = name_member or self._numbered

    def value(self, field: str, value: Any) -> Json:
        if field in _BROKER_SPECIFIC:
            return "own"
        match value:
            case dict():
                return {name: self.value(name, inner) for name, inner in value.items()}
            case list() | tuple() | set() | frozenset():
                inner = [self.value(field, each) for each in value]
                return sorted(inner, key=lambda each: json.dumps(each, sort_keys=True))
        if field == "topic_id" and value is not None:
            return self._broker.name_of(uuid.UUID(str(value)))
        if field.endswith("_time_ms") and value > _THIS_CENTURY_MS:
            return "now"
        if field in _MEMBER_FIELDS and value:
            return self._name_member(value)
        return value

    def _numbered(self, member_id: str) -> str:
        return self._members.setdefault(member_id, f"member {len(self._members)}") if len(member_id) > 30 else member_id


def differences(ours: Json, theirs: Json, path: str = "") -> Iterator[str]:
    """Yields one line for each difference."""
    if path.endswith(".configs"):
        ours, theirs = _common(ours, theirs)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in theirs:
            yield from differences(ours.get(name), theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, (one, other) in enumerate(zip(ours, theirs)):
            yield from differences(one, other, f"{path}[{at}]")
    elif ours != theirs:
        yield f"{path}: embedded {ours!r}, Kafka {theirs!r}"


def _common(ours: Json, theirs: Json) -> tuple[Json, Json]:
    """Removes settings that only one of the brokers has."""
    names = {each["name"] for each in ours} & {each["name"] for each in theirs}

    def common(side: Json) -> Json:
        return sorted((each for each in side if each["name"] in names), key=lambda each: each["name"])

    return common(ours), common(theirs)
