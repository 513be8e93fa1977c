"""Recompression of a record batch for the topic setting `compression.type`.

Records, offsets, timestamps and the producer fields of the header do not change.

Source: Kafka `LogValidator.validateMessagesAndAssignOffsetsCompressed`.
"""

from __future__ import annotations

from spark_groupsource.records.compression import DEFAULT_MAX_BYTES, compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import CODEC_MASK, BatchHeader, Buffer, decode_header


def recompress(
    buffer: Buffer, header: BatchHeader, codec: int, level: int | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> tuple[bytes, BatchHeader]:
    """Returns the batch of `header` with its records compressed by `codec`, and its new header.

    Args:
        codec: 0 to 4, an index of `compression.CODECS`.
        level: compression level of the codec, None for its default.
        max_bytes: limit of the decompressed records.

    Raises: CorruptRecordError if the records do not decompress, exceed the limit, or are too small for the record
        count.
    """
    body = compress(codec, bytes(records_payload(buffer, header, max_bytes)), level)
    batch = with_body(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), body)
    return batch, decode_header(batch)
