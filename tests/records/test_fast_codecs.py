"""Decompression into given memory, with and without cramjam, beside that of `compression`."""

from __future__ import annotations

import sys

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.xerial import xerial

from spark_groupsource.errors import CorruptRecordError
from spark_groupsource.records import fast_codecs
from spark_groupsource.records.compression import CODECS, SizeLimitError, compress, decompress
from spark_groupsource.records.fast_codecs import decompress_into

TEXT = b"".join(b'{"flight": %d, "carrier": "UA"}' % number for number in range(9_000))
codecs = pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)


def without_cramjam(monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    # private: what it has found
    fast_codecs._decoders.cache_clear()


@pytest.fixture(params=["with cramjam", "without"])
def decoder(request, monkeypatch):
    if request.param == "without":
        without_cramjam(monkeypatch)
    yield
    fast_codecs._decoders.cache_clear()


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


def test_cramjam_decompresses_what_fits(monkeypatch):
    # private: whether the other functions are called
    monkeypatch.setattr(fast_codecs, "decompress", None)
    for codec in range(1, len(CODECS)):
        assert into(codec, compress(codec, TEXT), len(TEXT)) == TEXT
