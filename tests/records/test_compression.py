from __future__ import annotations

import gzip
import struct

import lz4.frame
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_groupsource.errors import ConfigurationError, CorruptRecordError
from spark_groupsource.records.compression import CODECS, codec_number, compress, decompress

codecs = st.integers(0, len(CODECS) - 1)
COMPRESSING = range(1, len(CODECS))
TEXT = b"".join(b'{"flight": %d, "carrier": "UA"}' % number for number in range(20_000))


def xerial(data, block_bytes=32 * 1024):
    """What snappy-java's SnappyOutputStream writes."""
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block_bytes):
        block = compress(2, data[at : at + block_bytes])
        stream += struct.pack(">i", len(block)) + block
    return stream


@given(codecs, st.binary(max_size=2000), st.integers(0, 300))
@example(4, b"\0" * 2000, 300)
def test_what_was_compressed_comes_back(codec, data, repeat):
    data *= repeat
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    assert decompress(codec, memoryview(compressed), len(data) + 1) == data


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_output_beyond_the_bound_is_refused(codec):
    with pytest.raises(CorruptRecordError, match=f"more than the {len(TEXT) - 1} bytes allowed"):
        decompress(codec, compress(codec, TEXT), len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_at_its_bound(codec):
    bomb = compress(codec, b"\0" * 50_000_000)
    with pytest.raises(CorruptRecordError, match="allowed for one batch"):
        decompress(codec, bomb, 1_000_000)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_truncated_data_is_corrupt(codec, kept):
    compressed = compress(codec, TEXT)
    cut = compressed[: int(len(compressed) * kept)]
    if CODECS[codec] == "zstd" and not cut:
        assert decompress(codec, cut) == b""  # no frame at all is an empty stream; the record count tells
        return
    with pytest.raises(CorruptRecordError, match="do not decompress"):
        decompress(codec, cut)


@given(st.integers(1, 7), st.binary(max_size=300))
def test_garbage_is_corrupt_or_bounded(codec, data):
    try:
        assert len(decompress(codec, data, 10_000)) <= 10_000
    except CorruptRecordError:
        pass


@given(codecs.filter(bool), st.data())
def test_a_flipped_byte_is_corrupt_or_bounded(codec, data):
    compressed = bytearray(compress(codec, TEXT[:4000]))
    at = data.draw(st.integers(0, len(compressed) - 1))
    compressed[at] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(codec, compressed, 10_000)) <= 10_000
    except CorruptRecordError:
        pass


def test_snappy_as_java_frames_it():
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


def test_java_snappy_is_bounded_over_all_blocks():
    with pytest.raises(CorruptRecordError, match="allowed"):
        decompress(2, xerial(TEXT), len(TEXT) - 1)


def test_a_snappy_length_is_not_believed():
    # 4 GB claimed in five bytes: refused before anything is allocated
    with pytest.raises(CorruptRecordError, match="claims to hold"):
        decompress(2, b"\xff\xff\xff\xff\x0f" + b"x" * 20, 1 << 40)


def test_gzip_members_one_after_another():
    assert decompress(1, gzip.compress(b"abc") + gzip.compress(TEXT) + gzip.compress(b"")) == b"abc" + TEXT


def test_lz4_is_written_in_independent_blocks():
    info = lz4.frame.get_frame_info(compress(3, TEXT))
    assert not info["block_linked"]


@pytest.mark.parametrize("linked", [True, False])
def test_lz4_of_any_kind_is_read(linked):
    frame = lz4.frame.compress(TEXT, block_linked=linked, content_checksum=True, block_checksum=True, store_size=True)
    assert decompress(3, frame) == TEXT


@pytest.mark.parametrize("codec", [5, 7, -1])
def test_a_codec_that_does_not_exist(codec):
    with pytest.raises(CorruptRecordError, match="known are none, gzip, snappy, lz4, zstd"):
        decompress(codec, b"")
    with pytest.raises(ConfigurationError, match="does not exist"):
        compress(codec, b"")


def test_codec_names():
    assert [codec_number(name) for name in CODECS] == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigurationError, match="use one of none, gzip, snappy, lz4, zstd"):
        codec_number("brotli")
