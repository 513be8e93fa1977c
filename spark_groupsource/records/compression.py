"""Compression codecs of record batches.

Sizes in the data are not trusted: the output grows as it is produced, up to a limit.

Source: KIP-98 (record batch v2), KIP-57 (LZ4 framing), KIP-110 (zstd); snappy-java's `SnappyOutputStream` (xerial).
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Any, Callable

import lz4.frame

from spark_groupsource.errors import ConfigurationError, CorruptRecordError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the codecs; the index is the number in the attributes of a batch."""

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
"""Limit of one decompressed batch: 256 times the default of message.max.bytes."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16  # magic, version, lowest compatible version; Kafka's reader ignores the versions
_LENGTH = struct.Struct(">i")
# the snappy element with the highest ratio is a copy: 3 bytes for at most 64
_SNAPPY_MAX_RATIO = 22
_FIRST_CHUNK_BYTES = 64 * 1024
_GZIP_SLICE_BYTES = 64 * 1024
_CODEC_ERRORS = (zlib.error, OSError, RuntimeError, ValueError, EOFError, MemoryError)


def codec_number(name: str) -> int:
    """Returns the number of a codec of Kafka's `compression.type`.

    Raises: ConfigurationError for an unknown name.
    """
    if name not in CODECS:
        raise ConfigurationError(f"Compression codec {name!r} is unknown. Use one of {', '.join(CODECS)}.")
    return CODECS.index(name)


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """Compresses `data` for any Kafka client, at `level` or the default of the codec.

    LZ4 blocks are independent, because Kafka's Java reader rejects linked ones (`Lz4BlockInputStream`). Snappy is a raw
    block, which Java and librdkafka read. Snappy and "none" ignore the level.

    Raises: ConfigurationError for an unknown codec number.
    """
    if not 0 <= codec < len(CODECS):
        raise ConfigurationError(f"Compression codec {codec} does not exist. Use 0 to {len(CODECS) - 1}.")
    return _COMPRESS[codec](data, level)


def decompress(codec: int, data: bytes | memoryview, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Decompresses `data` to at most `max_bytes`.

    Raises: CorruptRecordError if the data is truncated or damaged, the codec is unknown, or the output exceeds
    `max_bytes`.
    """
    if not 0 <= codec < len(CODECS):
        raise CorruptRecordError(f"Compression codec {codec} does not exist. Known are {', '.join(CODECS)}.")
    try:
        return _DECOMPRESS[codec](data, max_bytes)
    except _CODEC_ERRORS as error:
        raise CorruptRecordError(
            f"Cannot decompress {len(data)} bytes of {CODECS[codec]} data: {error}. The batch was damaged by its "
            "producer or on disk."
        ) from error


