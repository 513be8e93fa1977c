"""Compression codecs of record batches.

Sizes in the data are not trusted: the output grows as it is produced, up to a limit.

Source: KIP-98 (record batch v2), KIP-57 (LZ4 framing), KIP-110 (zstd); snappy-java's `SnappyOutputStream` (xerial).
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Any, Callable, Iterator

import lz4.frame

from spark_groupsource.errors import ConfigurationError, CorruptRecordError
from spark_groupsource.records.snappy_parts import snappy_parts
from spark_groupsource.records.varint import write_uvarint

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
_LIKELY_BYTES = 1024 * 1024
_INPUT_SLICE_BYTES = 64 * 1024
# a larger snappy block is decompressed in parts
_SNAPPY_WHOLE_BYTES = 16 * 1024 * 1024
_CODEC_ERRORS = (zlib.error, OSError, RuntimeError, ValueError, EOFError, MemoryError)


class SizeLimitError(CorruptRecordError):
    """A batch or record is larger, when decompressed, than the caller permits."""


def codec_number(name: str) -> int:
    """Returns the number of a codec of Kafka's `compression.type`.

    Raises: ConfigurationError for an unknown name.
    """
    if name not in CODECS:
        raise ConfigurationError(f"Compression codec {name!r} is unknown. Use one of {', '.join(CODECS)}.")
    return CODECS.index(name)


def compress(codec: int, data: bytes | memoryview, level: int | None = None) -> bytes:
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

    Raises: CorruptRecordError if the data is truncated or damaged, or the codec is unknown; SizeLimitError if the
        output exceeds `max_bytes`.
    """
    stream = DecompressionStream(codec, data)
    chunks: list[bytes] = []
    total = 0
    # most batches are one chunk, which is not copied again; the chunk size grows, so that their number is bounded
    want = max(_FIRST_CHUNK_BYTES, 4 * len(data), min(8 * len(data), _LIKELY_BYTES))
    while chunk := stream.read(min(want, max_bytes + 1 - total)):
        chunks.append(chunk)
        total += len(chunk)
        if total > max_bytes:
            raise SizeLimitError(
                f"Cannot decompress {CODECS[codec]} data: the batch exceeds the limit of {max_bytes} bytes."
            )
        want = max(want, total)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class DecompressionStream:
    """Decompresses `data` piece by piece: time and memory of one `read` do not depend on the compression ratio.

    The exception is one snappy block of more than 16 MiB that was not written in fragments of 64 KiB, as the usual
    libraries do: it is decompressed as a whole, up to `DEFAULT_MAX_BYTES`.
    """

    def __init__(self, codec: int, data: bytes | memoryview) -> None:
        """Raises: CorruptRecordError if the codec is unknown."""
        if not 0 <= codec < len(CODECS):
            raise CorruptRecordError(f"Compression codec {codec} does not exist. Known are {', '.join(CODECS)}.")
        self._description = f"{len(data)} bytes of {CODECS[codec]} data"
        self._read_some = _READERS[codec](memoryview(data))

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes, fewer only at the end.

        Raises: CorruptRecordError if the data is truncated or damaged.
        """
        try:
            chunk = self._read_some(size)
            if len(chunk) == size or not chunk:
                return chunk
            chunks, missing = [chunk], size - len(chunk)
            while missing and (chunk := self._read_some(missing)):
                chunks.append(chunk)
                missing -= len(chunk)
            return b"".join(chunks)
        except _CODEC_ERRORS as error:
            raise CorruptRecordError(
                f"Cannot decompress {self._description}: {error}. The batch was damaged by its producer or on disk."
            ) from error


_ReadSome = Callable[[int], bytes]
"""Returns at least one and at most the given number of bytes, none at the end."""


def _read_none(data: memoryview) -> _ReadSome:
    return _read_parts(iter((data,)))


def _read_parts(parts: Iterator[bytes | memoryview]) -> _ReadSome:
    """Reads parts of any size."""
    part = memoryview(b"")

    def read(size: int) -> bytes:
        nonlocal part
        while not part:
            following = next(parts, None)
            if following is None:
                return b""
            part = memoryview(following)
        chunk, part = bytes(part[:size]), part[size:]
        return chunk

    return read


def _copy(data: bytes | memoryview, level: int | None) -> bytes:
    return bytes(data)


def _read_gzip(data: memoryview) -> _ReadSome:
    position = 0
    pending = b""
    member = zlib.decompressobj(wbits=31)

    def read(size: int) -> bytes:
        nonlocal position, pending, member
        while True:
            if member.eof:
                # concatenated members are one stream, as in java.util.zip.GZIPInputStream
                pending = member.unused_data
                if (pending or bytes(data[position : position + 1]))[:1] != b"\x1f":
                    return b""
                member = zlib.decompressobj(wbits=31)
            if not pending:
                # input in slices: zlib copies the unused input, which is slow with many small members
                pending = bytes(data[position : position + _INPUT_SLICE_BYTES])
                position += len(pending)
                if not pending:
                    raise EOFError("incomplete gzip member")
            chunk = member.decompress(pending, size)
            pending = member.unconsumed_tail
            if chunk:
                return chunk

    return read


def _gzip(data: bytes | memoryview, level: int | None) -> bytes:
    member = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=31)
    view = memoryview(data)
    # in parts: a buffer of zlib grows to a multiple of its output
    parts = [member.compress(view[at : at + _LIKELY_BYTES]) for at in range(0, len(view), _LIKELY_BYTES)]
    return b"".join([*parts, member.flush()])


def _read_snappy(data: memoryview) -> _ReadSome:
    return _read_parts(part for block in snappy_blocks(data) for part in _unsnappy_block(block))


def snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yields the snappy blocks of `data`: the only one, or those of snappy-java's streams."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield data
        return
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        if bytes(data[position : position + 8]) == _XERIAL_MAGIC:  # concatenated streams
            position += _XERIAL_HEADER_BYTES
            continue
        if position + 4 > len(data):
            raise EOFError("incomplete block length")
        (size,) = _LENGTH.unpack_from(data, position)
        position += 4
        if size < 0 or position + size > len(data):
            raise EOFError(f"block length {size}, {len(data) - position} bytes left")
        yield data[position : position + size]
        position += size


def _unsnappy_block(data: memoryview) -> Iterator[bytes]:
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
    if size > _SNAPPY_MAX_RATIO * len(data):
        raise ValueError(f"uncompressed length {size} of a block of {len(data)} bytes")
    if size <= _SNAPPY_WHOLE_BYTES:
        if size:
            yield _unsnappy(data, size)
        return
    done = 0
    for begin, end, part_size in snappy_parts(data, position, size):
        part = bytearray()
        write_uvarint(part, part_size)
        done += part_size
        yield _unsnappy(bytes(part) + data[begin:end], part_size)
    if done < size:  # the rest refers to what was returned
        if size > DEFAULT_MAX_BYTES:
            raise ValueError(f"a block of {size} bytes that cannot be divided")
        yield _unsnappy(data, size)[done:]


def _unsnappy(data: bytes | memoryview, size: int) -> bytes:
    arrow = _arrow()
    try:
        return bytes(_arrow_codec("snappy").decompress(data, decompressed_size=size, asbytes=True))
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _snappy(data: bytes | memoryview, level: int | None) -> bytes:
    return bytes(_arrow_codec("snappy").compress(data, asbytes=True))


def _read_lz4(data: memoryview) -> _ReadSome:
    frame = lz4.frame.LZ4FrameDecompressor()
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        while not frame.eof:
            pending = b""
            if frame.needs_input:
                # input in slices: the unused input is copied
                pending = bytes(data[position : position + _INPUT_SLICE_BYTES])
                position += len(pending)
                if not pending:
                    raise EOFError("incomplete LZ4 frame")
            chunk: bytes = frame.decompress(pending, max_length=size)
            if chunk:
                return chunk
        return b""

    return read


def _lz4(data: bytes | memoryview, level: int | None) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False, compression_level=level or 0))


def _read_zstd(data: memoryview) -> _ReadSome:
    arrow = _arrow()
    stream = arrow.CompressedInputStream(arrow.BufferReader(data), "zstd")

    def read(size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except arrow.ArrowException as error:
            raise ValueError(str(error)) from error

    return read


def _zstd(data: bytes | memoryview, level: int | None) -> bytes:
    return bytes(_arrow_codec("zstd", level).compress(data, asbytes=True))


@lru_cache(maxsize=None)
def _arrow() -> Any:
    """Returns PyArrow, imported at the first use of one of its codecs: it adds 0.2 s to the start of a broker."""
    import pyarrow

    return pyarrow


@lru_cache(maxsize=None)
def _arrow_codec(name: str, level: int | None = None) -> Any:
    return _arrow().Codec(name, compression_level=level)


_COMPRESS: tuple[Callable[[bytes | memoryview, int | None], bytes], ...] = (_copy, _gzip, _snappy, _lz4, _zstd)
_READERS: tuple[Callable[[memoryview], _ReadSome], ...] = (_read_none, _read_gzip, _read_snappy, _read_lz4, _read_zstd)
