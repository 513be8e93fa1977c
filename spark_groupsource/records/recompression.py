"""A batch in another codec than its producer chose, as a topic's `compression.type` asks for.

Knows one batch at a time. The records, their offsets and time stamps stay as they are, byte for byte; so does all that
the header says of the producer and its transaction.

Source: Kafka `LogValidator.validateMessagesAndAssignOffsetsCompressed`.
"""

from __future__ import annotations

import struct

import google_crc32c

from spark_groupsource.records.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    decode_header,
    records_payload,
)
from spark_groupsource.records.compression import compress

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = struct.Struct(">h")
_CODEC_MASK = 0x07


def recompressed(
    buffer: bytes | bytearray | memoryview, header: BatchHeader, codec: int, level: int | None = None
) -> tuple[bytearray, BatchHeader]:
    """The batch of `header` with its records in `codec`, 0 to 4 as in `compression.CODECS`, and its new header.

    Args: `level` is the codec's own scale, None for its usual one.

    Raises: CorruptRecordError when the records do not decompress or are fewer bytes than the header claims.
    """
    body = compress(codec, bytes(records_payload(buffer, header)), level)
    size = HEADER_BYTES + len(body)
    batch = bytearray(memoryview(buffer)[header.position : header.position + HEADER_BYTES])
    _LENGTH.pack_into(batch, _LENGTH_AT, size - LOG_OVERHEAD_BYTES)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, header.attributes & ~_CODEC_MASK | codec)
    batch += body
    _CRC.pack_into(batch, _CRC_AT, google_crc32c.value(bytes(memoryview(batch)[ATTRIBUTES_AT:])))
    return batch, decode_header(bytes(memoryview(batch)[:HEADER_BYTES]))
