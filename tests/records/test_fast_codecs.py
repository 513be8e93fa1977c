"""Decompression into given memory, with and without the extra `fast`."""

from __future__ import annotations

import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.xerial import xerial

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records import fast_codecs
from spark_groupsource.records.compression import CODECS, SizeLimitError, compress, decompress
from spark_groupsource.records.fast_codecs import decompress_into

TEXT = b"".join(b'{"flight": %d, "carrier": "UA"}' % number for number in range(9_000))
NOISE = random.Random(5).randbytes(300_000)
codecs = pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)


def without_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    # private: what it has found
    fast_codecs._libraries.cache_clear()


@pytest.fixture(params=["with the extra", "without"])
def decoder(request, monkeypatch):
    if request.param == "without":
        without_extra(monkeypatch)
    yield
    fast_codecs._libraries.cache_clear()


def into(codec: int, data: bytes, size: int) -> bytes:
    target = np.full(size + 2, 7, np.uint8)
    found = decompress_into(codec, memoryview(data), target[:size])
    assert target[size:].tolist() == [7, 7]
    return target[:found].tobytes()


@codecs
def test_bytes_are_written_to_the_start_of_the_memory(decoder, codec):
    for text in (b"", b"x", TEXT):
        for size in (len(text), len(text) + 100):
            assert into(codec, compress(codec, text), size) == text


def test_streams_of_snappy_java_are_read(decoder):
    assert into(2, xerial(TEXT), len(TEXT)) == TEXT
    assert into(2, xerial(TEXT) + xerial(b"x"), len(TEXT) + 1) == TEXT + b"x"


@pytest.mark.parametrize("options", [{}, {"content_checksum": True, "block_checksum": True}, {"store_size": False}])
def test_no_lz4_frame_after_the_first_is_read(decoder, options):
    frame = lz4.frame.compress(TEXT, **options)
    for following in (frame, b"x"):
        assert into(3, frame + following, 2 * len(TEXT)) == TEXT


@codecs
def test_output_above_the_memory_is_rejected(decoder, codec):
    with pytest.raises(SizeLimitError, match=f"exceeds the limit of {len(TEXT) - 1} bytes"):
        into(codec, compress(codec, TEXT), len(TEXT) - 1)


@codecs
def test_damaged_data_are_rejected(decoder, codec):
    if codec:
        for data in (b"damaged!" * 9, compress(codec, TEXT)[:-9]):
            with pytest.raises(CorruptRecordError, match=f"Cannot decompress {len(data)} bytes of {CODECS[codec]}"):
                into(codec, data, len(TEXT))


def test_an_unknown_codec_is_rejected(decoder):
    with pytest.raises(CorruptRecordError, match="Compression codec 5 does not exist"):
        into(5, b"x", 9)


def outcome(run):
    try:
        return run()
    except CorruptRecordError as error:
        return type(error)


