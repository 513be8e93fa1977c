"""Compression codecs: round trips, limits and damaged data."""

from __future__ import annotations

import gzip

import lz4.frame
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.xerial import xerial

from spark_groupsource.errors import ConfigurationError, CorruptRecordError
from spark_groupsource.records.compression import CODECS, DecompressionStream, codec_number, compress, decompress
from spark_groupsource.records.snappy_parts import snappy_parts
from spark_groupsource.records.varint import write_uvarint

codecs = st.integers(0, len(CODECS) - 1)
COMPRESSING = range(1, len(CODECS))
TEXT = b"".join(b'{"flight": %d, "carrier": "UA"}' % number for number in range(20_000))


@given(codecs, st.binary(max_size=2000), st.integers(0, 300))
@example(4, b"\0" * 2000, 300)
def test_data_round_trips(codec, data, repeat):
    data *= repeat
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    assert decompress(codec, memoryview(compressed), len(data) + 1) == data


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_output_above_the_limit_is_corrupt(codec):
    with pytest.raises(CorruptRecordError, match=f"exceeds the limit of {len(TEXT) - 1} bytes"):
        decompress(codec, compress(codec, TEXT), len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_decompression_bomb_is_corrupt(codec):
    bomb = compress(codec, b"\0" * 50_000_000)
    with pytest.raises(CorruptRecordError, match="exceeds the limit"):
        decompress(codec, bomb, 1_000_000)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.99])
def test_truncated_data_is_corrupt(codec, fraction):
    compressed = compress(codec, TEXT)
    cut = compressed[: int(len(compressed) * fraction)]
    if CODECS[codec] == "zstd" and not cut:
        assert decompress(codec, cut) == b""  # without a frame the stream is empty; the record count does not match
        return
    with pytest.raises(CorruptRecordError, match="Cannot decompress"):
        decompress(codec, cut)


@given(st.integers(1, 7), st.binary(max_size=300))
def test_random_data_is_corrupt_or_within_the_limit(codec, data):
    try:
        assert len(decompress(codec, data, 10_000)) <= 10_000
    except CorruptRecordError:
        pass


@given(codecs.filter(bool), st.data())
def test_a_flipped_byte_is_corrupt_or_within_the_limit(codec, data):
    compressed = bytearray(compress(codec, TEXT[:4000]))
    at = data.draw(st.integers(0, len(compressed) - 1))
    compressed[at] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(codec, compressed, 10_000)) <= 10_000
    except CorruptRecordError:
        pass


def test_snappy_framing_of_java_is_decompressed():
    assert decompress(2, xerial(TEXT)) == TEXT
    assert decompress(2, xerial(TEXT) + xerial(b"more")) == TEXT + b"more"
    assert decompress(2, xerial(b"")) == b""


@pytest.mark.parametrize(
    "damaged",
    [xerial(TEXT)[:-1], xerial(TEXT)[:18], xerial(b"") + b"\xff\xff\xff\xff", xerial(b"") + b"\x7f\xff\xff\xffx"],
    ids=["cut block", "cut length", "negative length", "length beyond the data"],
)
def test_damaged_java_snappy_is_corrupt(damaged):
    with pytest.raises(CorruptRecordError):
        decompress(2, damaged)


def test_the_limit_of_java_snappy_applies_to_all_blocks():
    with pytest.raises(CorruptRecordError, match="exceeds the limit"):
        decompress(2, xerial(TEXT), len(TEXT) - 1)


def test_a_snappy_length_is_checked_before_allocation():
    # a length of 4 GB in five bytes
    with pytest.raises(CorruptRecordError, match="uncompressed length"):
        decompress(2, b"\xff\xff\xff\xff\x0f" + b"x" * 20, 1 << 40)


@pytest.mark.slow
def test_a_large_snappy_block_is_decompressed_in_parts():
    data = b"".join(b"%04d" % number * 30_000 for number in range(150))
    block = compress(2, data)
    parts = [size for _, _, size in snappy_parts(memoryview(block), 4, len(data))]
    assert sum(parts) == len(data) > 16 << 20 and max(parts) == 1 << 18
    stream = DecompressionStream(2, block)
    assert b"".join(iter(lambda: stream.read(300_000), b"")) == data


def test_a_large_snappy_block_that_cannot_be_divided_is_decompressed():
    # each element of the second half copies the bytes 10 MB before it
    size, half = 20_000_000, 10_000_000
    out = bytearray()
    write_uvarint(out, size)
    out += b"\xfc" + (half - 1).to_bytes(4, "little") + b"x" * half
    out += (b"\xff" + half.to_bytes(4, "little")) * (half // 64)
    stream = DecompressionStream(2, bytes(out))
    assert len(b"".join(iter(lambda: stream.read(1 << 20), b""))) == size


@pytest.mark.parametrize("damage", [b"", b"\0", b"\xff\xff\xff\xff\xff"], ids=["short", "a byte more", "a wrong copy"])
@pytest.mark.slow
def test_a_damaged_large_snappy_block_is_corrupt(damage):
    data = compress(2, b"abcd" * 5_000_000)
    stream = DecompressionStream(2, data[:-3] + damage)
    with pytest.raises(CorruptRecordError, match="Cannot decompress"):
        while stream.read(1 << 20):
            pass


def test_concatenated_gzip_members_are_one_stream():
    assert decompress(1, gzip.compress(b"abc") + gzip.compress(TEXT) + gzip.compress(b"")) == b"abc" + TEXT


def test_lz4_blocks_are_independent():
    info = lz4.frame.get_frame_info(compress(3, TEXT))
    assert not info["block_linked"]


@pytest.mark.parametrize("linked", [True, False])
def test_lz4_frames_with_any_options_are_decompressed(linked):
    frame = lz4.frame.compress(TEXT, block_linked=linked, content_checksum=True, block_checksum=True, store_size=True)
    assert decompress(3, frame) == TEXT


@pytest.mark.parametrize("codec", [5, 7, -1])
def test_unknown_codecs_are_rejected(codec):
    with pytest.raises(CorruptRecordError, match="Known are none, gzip, snappy, lz4, zstd"):
        decompress(codec, b"")
    with pytest.raises(ConfigurationError, match="does not exist"):
        compress(codec, b"")


def test_codec_number_of_each_name():
    assert [codec_number(name) for name in CODECS] == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigurationError, match="Use one of none, gzip, snappy, lz4, zstd"):
        codec_number("brotli")
