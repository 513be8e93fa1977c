"""Request log of the broker: one line for each completed request.

Source: Kafka's `kafka.request.logger` and RequestConvertToJson, whose names the fields have. A line contains the fields
of `_SHOWN` alone, so that no password, credential, record or token is in it. Requests of a login are not logged, as in
Kafka, where the network layer handles them.

A broker without a request log uses the classes of which these are subclasses.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Callable, Mapping, Sequence
from uuid import UUID

from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.request_limits import INLINE_ELEMENTS
from spark_groupsource.broker.network.response_router import ResponseRouter
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.reporter import Reporter
from spark_groupsource.errors import RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.decoder import TooManyElementsError
from spark_groupsource.wire.frames import RequestHeader, decode_request
from spark_groupsource.wire.message_base import DataContainer
from spark_groupsource.wire.messages import ApiMessage

_ELEMENTS = 5
_CHARACTERS = 200
# requests without a response, which only a bug leaves
_MAX_WAITING = 100_000
_SHOWN = frozenset(
    "acks assignments base_offset broker_id brokers client_id client_software_name client_software_version "
    "committed_leader_epoch committed_offset configs controller_id coordinator_keys coordinators count creations "
    "current_leader_epoch deletions entries epoch error_code fetch_offset filters forgotten_topics_data "
    "generation_id generation_id_or_member_epoch group_id group_instance_id group_state groups high_watermark "
    "host index is_internal isolation_level key key_type last_stable_offset leader leader_epoch leader_id "
    "log_start_offset markers max_bytes max_wait_ms member_epoch member_id members min_bytes name node_id "
    "num_partitions offset operation partition partition_data partition_error_code partition_index "
    "partition_indexes partition_max_bytes partition_responses partitions port principal producer_epoch "
    "producer_id protocol_data protocol_name protocol_type protocols reason rebalance_timeout_ms "
    "replication_factor resource_name resource_type resources responses results results_by_partition "
    "results_by_topic_v3_and_below results_by_transaction session_epoch session_id session_timeout_ms "
    "skip_assignment states_filter throttle_time_ms timeout_ms timestamp topic topic_data topic_id topic_name "
    "topic_names topic_partitions topic_results topics transaction_result transaction_state "
    "transaction_timeout_ms transactional_id transactional_ids transactions upsertions "
    "v3_and_below_producer_epoch v3_and_below_producer_id v3_and_below_topics v3_and_below_transactional_id "
    "validate_only".split()
)


class RequestLog:
    """Requests in progress with the time of their arrival.

    Args: `now_ns` is a monotonic clock; `write_line` as of `BrokerServer`.
    """

    def __init__(self, now_ns: Callable[[], int], write_line: Reporter) -> None:
        self._now_ns = now_ns
        self._write_line = write_line
        self._waiting: dict[int, tuple[int, dict[str, Any]]] = {}

    def new_dispatcher(self, *arguments: Any) -> RequestDispatcher:
        return _LoggedDispatcher(self, *arguments)

    def new_router(self, after_task: Callable[[], None]) -> ResponseRouter:
        return _LoggedRouter(self, after_task)

    def received(self, context: ApiRequestContext, frame: memoryview, header: RequestHeader, position: int) -> None:
        """Describes a request that is about to be handled."""
        fields = {
            "requestHeader": {
                "requestApiKeyName": ApiKey(context.api_key).name,
                "requestApiKey": context.api_key,
                "requestApiVersion": context.api_version,
                "correlationId": header.correlation_id,
                "clientId": _bounded(context.client_id),
            },
            "request": _request_body(frame, header, position),
            "node": context.node_id,
            "connection": f"{context.client_host}-{context.connection_id}",
            "listener": context.listener,
            "principal": _bounded(context.principal),
        }
        if len(self._waiting) >= _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[context.token] = self._now_ns(), fields

    def completed(self, token: int, response: ApiMessage | None) -> None:
        """Writes the line of a request whose response is about to be sent; None where the client expects none."""
        self._write(token, {"response": None if response is None else shortened(response)})

    def disconnected(self, token: int) -> None:
        """Writes the line of a request whose client has disconnected before the response."""
        self._write(token, {"disconnected": True})

    def _write(self, token: int, outcome: Mapping[str, Any]) -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            arrived_ns, fields = waiting
            total_ms = round((self._now_ns() - arrived_ns) / 1e6, 3)
            line = json.dumps({**fields, **outcome, "totalTimeMs": total_ms}, separators=(",", ":"))
            # JSON escapes every other control character
            self._write_line("Completed request:" + line.replace("\x7f", "\\u007f"), logging.DEBUG)


def _request_body(frame: memoryview, header: RequestHeader, position: int) -> Any:
    try:
        return shortened(decode_request(frame, header, position, INLINE_ELEMENTS))
    except TooManyElementsError:
        return f"more than {INLINE_ELEMENTS:,} elements"
    except (RemoteProtocolError, UnsupportedVersionError) as error:
        # the handler closes the connection
        return _bounded(f"invalid: {error}")


def shortened(message: DataContainer) -> dict[str, Any]:
    """Returns the shown fields of a message with the names of Kafka's JSON; of a list, the first five elements."""
    found = {}
    for field in message.FIELDS:
        if field.name in _SHOWN:
            found[_camel_case(field.name)] = _value(getattr(message, field.name))
        elif field.name == "records":
            found["recordsSizeInBytes"] = len(getattr(message, field.name) or b"")
    return found


def _value(value: Any) -> Any:
    if isinstance(value, DataContainer):
        return shortened(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, UUID)):
        return _bounded(str(value))
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        shown = [_value(each) for each in value[:_ELEMENTS]]
        return [*shown, f"and {len(value) - _ELEMENTS:,} more"] if len(value) > _ELEMENTS else shown
    # bytes may be a credential
    return None


def _bounded(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


class _LoggedDispatcher(RequestDispatcher):
    """Dispatcher of a broker with a request log."""

    def __init__(self, log: RequestLog, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._log = log

    def handle_frame(
        self, context: ApiRequestContext, frame: memoryview, header: RequestHeader, position: int
    ) -> None:
        self._log.received(context, frame, header, position)
        super().handle_frame(context, frame, header, position)


class _LoggedRouter(ResponseRouter):
    """Router of a broker with a request log."""

    def __init__(self, log: RequestLog, after_task: Callable[[], None]) -> None:
        super().__init__(after_task)
        self._log = log

    def send(self, token: int, response: ApiMessage | None) -> None:
        self._log.completed(token, response)
        super().send(token, response)

    def cancel(self, token: int) -> None:
        self._log.disconnected(token)
        super().cancel(token)
