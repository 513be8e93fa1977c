"""Dispatch of decoded requests to their handlers.

A handler whose work grows with the request or with the broker's state is a generator (`Steps`): it yields between its
steps, so that other clients are served meanwhile. All other handlers must return within a few milliseconds.
"""

from __future__ import annotations

from functools import partial
from types import GeneratorType
from typing import Any, Callable, Mapping, NamedTuple, Protocol

from spark_groupsource.broker.api.access import Verdict
from spark_groupsource.broker.api.authorization import authorize
from spark_groupsource.broker.api.coordinator_topics import USES_TOPICS, creation_steps
from spark_groupsource.broker.api.request_limits import INLINE_ELEMENTS, SLICE_ELEMENTS, request_limit
from spark_groupsource.broker.api.small_responses import has_small_response
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import (
    DELAYED,
    NO_RESPONSE,
    ApiRequestContext,
    ResponseAction,
    SendResponse,
    Steps,
    in_a_slice,
)
from spark_groupsource.broker.storage.steps import StorageSteps
from spark_groupsource.errors import RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.decoder import TooManyElementsError
from spark_groupsource.wire.frames import RequestHeader, decode_request, read_request_header
from spark_groupsource.wire.messages import ApiMessage

# each handler takes the request class of its API, so the request is Any here
Handler = Callable[[Broker, ApiRequestContext, Any], "ApiMessage | ResponseAction | Steps"]
# an element has at least 2 bytes, and takes up to 700 with that of the response
_LARGE_FRAME_BYTES = 16_384
_UPDATES = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.METADATA,  # may create topics
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DELETE_GROUPS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.WRITE_TXN_MARKERS,
    }
)


class RunSteps(Protocol):
    """Runs the remaining steps of the request with this token in time slices, and calls `on_result` with their result.

    Args: `first`, the value that the first step yielded; `is_update`, whether all steps run even if the client
    disconnects; `is_large`, whether the request and its response may take a large part of the broker's memory;
    `is_short`, whether it runs beside any number of others.
    """

    def __call__(
        self,
        token: int,
        steps: Steps,
        first: Any,
        on_result: Callable[[Any], None],
        is_update: bool,
        is_large: bool = False,
        is_short: bool = False,
    ) -> None: ...


class ServedApi(NamedTuple):
    """The served versions of one API and its handler.

    Attributes: `note`, why the range starts and ends there, compared with Apache Kafka 4.3; empty if it is Kafka's;
    `advertised_since`, the first version that ApiVersions names if it is below `min_version`.
    """

    min_version: int
    max_version: int
    handler: Handler
    note: str = ""
    advertised_since: int | None = None

    @property
    def advertised(self) -> tuple[int, int]:
        """The lowest and highest version in an ApiVersions response."""
        return self.min_version if self.advertised_since is None else self.advertised_since, self.max_version


class _Rejection(NamedTuple):
    """The response to a request that is not authorized."""

    response: Any


