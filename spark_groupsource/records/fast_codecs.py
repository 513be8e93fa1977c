"""Decompression into memory of the caller, with the extra `fast` by cramjam.

It saves two copies of the records, and snappy takes half of the time.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Callable, Mapping

import numpy as np

from spark_groupsource.records.compression import CODECS, decompress, snappy_blocks
from spark_groupsource.records.parser import Bytes

_LZ4_BLOCK = struct.Struct("<I")
_LZ4_DICTIONARY, _LZ4_CHECKSUM, _LZ4_SIZE, _LZ4_BLOCK_CHECKSUM = 1, 4, 8, 16
_LZ4_UNCOMPRESSED = 1 << 31


def decompress_into(codec: int, data: memoryview, target: Bytes) -> int:
    """Decompresses `data` to the start of `target`; returns the number of bytes.

    Raises: CorruptRecordError as `decompress`; SizeLimitError if they exceed `target`.
    """
    decoders = _decoders()
    if codec in decoders:
        decode, divide = decoders[codec]
        size = 0
        try:
            for block in divide(data):
                size += decode(block, target[size:])
            return size
        except (EOFError, _decoder_error()):
            # damaged or too large; the other functions tell which
            pass
    found = decompress(codec, data, len(target))
    target[: len(found)] = np.frombuffer(found, np.uint8)
    return len(found)


@lru_cache(maxsize=1)
def _decoders() -> Mapping[int, tuple[Callable[[memoryview, Bytes], int], Callable[[memoryview], Any]]]:
    """Returns codec -> function for a block, and division of data into blocks; empty without cramjam.

    A function writes to its target, returns the number of bytes, and raises `_decoder_error`.
    """
    try:
        import cramjam
    except ImportError:
        return {}
    functions: Mapping[str, tuple[Any, Any]] = {
        "gzip": (cramjam.gzip.decompress_into, _whole),
        "snappy": (cramjam.snappy.decompress_raw_into, snappy_blocks),
        "lz4": (cramjam.lz4.decompress_into, _first_lz4_frame),
        "zstd": (cramjam.zstd.decompress_into, _whole),
    }
    return {CODECS.index(name): found for name, found in functions.items()}


@lru_cache(maxsize=1)
def _decoder_error() -> type[Exception]:
    import cramjam

    error: type[Exception] = cramjam.DecompressionError
    return error


def _whole(data: memoryview) -> tuple[memoryview]:
    return (data,)


def _first_lz4_frame(data: memoryview) -> tuple[memoryview]:
    """Returns the first frame: Kafka reads no other, and cramjam reads all.

    Source: https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md.
    """
    try:
        flags = data[4]
        # magic, flags, block size, content size, dictionary, header checksum
        position = 7 + (8 if flags & _LZ4_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
        checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
        while (size := _LZ4_BLOCK.unpack_from(data, position)[0] & ~_LZ4_UNCOMPRESSED) != 0:
            position += 4 + size + checksum_bytes
    except (IndexError, struct.error):
        # the decoder rejects it
        return (data,)
    return (data[: position + 4 + (4 if flags & _LZ4_CHECKSUM else 0)],)
