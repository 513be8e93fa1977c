"""A batch in another codec than its producer chose, as a topic's `compression.type` asks for.

Knows one batch at a time. The records, their offsets and time stamps stay as they are, byte for byte; so does all that
the header says of the producer and its transaction.

Source: Kafka `LogValidator.validateMessagesAndAssignOffsetsCompressed`.
"""

from __future__ import annotations

from spark_groupsource.records.compression import compress
from spark_groupsource.records.decode import records_payload
from spark_groupsource.records.encode import with_body
from spark_groupsource.records.header import CODEC_MASK, BatchHeader, decode_header


def recompress(
    buffer: bytes | bytearray | memoryview, header: BatchHeader, codec: int, level: int | None = None
) -> tuple[bytes, BatchHeader]:
    """The batch of `header` with its records in `codec`, 0 to 4 as in `compression.CODECS`, and its new header.

    Args: `level` is the codec's own scale, None for its usual one.

    Raises: CorruptRecordError when the records do not decompress or are fewer bytes than the header claims.
    """
    body = compress(codec, bytes(records_payload(buffer, header)), level)
    batch = with_body(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), body)
    return batch, decode_header(batch)
