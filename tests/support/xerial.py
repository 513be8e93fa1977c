"""Streams of snappy-java, as Kafka's Java producer writes them."""

from __future__ import annotations

import struct

from spark_groupsource.records.compression import compress


def xerial(data: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """Returns the output of snappy-java's SnappyOutputStream."""
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block_bytes):
        block = compress(2, data[at : at + block_bytes])
        stream += struct.pack(">i", len(block)) + block
    return stream