def _too_large(name: str, max_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(f"Cannot decompress {name} data: the batch exceeds the limit of {max_bytes} bytes.")


def _read_bounded(name: str, read: Callable[[int], bytes], compressed_bytes: int, max_bytes: int) -> bytes:
    """Returns the output of `read(n)` up to its end. The chunk size grows, so that the number of chunks is bounded."""
    chunks: list[bytes] = []
    total = 0
    want = max(_FIRST_CHUNK_BYTES, 4 * compressed_bytes)
    while True:
        chunk = read(min(want, max_bytes + 1 - total))
        if not chunk:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.append(chunk)
        total += len(chunk)
        if total > max_bytes:
            raise _too_large(name, max_bytes)
        want = max(want, total)


def _none(data: bytes | memoryview, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large("uncompressed", max_bytes)
    return bytes(data)


def _copy(data: bytes, level: int | None) -> bytes:
    return bytes(data)


def _gunzip(data: bytes | memoryview, max_bytes: int) -> bytes:
    view = memoryview(data)
    position = 0
    pending = b""
    member = zlib.decompressobj(wbits=31)

    def read(size: int) -> bytes:
        nonlocal position, pending, member
        while True:
            if member.eof:
                # concatenated members are one stream, as in java.util.zip.GZIPInputStream
                pending = member.unused_data
                if (pending or bytes(view[position : position + 1]))[:1] != b"\x1f":
                    return b""
                member = zlib.decompressobj(wbits=31)
            if not pending:
                # input in slices: zlib copies the unused input, which is slow with many small members
                pending = bytes(view[position : position + _GZIP_SLICE_BYTES])
                position += len(pending)
                if not pending:
                    raise EOFError("incomplete gzip member")
            chunk = member.decompress(pending, size)
            pending = member.unconsumed_tail
            if chunk:
                return chunk

    return _read_bounded("gzip", read, len(data), max_bytes)


def _gzip(data: bytes, level: int | None) -> bytes:
    member = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=31)
    return member.compress(data) + member.flush()


def _unsnappy(data: bytes | memoryview, max_bytes: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _unsnappy_block(data, max_bytes)
    view = memoryview(data)
    position = _XERIAL_HEADER_BYTES
    blocks: list[bytes] = []
    total = 0
    while position < len(view):
        if bytes(view[position : position + 8]) == _XERIAL_MAGIC:  # concatenated streams
            position += _XERIAL_HEADER_BYTES
            continue
        if position + 4 > len(view):
            raise EOFError("incomplete block length")
        (size,) = _LENGTH.unpack_from(view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise EOFError(f"block length {size}, {len(view) - position} bytes left")
        block = _unsnappy_block(view[position : position + size], max_bytes - total)
        blocks.append(block)
        total += len(block)
        position += size
    return b"".join(blocks)


def _unsnappy_block(data: bytes | memoryview, max_bytes: int) -> bytes:
    size = shift = position = 0
    while True:
        if position >= len(data) or shift > 28:
            raise EOFError("incomplete length of a snappy block")
        byte = data[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > max_bytes:
        raise _too_large("snappy", max_bytes)
    if size > _SNAPPY_MAX_RATIO * len(data):
        raise ValueError(f"uncompressed length {size} of a block of {len(data)} bytes")
    if not size:
        return b""
    arrow = _arrow()
    try:
        return bytes(_arrow_codec("snappy").decompress(data, decompressed_size=size, asbytes=True))
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _snappy(data: bytes, level: int | None) -> bytes:
    return bytes(_arrow_codec("snappy").compress(data, asbytes=True))


def _unlz4(data: bytes | memoryview, max_bytes: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    pending: bytes | memoryview = data

    def read(size: int) -> bytes:
        nonlocal pending
        if frame.eof:
            return b""
        chunk: bytes = frame.decompress(pending, max_length=size)
        pending = b""
        if not chunk and not frame.eof:
            raise EOFError("incomplete LZ4 frame")
        return chunk

    return _read_bounded("lz4", read, len(data), max_bytes)


def _lz4(data: bytes, level: int | None) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False, compression_level=level or 0))


def _unzstd(data: bytes | memoryview, max_bytes: int) -> bytes:
    arrow = _arrow()
    try:
        stream = arrow.CompressedInputStream(arrow.BufferReader(data), "zstd")
        return _read_bounded("zstd", stream.read, len(data), max_bytes)
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _zstd(data: bytes, level: int | None) -> bytes:
    return bytes(_arrow_codec("zstd", level).compress(data, asbytes=True))


@lru_cache(maxsize=None)
def _arrow() -> Any:
    """Returns PyArrow, imported at the first use of one of its codecs: it adds 0.2 s to the start of a broker."""
    import pyarrow

    return pyarrow


@lru_cache(maxsize=None)
def _arrow_codec(name: str, level: int | None = None) -> Any:
    return _arrow().Codec(name, compression_level=level)


_COMPRESS: tuple[Callable[[bytes, int | None], bytes], ...] = (_copy, _gzip, _snappy, _lz4, _zstd)
_DECOMPRESS: tuple[Callable[[bytes | memoryview, int], bytes], ...] = (_none, _gunzip, _unsnappy, _unlz4, _unzstd)
