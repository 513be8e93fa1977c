"""Framing of requests and responses: length, header and body.

Sizes are checked before memory is allocated; invalid bytes raise `RemoteProtocolError`.

Source: https://kafka.apache.org/protocol (Protocol primitives, RequestHeader v1-v2, ResponseHeader v0-v1).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

from spark_groupsource.errors import ErrorCode, RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.model import new_tuple
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS, Api, api_of, api_of_key
from spark_groupsource.wire.decoder import decode_exactly, decode_prefix, skip_tagged_fields
from spark_groupsource.wire.encoder import Encode, compiled_encoder
from spark_groupsource.wire.messages import ApiMessage, Request, ResponseT

_LENGTH = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_REQUEST_HEADER = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")  # length, correlation id
_REQUEST_HEAD = struct.Struct(">ihhih")  # length, header up to the length of the client id
# a shorter byte string is copied in less time than it takes to send a buffer of its own
_LONG_BYTES = 16_384


class _HeaderForms(dict[tuple[int, int], bool | None]):
    """(API key, version) of a request -> True if its header has tagged fields; None if it is not supported."""

    def __missing__(self, request: tuple[int, int]) -> bool | None:
        api_key, version = request
        api = APIS.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            # not stored: a client may send any numbers
            return None
        self[request] = found = api.is_flexible(version)
        return found


_HEADER_FORMS = _HeaderForms()


class RequestHeader(NamedTuple):
    """Header v1 or v2 of a request; `client_id` is nullable."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def frame_length(prefix: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Returns the length of a frame from its 4-byte prefix.

    Raises: RemoteProtocolError if the length is negative or above `max_bytes`.
    """
    (length,) = _LENGTH.unpack(prefix)
    if not 0 <= length <= max_bytes:
        raise RemoteProtocolError(
            f"Cannot read a frame: its length is {length} bytes, the limit is {max_bytes}. The peer does not use "
            "Kafka's protocol, or has another security.protocol."
        )
    return int(length)


def encode_frame(content: bytes) -> bytes:
    """Encodes a frame without header: a SASL token after SaslHandshake version 0."""
    return _LENGTH.pack(len(content)) + content


def encode_request(request: Request[Any], version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """Encodes a request at `version`, with length and header. Raises: ValueError for an unknown version."""
    frame, name_length = _request_head(request, version, client_id)
    _encoder_of(request, version)(request, frame)
    length = len(frame) - _LENGTH.size
    _REQUEST_HEAD.pack_into(frame, 0, length, request.API_KEY, version, correlation_id, name_length)
    return frame


def encode_request_parts(
    request: Request[Any], version: int, correlation_id: int, client_id: str | None
) -> list[bytearray | memoryview]:
    """Encodes a request as `encode_request`, in parts to send in this order: record sets are views, not copies."""
    frame, name_length = _request_head(request, version, client_id)
    out = _Parts(frame)
    # a Parts is appended to like a bytearray
    _encoder_of(request, version)(request, out)  # type: ignore[arg-type]
    length = sum(map(len, out.parts)) - _LENGTH.size
    _REQUEST_HEAD.pack_into(frame, 0, length, request.API_KEY, version, correlation_id, name_length)
    return out.parts


class _Parts:
    """Buffers to send one after the other; long byte strings are buffers of their own."""

    def __init__(self, first: bytearray) -> None:
        self.parts: list[bytearray | memoryview] = [first]
        self._last = first

    def __iadd__(self, data: bytes | bytearray | memoryview) -> _Parts:
        if len(data) < _LONG_BYTES:
            self._last += data
        else:
            self._last = bytearray()
            self.parts += [memoryview(data), self._last]
        return self


def _request_head(request: Request[Any], version: int, client_id: str | None) -> tuple[bytearray, int]:
    """Returns the room for the head of a request, with the client id and no tagged fields, and the id's length."""
    frame = bytearray(_REQUEST_HEAD.size)
    name_length = -1
    if client_id is not None:
        name = client_id.encode()
        name_length = len(name)
        frame += name
    if version in request.SCHEMA.flexible:
        frame.append(0)
    return frame, name_length


def _encoder_of(request: Request[Any], version: int) -> Encode:
    hashable_class: Any = type(request)  # mypy does not accept a class as Hashable
    return compiled_encoder(hashable_class, version)


@lru_cache(maxsize=None)
def _encoder_and_head(message_class: Any, version: int) -> tuple[Encode, bytes]:
    """Returns the encoder of a response, and the place of its head with the tagged fields of the header."""
    # the header of an ApiVersions response has no tagged fields, so that any client can read it (KIP-511)
    has_tags = version in message_class.SCHEMA.flexible and message_class.API_KEY != ApiKey.API_VERSIONS
    return compiled_encoder(message_class, version), bytes(_RESPONSE_HEAD.size + has_tags)