@settings(max_examples=scaled(3_000, 60))
@given(codec=st.integers(1, 4), text=st.binary(max_size=400), repeat=st.integers(1, 9), data=st.data())
def test_changed_bytes_have_the_same_outcome(codec, text, repeat, data):
    compressed = bytearray(compress(codec, text * repeat))
    for _ in range(data.draw(st.integers(0, 3))):
        compressed[data.draw(st.integers(0, len(compressed) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(compressed[: data.draw(st.integers(0, len(compressed)))])
    assert outcome(lambda: into(codec, changed, 5_000)) == outcome(lambda: decompress(codec, changed, 5_000))


def test_the_libraries_decompress_what_fits(monkeypatch):
    # private: whether the other functions are called
    monkeypatch.setattr(fast_codecs, "decompress", None)
    for codec in range(1, len(CODECS)):
        assert into(codec, compress(codec, TEXT), len(TEXT)) == TEXT


ZSTD_FRAMES = {
    "without its size": lambda: zstd_stream(TEXT),
    "with a checksum": lambda: zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    "an empty last block": lambda: zstd_stream(TEXT, flush=True),
    "of blocks": lambda: zstandard.ZstdCompressor().compress(TEXT * 9),
    "a run": lambda: zstandard.ZstdCompressor().compress(b"x" * 300_000),
    "uncompressed": lambda: zstandard.ZstdCompressor().compress(NOISE),
}
LZ4_FRAMES = {
    "of 64 KiB blocks": lambda: lz4.frame.compress(TEXT * 9, block_linked=False),
    "of 4 MiB blocks": lambda: lz4.frame.compress(TEXT * 9, block_linked=False, block_size=7),
    "without its size": lambda: lz4.frame.compress(TEXT * 9, block_linked=False, store_size=False),
    "uncompressed": lambda: lz4.frame.compress(NOISE, block_linked=False),
}


def zstd_stream(text: bytes, flush: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    written = compressor.compress(text)
    if flush:
        written += compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return written + compressor.flush()


@pytest.mark.parametrize(
    "codec, frame",
    [(3, frame()) for frame in LZ4_FRAMES.values()] + [(4, frame()) for frame in ZSTD_FRAMES.values()],
    ids=[*(f"lz4 {name}" for name in LZ4_FRAMES), *(f"zstd {name}" for name in ZSTD_FRAMES)],
)
def test_the_usual_frames_are_decompressed_without_a_copy(monkeypatch, codec, frame):
    text = decompress(codec, frame)
    # private: whether the other functions are called
    monkeypatch.setattr(fast_codecs, "decompress", None)
    for size in (len(text), len(text) + 1):
        assert into(codec, frame, size) == text
    with pytest.raises(TypeError, match="not callable"):
        into(codec, frame, len(text) - 1)
    with pytest.raises(TypeError, match="not callable"):
        into(codec, frame[:-1], len(text))


@pytest.mark.parametrize("frame", [frame() for frame in ZSTD_FRAMES.values()], ids=[*ZSTD_FRAMES])
def test_zstd_frames_that_follow_are_read(decoder, frame):
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    text = decompress(4, frame)
    assert into(4, frame + frame, 2 * len(text)) == 2 * text
    assert into(4, skippable + frame, len(text)) == text


def test_a_skippable_lz4_frame_has_no_records(decoder):
    assert into(3, b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + bytes(30), 99) == b""


def test_a_zstd_frame_with_a_large_window_keeps_no_memory():
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    for frame in (compress(4, TEXT), compressor.compress(TEXT) + compressor.flush(), compress(4, TEXT)):
        assert into(4, frame, len(TEXT)) == TEXT
    # private: the contexts that are kept
    assert fast_codecs._zstd_contexts
    assert all(context.memory_size() < 16 << 20 for context in fast_codecs._zstd_contexts)


def test_threads_decompress_at_the_same_time():
    frames = [compress(4, TEXT + bytes([number])) for number in range(8)]

    def decode(frame: bytes) -> bool:
        return all(into(4, frame, len(TEXT) + 1)[-1] == frames.index(frame) for _ in range(50))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(decode, frames))


def lz4_frame(block: bytes) -> bytes:
    header = lz4.frame.compress(b"", block_linked=False, store_size=False)[:7]
    return header + len(block).to_bytes(4, "little") + block + bytes(4)


def test_an_lz4_block_is_not_read_as_one_after_its_size(decoder):
    # a valid block of 814 bytes; what follows its first four bytes is a valid block of 23 bytes
    block = b"\xff\0\0\0\xf0\x08" + b"A" * 11 + b"\1\0\xff\xff\xff\x0a" + b"\x50ZZZZZ"
    text = lz4.block.decompress(block, uncompressed_size=814)
    for size in (814, 5_000):
        assert into(3, lz4_frame(block), size) == text
    for size in (813, 300, 30):
        with pytest.raises(SizeLimitError):
            into(3, lz4_frame(block), size)
    with pytest.raises(CorruptRecordError, match="Cannot decompress"):
        into(3, lz4_frame(bytes(5)), 5_000)


def test_an_lz4_block_above_the_size_of_its_frame_is_rejected(decoder):
    text = random.Random(6).randbytes(65_536)
    with pytest.raises(CorruptRecordError, match="Cannot decompress"):
        into(3, lz4_frame(lz4.block.compress(text, store_size=False)), 100_000)


def test_many_small_lz4_blocks_take_no_memory_of_their_own(decoder):
    header = lz4.frame.compress(b"", block_linked=False, store_size=False)[:7]
    frame = header + b"\x01\x00\x00\x80x" * 200_000 + bytes(4)
    target = np.empty(200_000, np.uint8)
    tracemalloc.start()
    try:
        assert decompress_into(3, memoryview(frame), target) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert (target == ord("x")).all()