class RequestDispatcher:
    """Calls the handler of each request and sends the response that it returns.

    Args: `complete_with` takes a function that changes the response of a request before it is sent, or None.
    """

    def __init__(
        self,
        broker: Broker,
        served: Mapping[ApiKey, ServedApi],
        send: SendResponse,
        run_steps: RunSteps,
        complete_with: Callable[[int, Callable[[Any], Any] | None], None] = lambda token, complete: None,
    ) -> None:
        # keyed by int: requests of unknown APIs are looked up too
        self.served: Mapping[int, ServedApi] = {int(key): api for key, api in served.items()}
        self._broker = broker
        self._send = send
        self._run_steps = run_steps
        self._complete_with = complete_with
        self._is_first_step = False

    def has_small_response(self, frame: memoryview) -> bool:
        """Returns whether the response to a request of one of `PREDICTABLE_RESPONSES` is small, or an error."""
        try:
            header, position = read_request_header(frame)
            request = decode_request(frame, header, position, INLINE_ELEMENTS)
        except TooManyElementsError:
            return False
        except (RemoteProtocolError, UnsupportedVersionError):
            return True
        return has_small_response(self._broker, header.api_key, header.api_version, request)

    def handle_frame(
        self, context: ApiRequestContext, frame: memoryview, header: RequestHeader, position: int
    ) -> None:
        """Decodes and handles the request whose body is at `position`; uses time slices for many elements.

        Raises: RemoteProtocolError if the body is invalid.
        """
        try:
            request = decode_request(frame, header, position, INLINE_ELEMENTS)
        except TooManyElementsError:
            steps = self._large_request(context, frame, header, position)
            is_large = len(frame) > _LARGE_FRAME_BYTES
            self._start(context, steps, creates_topic=context.api_key in USES_TOPICS, is_large=is_large)
        else:
            self.handle(context, request)

    def _large_request(
        self, context: ApiRequestContext, frame: memoryview, header: RequestHeader, position: int
    ) -> Steps:
        yield None
        try:
            request = decode_request(frame, header, position, SLICE_ELEMENTS)
        except TooManyElementsError:
            limit = request_limit(header.api_key).max_elements
            request = yield partial(decode_request, frame, header, position, limit)
        yield None
        complete = None
        if self._broker.authorizer is not None:
            # reads only the ACLs and the names of topics
            verdict = yield partial(authorize, self._broker, context, request)
            request = self._accepted(context, request, verdict)
            complete = verdict.complete
        if isinstance(request, _Rejection):
            response: ApiMessage | ResponseAction = request.response
            return response
        steps = self._handle_after(creation_steps(self._broker, request), context, request)
        if complete is not None:
            steps = self._completed(context.token, steps, complete)
        response = yield from steps
        return response

    def _handle_after(
        self, creation: StorageSteps[None] | None, context: ApiRequestContext, request: ApiMessage
    ) -> Steps:
        if creation is not None:
            yield from creation
        result: Any = self.served[context.api_key].handler(self._broker, context, request)
        response: ApiMessage | ResponseAction = (yield from result) if isinstance(result, GeneratorType) else result
        return response

    def handle(self, context: ApiRequestContext, request: ApiMessage) -> None:
        """Handles a request of a served API and version."""
        verdict = None if self._broker.authorizer is None else authorize(self._broker, context, request)
        complete = None
        if verdict is not None:
            request, complete = self._accepted(context, request, verdict), verdict.complete
        if isinstance(request, _Rejection):
            self._respond(context.token, request.response)
            return
        creation = creation_steps(self._broker, request)
        if creation is not None:
            self._start(context, self._handle_after(creation, context, request), creates_topic=True)
            return
        result = self.served[context.api_key].handler(self._broker, context, request)
        if isinstance(result, GeneratorType):
            self._start(context, result if complete is None else self._completed(context.token, result, complete))
        else:
            self._respond(context.token, result)

    def _completed(self, token: int, steps: Steps, complete: Callable[[Any], Any]) -> Steps:
        """Completes the response in the worker thread if the handler needed more than one step."""
        response = yield from steps
        if isinstance(response, ResponseAction) or self._is_first_step:
            return response
        self._complete_with(token, None)
        completed: ApiMessage = yield partial(complete, response)
        return completed

    def _accepted(self, context: ApiRequestContext, request: Any, verdict: Verdict) -> Any:
        """Returns the request without what its principal may not access, or a rejection."""
        if verdict.response is not None:
            is_unacknowledged = context.api_key == ApiKey.PRODUCE and not request.acks
            return _Rejection(NO_RESPONSE if is_unacknowledged else verdict.response)
        if verdict.complete is not None:
            self._complete_with(context.token, verdict.complete)
        return verdict.request

    def _start(
        self, context: ApiRequestContext, steps: Steps, creates_topic: bool = False, is_large: bool = False
    ) -> None:
        """Performs the first step, which is the only one of most requests."""
        token = context.token
        try:
            first = self._first(steps)
        except StopIteration as end:
            self._respond(token, end.value)
        else:
            is_update = context.api_key in _UPDATES or creates_topic
            respond = partial(self._respond, token)
            is_short = first is in_a_slice
            self._run_steps(token, steps, None if is_short else first, respond, is_update, is_large, is_short)

    def _first(self, steps: Steps) -> Any:
        self._is_first_step = True
        try:
            return next(steps)
        finally:
            self._is_first_step = False

    def _respond(self, token: int, response: Any) -> None:
        if response is NO_RESPONSE:
            self._send(token, None)
        elif response is not DELAYED:
            self._send(token, response)
