"""Frames of Kafka's protocol: length, header, body; for the client's side and for the server's.

Knows bytes only. Sizes are checked before anything is allocated, and bytes that are not the protocol's raise
`RemoteProtocolError`, whatever they are.

Source: https://kafka.apache.org/protocol (Protocol primitives, RequestHeader v1-v2, ResponseHeader v0-v1).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Callable, NamedTuple

from spark_groupsource.errors import ErrorCode, RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.wire.apis import APIS, Api, api_of
from spark_groupsource.wire.decoder import decode_exactly, decode_prefix, skip_tagged_fields
from spark_groupsource.wire.messages import EncodeBufferPool, Message

MAX_REQUEST_BYTES = 104_857_600  # Kafka's socket.request.max.bytes
_API_VERSIONS_KEY = 18
_LENGTH = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_REQUEST_HEADER = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")  # length, correlation id
# (API, version) of every request that is known -> whether its header has tagged fields
_FLEXIBLE = {
    (api.key, version): api.is_flexible(version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
}


class RequestHeader(NamedTuple):
    """Header v1/v2 of a request; `client_id` may be null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def frame_length(prefix: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Reads the 4-byte length before a frame.

    Raises: RemoteProtocolError when the length is negative or above `max_bytes`.
    """
    (length,) = _LENGTH.unpack(prefix)
    if not 0 <= length <= max_bytes:
        raise RemoteProtocolError(
            f"a frame claims {length} bytes, allowed are 0 to {max_bytes}: the peer does not speak Kafka's protocol"
        )
    return int(length)


def encode_request(request: Message, version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """A framed request: length, header, body at `version`; the buffer is the caller's."""
    return _encode(request, version, correlation_id=correlation_id, client_id=client_id)


def encode_response(response: Message, version: int, correlation_id: int) -> bytearray:
    """A framed response: length, header, body at `version`; the buffer is the caller's, the response stays as it is."""
    message_class: Message = type(response)
    write_body, has_tags = _body_writer(message_class, version)
    # by hand: the library makes a header object for each message, which takes longer than a whole heartbeat
    with EncodeBufferPool.acquire() as out:
        out.pos = _RESPONSE_HEAD.size
        if has_tags:
            out.buf[out.pos] = 0
            out.pos += 1
        write_body(response, out)
        _RESPONSE_HEAD.pack_into(out.buf, 0, out.pos - _LENGTH.size, correlation_id)
        frame = out.result()
    assert isinstance(frame, bytearray)
    return frame


@lru_cache(maxsize=None)
def _body_writer(message_class: Any, version: int) -> tuple[Callable[[Message, Any], None], bool]:
    """What writes a body into a buffer of the library's, and whether the header before it has tagged fields."""
    if not 0 <= version <= message_class.max_version:
        raise ValueError(f"{message_class.__name__} has versions up to {message_class.max_version}, not {version}")
    flexible = bool(message_class.flexible_version_q(version))
    write = message_class._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
    # an ApiVersions answer never has tagged fields in its header, so that any client can read it (KIP-511)
    return write, flexible and message_class.API_KEY != _API_VERSIONS_KEY


def _encode(message: Message, version: int, **header: int | str | None) -> bytearray:
    # in this order: a response that has a header already refuses to be given a version
    message._header = None
    message.API_VERSION = version
    message.with_header(**header)
    frame = message.encode(header=True, framed=True)
    # no conversion to bytes: it would copy every fetched or produced record once more
    assert isinstance(frame, bytearray)
    return frame


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
    if length < -1:
        raise RemoteProtocolError(f"client id has the negative length {length}")
    if length >= 0:
        if position + length > len(frame):
            raise RemoteProtocolError(f"client id of {length} bytes does not fit in a request of {len(frame)} bytes")
        try:
            client_id = str(frame[position : position + length], "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("client id is not UTF-8") from error
        position += length
    if _FLEXIBLE.get((api_key, api_version)):
        position = _skip_header_tags(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def is_supported(api_key: int, api_version: int) -> bool:
    """True where a request of this API and version can be decoded here."""
    return (api_key, api_version) in _FLEXIBLE


def decode_request(frame: memoryview, header: RequestHeader, position: int) -> Message:
    """Body of a request whose header was read. Record sets in it are views of `frame`.

    Bytes behind the body are let pass, as Kafka lets them pass: librdkafka 2.16 leaves three behind a Metadata request
    for all topics.

    Raises: RemoteProtocolError on bytes that do not decode; UnsupportedVersionError when API and version are not
    `is_supported`, which the caller answers if it can.
    """
    if not is_supported(header.api_key, header.api_version):
        raise UnsupportedVersionError(f"API {header.api_key} version {header.api_version} is not known here")
    request, _ = decode_prefix(APIS[header.api_key].request, header.api_version, frame, position)
    return request


def read_response_header(frame: memoryview, api: Api, version: int) -> tuple[int, int]:
    """Correlation id of a response frame, and the position where the body begins.

    Raises: RemoteProtocolError when the frame is too short to hold a header.
    """
    if len(frame) < _LENGTH.size:
        raise RemoteProtocolError(f"a response of {len(frame)} bytes is too short for a header")
    (correlation_id,) = _LENGTH.unpack_from(frame)
    # an ApiVersions answer never has tagged fields in its header, so that any client can read it (KIP-511)
    if api.is_flexible(version) and api.key != _API_VERSIONS_KEY:
        return correlation_id, _skip_header_tags(frame, _LENGTH.size)
    return correlation_id, _LENGTH.size


def decode_response(frame: memoryview, request: Message, version: int, correlation_id: int) -> Message:
    """The answer to `request`, which was sent at `version` with `correlation_id`.

    Record sets in it are views of `frame`.

    Raises: RemoteProtocolError on another correlation id, on bytes that do not decode, or that are left over.
    """
    api = api_of(request)
    answered, position = read_response_header(frame, api, version)
    if answered != correlation_id:
        raise RemoteProtocolError(f"{api.name}: answer {answered} came where {correlation_id} was due")
    if api.key == _API_VERSIONS_KEY and _is_unsupported_version(frame, position):
        version = 0  # whatever was asked for, a broker that does not know that version answers so (KIP-511)
    return decode_exactly(api.response, version, frame, position)


def _is_unsupported_version(frame: memoryview, position: int) -> bool:
    body = frame[position : position + _ERROR_CODE.size]
    return len(body) == _ERROR_CODE.size and _ERROR_CODE.unpack(body)[0] == ErrorCode.UNSUPPORTED_VERSION


def _skip_header_tags(frame: memoryview, position: int) -> int:
    try:
        return skip_tagged_fields(frame, position)
    except IndexError as error:
        raise RemoteProtocolError(f"the header of a frame of {len(frame)} bytes does not end") from error
