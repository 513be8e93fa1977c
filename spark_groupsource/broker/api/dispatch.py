"""Dispatch of decoded requests to their handlers.

A handler whose work grows with the request or with the broker's state is a coroutine, which pauses so that other
clients are served meanwhile. All other handlers must return within a few milliseconds.
"""

from __future__ import annotations

from types import CoroutineType
from typing import Any, Callable, Coroutine, Mapping, NamedTuple, Protocol, Sequence

from spark_groupsource.broker.api.access import Verdict
from spark_groupsource.broker.api.authorization import authorize
from spark_groupsource.broker.api.coordinator_topics import USES_TOPICS, create_topics, missing_topics
from spark_groupsource.broker.api.request_limits import INLINE_ELEMENTS, SLICE_ELEMENTS, request_limit
from spark_groupsource.broker.api.small_responses import has_small_response
from spark_groupsource.broker.coordinators.shard_registry import ShardRegistry
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import NO_RESPONSE, ApiRequestContext, HandlerResult
from spark_groupsource.common.coroutines import FIRST_SLICE_NS, in_thread, pause
from spark_groupsource.errors import RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.decoder import TooManyElementsError
from spark_groupsource.wire.frames import RequestHeader, decode_request, read_request_header

# each handler takes the request class of its API, so the request is Any here
Handler = Callable[[Broker, ApiRequestContext, Any], HandlerResult]
# an element has at least one byte (an empty string), and takes up to 700 bytes with that of the response: 12 MB
_LARGE_FRAME_BYTES = 16_384
# without a response, the producer may disconnect at once, and a handler that waits for its place is dropped then
_UNACKNOWLEDGED_SLICE_NS = 15_000_000
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


class RunHandler(Protocol):
    """Runs a handler that may take longer than a time slice, and sends the response of the request with this token.

    Args: `slice_ns`, length of the slice that runs at once; `is_update`, whether a handler that has its place runs to
    its end even if the client disconnects; `is_large`, whether the request and its response may take a large part of
    the broker's memory; `is_small`, whether it runs beside any number of others.
    """

    def __call__(
        self,
        token: int,
        work: Coroutine[Any, Any, Any],
        slice_ns: int,
        *,
        is_update: bool,
        is_large: bool = False,
        is_small: bool = False,
    ) -> None: ...


class ServedApi(NamedTuple):
    """The served versions of one API and its handler.

    Attributes: `note`, why the range starts and ends there, compared with Apache Kafka 4.4; empty if it is Kafka's;
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


class RequestDispatcher:
    """Calls the handler of each request and sends the response that it returns.

    Args: `respond` sends the result of a handler; `complete_with` takes a function that changes the response of a
    request before it is sent.
    """

    def __init__(
        self,
        broker: Broker,
        served: Mapping[ApiKey, ServedApi],
        respond: Callable[[int, Any], None],
        run: RunHandler,
        complete_with: Callable[[int, Callable[[Any], Any]], None] = lambda token, complete: None,
    ) -> None:
        # keyed by int: requests of unknown APIs are looked up too
        self.served: Mapping[int, ServedApi] = {int(key): api for key, api in served.items()}
        self._broker = broker
        self._respond = respond
        self._run = run
        self._complete_with = complete_with

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
            work = self._handle_large(context, frame, header, position)
            self._run(
                context.token,
                work,
                0,
                is_update=context.api_key in _UPDATES or context.api_key in USES_TOPICS,
                is_large=len(frame) > _LARGE_FRAME_BYTES,
            )
        else:
            self.handle(context, request)

    async def _handle_large(
        self, context: ApiRequestContext, frame: memoryview, header: RequestHeader, position: int
    ) -> Any:
        await pause()
        try:
            request = decode_request(frame, header, position, SLICE_ELEMENTS)
        except TooManyElementsError:
            limit = request_limit(header.api_key).max_elements
            request = await in_thread(decode_request, frame, header, position, limit)
        await pause()
        if self._broker.authorizer is not None:
            # reads only the ACLs, the names of topics and the configuration
            verdict = await in_thread(authorize, self._broker, context, request)
            if verdict.response is not None:
                return _rejection(context, request, verdict)
            request = self._accepted(context, verdict)
        return await self._call_handler(context, request, missing_topics(self._broker, request))

    async def _call_handler(
        self, context: ApiRequestContext, request: Any, missing: Sequence[ShardRegistry[Any, Any]]
    ) -> Any:
        await create_topics(missing)
        result = self.served[context.api_key].handler(self._broker, context, request)
        return await result if isinstance(result, CoroutineType) else result

    def handle(self, context: ApiRequestContext, request: Any) -> None:
        """Handles a request of a served API and version."""
        if self._broker.authorizer is not None:
            verdict = authorize(self._broker, context, request)
            if verdict.response is not None:
                self._respond(context.token, _rejection(context, request, verdict))
                return
            request = self._accepted(context, verdict)
        missing = missing_topics(self._broker, request)
        if missing:
            work = self._call_handler(context, request, missing)
            self._run(context.token, work, FIRST_SLICE_NS, is_update=True)
            return
        result = self.served[context.api_key].handler(self._broker, context, request)
        if isinstance(result, CoroutineType):
            slice_ns = _UNACKNOWLEDGED_SLICE_NS if _is_unacknowledged(context, request) else FIRST_SLICE_NS
            is_small = context.api_key == ApiKey.FETCH  # it takes a place if it has many partitions
            self._run(context.token, result, slice_ns, is_update=context.api_key in _UPDATES, is_small=is_small)
        else:
            self._respond(context.token, result)

    def _accepted(self, context: ApiRequestContext, verdict: Verdict) -> Any:
        """Returns the request without what its principal may not access."""
        if verdict.complete is not None:
            self._complete_with(context.token, verdict.complete)
        return verdict.request


def _rejection(context: ApiRequestContext, request: Any, verdict: Verdict) -> Any:
    return NO_RESPONSE if _is_unacknowledged(context, request) else verdict.response


def _is_unacknowledged(context: ApiRequestContext, request: Any) -> bool:
    return context.api_key == ApiKey.PRODUCE and not request.acks
