"""Decompression into memory of the caller, with the extra `fast`.

cramjam and zstandard save two copies of the records, and snappy takes half of the time. LZ4 blocks are decompressed one
by one, because a decoder of frames copies them once more.

Source: https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md, RFC 8878 (zstd).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Callable, Iterator, Mapping, NamedTuple

import lz4.block
import lz4.frame
import numpy as np

from spark_groupsource.records.compression import CODECS, decompress, snappy_blocks
from spark_groupsource.records.parser import Bytes

_WORD = struct.Struct("<I")
_LZ4_DICTIONARY, _LZ4_CHECKSUM, _LZ4_SIZE, _LZ4_BLOCK_CHECKSUM, _LZ4_INDEPENDENT = 1, 4, 8, 16, 32
_LZ4_UNCOMPRESSED = 1 << 31
_LZ4_MAX_HEADER_BYTES = 19
_ZSTD_CHECKSUM = 4
_ZSTD_BLOCK_HEADER_BYTES = 3
_ZSTD_RUN = 1
# the reader keeps a window; RFC 8878 recommends this limit
_ZSTD_MAX_WINDOW_BYTES = 8 * 1024 * 1024

# contexts that no thread uses
_zstd_contexts: list[Any] = []


class _Libraries(NamedTuple):
    cramjam: Any
    zstandard: Any


def decompress_into(codec: int, data: memoryview, target: Bytes) -> int:
    """Decompresses `data` to the start of `target`; returns the number of bytes.

    Raises: CorruptRecordError as `decompress`; SizeLimitError if they exceed `target`.
    """
    libraries = _libraries()
    if libraries is not None and codec in _DECODERS:
        errors = (libraries.cramjam.DecompressionError, libraries.zstandard.ZstdError, lz4.block.LZ4BlockError)
        try:
            return _DECODERS[codec](libraries, data, target)
        except (EOFError, IndexError, RuntimeError, struct.error, *errors):
            # damaged, too large, or in a form that is rare; the other functions tell which
            pass
    return _copy(decompress(codec, data, len(target)), target)


@lru_cache(maxsize=1)
def _libraries() -> _Libraries | None:
    """Returns the libraries of the extra `fast`, None without it."""
    try:
        import cramjam
        import zstandard
    except ImportError:
        return None
    return _Libraries(cramjam, zstandard)


def _copy(data: bytes | memoryview, target: Bytes) -> int:
    target[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def _gzip(libraries: _Libraries, data: memoryview, target: Bytes) -> int:
    return int(libraries.cramjam.gzip.decompress_into(data, target))


def _snappy(libraries: _Libraries, data: memoryview, target: Bytes) -> int:
    size = 0
    for block in snappy_blocks(data):
        size += libraries.cramjam.snappy.decompress_raw_into(block, target[size:])
    return size


def _lz4(libraries: _Libraries, data: memoryview, target: Bytes) -> int:
    # validates the header
    info = lz4.frame.get_frame_info(bytes(data[:_LZ4_MAX_HEADER_BYTES]))
    if info["skippable"]:
        raise EOFError("no frame with data")
    if data[4] & 0x3F & ~_LZ4_SIZE != _LZ4_INDEPENDENT:
        return int(libraries.cramjam.lz4.decompress_into(_first_lz4_frame(data), target))
    size, block_size = 0, info["block_size"]
    for start, end, is_compressed in _lz4_blocks(data):
        block, rest = data[start:end], target[size : size + block_size]
        if len(block) > block_size or not is_compressed and len(block) > len(rest):
            raise EOFError("no memory for a block")
        size += _lz4_block(libraries, block, rest) if is_compressed else _copy(block, rest)
    if data[4] & _LZ4_SIZE and size != info["content_size"]:
        raise EOFError(f"{size} of {info['content_size']} bytes")
    return size


def _lz4_block(libraries: _Libraries, block: memoryview, target: Bytes) -> int:
    if _WORD.unpack_from(block)[0] <= len(target):
        # if the block is damaged or larger than the target, cramjam would read it as one after its size
        return _copy(lz4.block.decompress(block, uncompressed_size=len(target)), target)
    return int(libraries.cramjam.lz4.decompress_block_into(block, target, len(target)))


def _first_lz4_frame(data: memoryview) -> memoryview:
    """Returns the first frame: Kafka reads no other, and cramjam reads all. Raises as `_lz4_blocks`."""
    flags, end = data[4], _lz4_header_bytes(data)
    for _, end, _ in _lz4_blocks(data):
        end += 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    # the end mark follows the blocks
    return data[: end + 4 + (4 if flags & _LZ4_CHECKSUM else 0)]


def _lz4_blocks(data: memoryview) -> Iterator[tuple[int, int, bool]]:
    """Yields start and end of each block of the first frame, and whether it is compressed.

    Raises: EOFError, IndexError, struct.error if the frame is incomplete.
    """
    position = _lz4_header_bytes(data)
    checksum_bytes = 4 if data[4] & _LZ4_BLOCK_CHECKSUM else 0
    while word := _WORD.unpack_from(data, position)[0]:
        start = position + 4
        end = start + (word & ~_LZ4_UNCOMPRESSED)
        position = end + checksum_bytes
        if position > len(data):
            raise EOFError("incomplete block")
        yield start, end, not word & _LZ4_UNCOMPRESSED


def _lz4_header_bytes(data: memoryview) -> int:
    # magic, flags, block size, content size, dictionary, header checksum
    return 7 + (8 if data[4] & _LZ4_SIZE else 0) + (4 if data[4] & _LZ4_DICTIONARY else 0)


def _zstd(libraries: _Libraries, data: memoryview, target: Bytes) -> int:
    zstandard = libraries.zstandard
    # the reader does not tell whether the last frame is complete
    if _zstd_end(data, zstandard.frame_header_size(data)) != len(data):
        raise EOFError("not one frame")
    try:
        context = _zstd_contexts.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    reader = context.stream_reader(data)
    size = int(reader.readinto(target))
    if size == len(target) and reader.read(1):
        raise EOFError("no memory for the batch")
    _zstd_contexts.append(context)
    return size


def _zstd_end(data: memoryview, header_bytes: int) -> int:
    """Returns the end of the first frame; it is after that of `data` if the frame is incomplete."""
    position, is_last = header_bytes, 0
    while not is_last and position < len(data):
        header = int.from_bytes(data[position : position + _ZSTD_BLOCK_HEADER_BYTES], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        position += _ZSTD_BLOCK_HEADER_BYTES + (1 if kind == _ZSTD_RUN else size)
    return position + (4 if data[4] & _ZSTD_CHECKSUM else 0) if is_last else len(data) + 1


_DECODERS: Mapping[int, Callable[[_Libraries, memoryview, Bytes], int]] = {
    CODECS.index(name): function
    for name, function in (("gzip", _gzip), ("snappy", _snappy), ("lz4", _lz4), ("zstd", _zstd))
}
"""Each decompresses to the start of its target, and returns the number of bytes."""