def encode_response(response: ApiMessage, version: int, correlation_id: int) -> bytearray:
    """Encodes a response at `version`, with length and header. Raises: ValueError for an unknown version."""
    message_class: Any = type(response)  # mypy does not accept a class as Hashable
    encode, head = _encoder_and_head(message_class, version)
    frame = bytearray(head)
    encode(response, frame)
    _RESPONSE_HEAD.pack_into(frame, 0, len(frame) - _LENGTH.size, correlation_id)
    return frame


def read_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Returns the header of a request frame (without the length prefix), and the position of the body.

    Of an unsupported API or version only the stable first part of the header is read, so that the caller can respond
    with UNSUPPORTED_VERSION; the position is then undefined.

    Raises: RemoteProtocolError if the header is invalid or incomplete.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
    except struct.error as error:
        raise RemoteProtocolError(f"Cannot read a request header: the request has {len(frame)} bytes.") from error
    position = _REQUEST_HEADER.size
    client_id: str | None = None
    if length < -1:
        raise RemoteProtocolError(f"Cannot read a request header: the client id has length {length}.")
    if length >= 0:
        if position + length > len(frame):
            raise RemoteProtocolError(
                f"Cannot read a request header: the client id has length {length}, the request {len(frame)} bytes."
            )
        try:
            client_id = str(frame[position : position + length], "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("Cannot read a request header: the client id is not UTF-8.") from error
        position += length
    if _HEADER_FORMS[api_key, api_version]:
        # usually it has none
        has_no_tags = position < len(frame) and not frame[position]
        position = position + 1 if has_no_tags else _skip_header_tags(frame, position)
    return new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id)), position


def decode_request(
    frame: memoryview, header: RequestHeader, position: int, max_elements: int | None = None
) -> Request[Any]:
    """Decodes the body of a request. Record sets are views of `frame`.

    Bytes after the body are ignored, as in Kafka: librdkafka 2.16 sends three after a Metadata request for all topics.

    Raises: TooManyElementsError if the body has more than `max_elements` array elements and tagged fields;
    RemoteProtocolError if it is invalid; UnsupportedVersionError for another API or version.
    """
    api_key, version = header.api_key, header.api_version
    if _HEADER_FORMS[api_key, version] is None:
        raise UnsupportedVersionError(f"API {api_key} version {version} is not supported.")
    request, _ = decode_prefix(api_of_key(api_key).request, version, frame, position, max_elements)
    return request


def read_response_header(frame: memoryview, api: Api, version: int) -> tuple[int, int]:
    """Returns the correlation id of a response frame, and the position of the body.

    Raises: RemoteProtocolError if the header is incomplete.
    """
    if len(frame) < _LENGTH.size:
        raise RemoteProtocolError(f"Cannot read a response header: the response has {len(frame)} bytes.")
    (correlation_id,) = _LENGTH.unpack_from(frame)
    # the header of an ApiVersions response has no tagged fields, so that any client can read it (KIP-511)
    if api.is_flexible(version) and api.key != ApiKey.API_VERSIONS:
        return correlation_id, _skip_header_tags(frame, _LENGTH.size)
    return correlation_id, _LENGTH.size


def decode_response(
    frame: memoryview, request: Request[ResponseT], version: int, correlation_id: int
) -> ResponseT:
    """Decodes the response to `request`, which was sent at `version` with `correlation_id`.

    Record sets are views of `frame`.

    Raises: RemoteProtocolError if the correlation id differs or the frame is not exactly the response.
    """
    api = api_of(request)
    received_id, position = read_response_header(frame, api, version)
    if received_id != correlation_id:
        raise RemoteProtocolError(
            f"{api.name} failed: the response has correlation id {received_id}, expected {correlation_id}."
        )
    if api.key == ApiKey.API_VERSIONS and _is_unsupported_version(frame, position):
        version = 0  # a broker that does not support the requested version responds with version 0 (KIP-511)
    response: ResponseT = decode_exactly(api.response, version, frame, position)  # type: ignore[assignment]
    return response


def _is_unsupported_version(frame: memoryview, position: int) -> bool:
    body = frame[position : position + _ERROR_CODE.size]
    return len(body) == _ERROR_CODE.size and _ERROR_CODE.unpack(body)[0] == ErrorCode.UNSUPPORTED_VERSION


def _skip_header_tags(frame: memoryview, position: int) -> int:
    try:
        return skip_tagged_fields(frame, position)
    except IndexError as error:
        raise RemoteProtocolError(f"Cannot read a header: the frame of {len(frame)} bytes is incomplete.") from error
