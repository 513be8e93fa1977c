"""Frames of Kafka's protocol: length, header, body; for the client's side and for the server's.

Knows bytes only. Sizes are checked before anything is allocated, and whatever a decoder of the codec library raises on
bad bytes leaves here as `RemoteProtocolError`.

Source: https://kafka.apache.org/protocol (Protocol primitives, RequestHeader v1-v2, ResponseHeader v0-v1).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from spark_groupsource.errors import RemoteProtocolError
from spark_groupsource.wire.messages import APIS, Api, Message, api_of

MAX_REQUEST_BYTES = 104_857_600  # Kafka's socket.request.max.bytes
_API_VERSIONS_KEY = 18
_LENGTH = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhih")

# what kafka-python's generated decoders raise on truncated or senseless bytes
_DECODE_ERRORS = (ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, MemoryError, struct.error)


class RequestHeader(NamedTuple):
    """Header v1/v2 of a request; `client_id` may be null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def frame_length(prefix: bytes | memoryview, max_bytes: int) -> int:
    """Reads the 4-byte length before a frame.

    Raises: RemoteProtocolError when the length is negative or above `max_bytes`.
    """
    (length,) = _LENGTH.unpack(prefix)
    if not 0 <= length <= max_bytes:
        raise RemoteProtocolError(
            f"a frame claims {length} bytes, allowed are 0 to {max_bytes}: the peer does not speak Kafka's protocol"
        )
    return int(length)


def encode_request(request: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A framed request: length, header, body at `version`."""
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(version=version, header=True, framed=True))


def encode_response(response: Message, version: int, correlation_id: int) -> bytes:
    """A framed response: length, header, body at `version`."""
    response.with_header(correlation_id=correlation_id)
    return bytes(response.encode(version=version, header=True, framed=True))


def read_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Header of a request frame (without its length prefix), and the position where the body begins.

    An API or version unknown here is no error at this point: the header is read as far as its first, stable part goes,
    so that the caller can answer UNSUPPORTED_VERSION; the body position is then meaningless.

    Raises: RemoteProtocolError when the frame is too short to hold a header.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
    except struct.error as error:
        raise RemoteProtocolError(f"a request of {len(frame)} bytes is too short for a header") from error
    position = _REQUEST_HEADER.size
    client_id: str | None = None
    if length >= 0:
        if position + length > len(frame):
            raise RemoteProtocolError(f"client id of {length} bytes does not fit in a request of {len(frame)} bytes")
        try:
            client_id = str(frame[position : position + length], "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("client id is not UTF-8") from error
        position += length
    api = APIS.get(api_key)
    if api is not None and api.min_version <= api_version <= api.max_version and api.is_flexible(api_version):
        position = _skip_tagged_fields(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def decode_request(frame: memoryview, header: RequestHeader, position: int) -> Message:
    """Body of a request whose header was read.

    Raises: RemoteProtocolError on bytes that do not decode, or that are left over.
    """
    return _decode_body(APIS[header.api_key], APIS[header.api_key].request, header.api_version, frame, position)


def read_response_header(frame: memoryview, api: Api, version: int) -> tuple[int, int]:
    """Correlation id of a response frame, and the position where the body begins.

    Raises: RemoteProtocolError when the frame is too short to hold a header.
    """
    if len(frame) < 4:
        raise RemoteProtocolError(f"a response of {len(frame)} bytes is too short for a header")
    (correlation_id,) = _LENGTH.unpack_from(frame)
    # an ApiVersions answer never has tagged fields in its header, so that any client can read it (KIP-511)
    if api.is_flexible(version) and api.key != _API_VERSIONS_KEY:
        return correlation_id, _skip_tagged_fields(frame, 4)
    return correlation_id, 4


def decode_response(frame: memoryview, request: Message, version: int, correlation_id: int) -> Message:
    """The answer to `request`, which was sent at `version` with `correlation_id`.

    Raises: RemoteProtocolError on another correlation id and on bytes that do not decode.
    """
    api = api_of(request)
    answered, position = read_response_header(frame, api, version)
    if answered != correlation_id:
        raise RemoteProtocolError(f"{api.name}: answer {answered} came where {correlation_id} was due")
    return _decode_body(api, api.response, version, frame, position)


def _decode_body(api: Api, message_class: Message, version: int, frame: memoryview, position: int) -> Message:
    try:
        return message_class.decode(frame[position:], version=version)
    except _DECODE_ERRORS as error:
        raise RemoteProtocolError(f"{message_class.__name__} v{version} of {len(frame)} bytes does not decode: {error}") from error


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    count, position = _read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = _read_unsigned_varint(frame, position)
        size, position = _read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise RemoteProtocolError("a tagged field of the header reaches past the frame")
    return position


def _read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(frame) or shift > 28:
            raise RemoteProtocolError("a varint of the header does not end")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
