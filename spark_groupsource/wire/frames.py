"""Framing of requests and responses: length, header and body.

Sizes are checked before memory is allocated; invalid bytes raise `RemoteProtocolError`.

Source: https://kafka.apache.org/protocol (Protocol primitives, RequestHeader v1-v2, ResponseHeader v0-v1).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from spark_groupsource.errors import ErrorCode, RemoteProtocolError, UnsupportedVersionError
from spark_groupsource.model import new_tuple
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS, Api, api_of, api_of_key
from spark_groupsource.wire.compiled_decoder import Decode, Irregular, compiled_decoder
from spark_groupsource.wire.compiled_encoder import Encode, UnusualMessage, compiled_encoder
from spark_groupsource.wire.decoder import decode_exactly, decode_prefix, skip_tagged_fields
from spark_groupsource.wire.messages import ApiMessage, EncodeBuffer, EncodeBufferPool, Request, ResponseT

MessageT = TypeVar("MessageT", bound="ApiMessage")
_LENGTH = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_REQUEST_HEADER = struct.Struct(">hhih")
_POOLED_BYTES = 65_536
_RESPONSE_HEAD = struct.Struct(">ii")  # length, correlation id


class _HeaderForms(dict[tuple[int, int], bool | None]):
    """(API key, version) of a request -> True if its header has tagged fields; None if it is not supported."""

    def __missing__(self, request: tuple[int, int]) -> bool | None:
        api_key, version = request
        if api_key not in APIS or not APIS[api_key].min_version <= version <= APIS[api_key].max_version:
            # not stored: a client may send any numbers
            return None
        self[request] = found = APIS[api_key].is_flexible(version)
        return found


_HEADER_FORMS = _HeaderForms()


class _Decoders(dict[tuple[int, int], Decode]):
    """(API key, version) of a supported request -> its generated decoder."""

    def __missing__(self, request: tuple[int, int]) -> Decode:
        api_key, version = request
        message_class: Any = api_of_key(api_key).request
        self[request] = found = compiled_decoder(message_class, version)
        return found


_DECODERS = _Decoders()
_UNLIMITED = 2**31


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
    """Encodes a request at `version`, with length and header."""
    message: Any = request
    message._header = None
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    frame = message.encode(header=True, framed=True)
    # not converted to bytes, which would copy all produced records
    assert isinstance(frame, bytearray)
    return frame


class _Encoders(dict[tuple[Any, int], tuple[Optional[Encode], bool]]):
    """(class, version) of a response -> its generated encoder, and True if the header has tagged fields."""

    def __missing__(self, response: tuple[Any, int]) -> tuple[Encode | None, bool]:
        _, has_tags = _body_writer(*response)
        self[response] = found = (compiled_encoder(*response), has_tags)
        return found


_ENCODERS = _Encoders()


_CONSTANTS: dict[int, tuple[ApiMessage, dict[int, bytes]]] = {}
"""Identity of a constant response -> the response, and version -> body."""


def constant_response(response: MessageT) -> MessageT:
    """Returns a response that never changes; its encoding is kept, and so is the response: for a few of them."""
    _CONSTANTS[id(response)] = response, {}
    return response


def _constant_frame(response: ApiMessage, bodies: dict[int, bytes], version: int, correlation_id: int) -> bytes:
    body = bodies.get(version)
    if body is None:
        body = bodies[version] = bytes(encode_large_response(response, version, 0)[_RESPONSE_HEAD.size :])
    return _RESPONSE_HEAD.pack(len(body) + _LENGTH.size, correlation_id) + body


def encode_response(response: ApiMessage, version: int, correlation_id: int) -> bytes | bytearray:
    """Encodes a response at `version`, with length and header. Does not change `response`."""
    constant = _CONSTANTS.get(id(response))
    if constant is not None:
        return _constant_frame(*constant, version, correlation_id)
    encode, has_tags = _ENCODERS[type(response), version]
    if encode is None:
        return encode_large_response(response, version, correlation_id)
    parts: list[bytes] = [b"\x00" if has_tags else b""]
    try:
        encode(response, parts.append)
        size = sum(map(len, parts)) + _LENGTH.size
        parts[0] = _RESPONSE_HEAD.pack(size, correlation_id) + parts[0]
        return b"".join(parts)
    except (UnusualMessage, struct.error, AttributeError, TypeError, OverflowError):
        pass
    return encode_large_response(response, version, correlation_id)


def encode_large_response(
    response: ApiMessage, version: int, correlation_id: int, data_bytes: int = 0
) -> bytearray:
    """As `encode_response`, in one buffer, which takes less memory while a message of many elements is encoded.

    Args: `data_bytes`, bytes of its record sets and other data, if they are many: the buffer is then not copied.
    """
    message_class: Any = type(response)
    write_body, has_tags = _body_writer(message_class, version)
    # without the header object of the library, which takes longer to create than a Heartbeat takes to handle
    with EncodeBufferPool.acquire() as out:
        if data_bytes > _POOLED_BYTES:
            out.ensure(data_bytes + _POOLED_BYTES)
        out.pos = _RESPONSE_HEAD.size
        if has_tags:
            out.buf[out.pos] = 0
            out.pos += 1
        write_body(response, out)
        _RESPONSE_HEAD.pack_into(out.buf, 0, out.pos - _LENGTH.size, correlation_id)
        if out.pos > _POOLED_BYTES:
            # not copied, and not kept by the pool of this thread
            frame, out.buf = out.buf, bytearray(_POOLED_BYTES)
            del frame[out.pos :]
        else:
            frame = out.result()
    assert isinstance(frame, bytearray)
    return frame


@lru_cache(maxsize=None)
def _body_writer(
    message_class: type[ApiMessage], version: int
) -> tuple[Callable[[ApiMessage, EncodeBuffer], None], bool]:
    """Returns the encoder of a body, and True if the header has tagged fields."""
    if not 0 <= version <= message_class.max_version:
        raise ValueError(f"{message_class.__name__} has no version {version}. Use 0 to {message_class.max_version}.")
    flexible = message_class.flexible_version_q(version)
    write = message_class._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
    # the header of an ApiVersions response has no tagged fields, so that any client can read it (KIP-511)
    return write, flexible and message_class.API_KEY != ApiKey.API_VERSIONS


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
    limit = _UNLIMITED if max_elements is None else max_elements
    try:
        return _DECODERS[api_key, version](frame, position, limit)  # type: ignore[no-any-return]
    except (Irregular, struct.error, IndexError, UnicodeDecodeError, RemoteProtocolError):
        # outside of this handler, because an error there would refer to this one
        pass
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
