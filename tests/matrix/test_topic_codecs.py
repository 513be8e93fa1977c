"""compression.type of topics: batches are recompressed, records are unchanged."""

from __future__ import annotations

import pytest
from support.clusters import Cluster
from support.raw_broker import RawConnection, fetch, produce
from support.topics import create_topic

from spark_groupsource.errors import ErrorCode
from spark_groupsource.records.compression import CODECS
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import check_crc, iter_batches

NOW_MS = 1_700_000_000_000
RECORDS = [Record(b"k%d" % (n % 3), b"value " * n, NOW_MS + n, (("h", None),)) for n in range(40)]


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_batches_are_stored_in_the_codec_of_their_topic(cluster: Cluster, topic: str, codec: int) -> None:
    own = "uncompressed" if codec == 0 else CODECS[codec]
    create_topic(cluster.bootstrap_servers, topic, config={"compression.type": own})
    with RawConnection(cluster.bootstrap_servers) as connection:
        for given in range(len(CODECS)):
            first = given * len(RECORDS)
            sent = encode_batch(RECORDS, codec=given, producer_id=9, producer_epoch=0, base_sequence=first)
            assert produce(connection, topic, sent).error_code == ErrorCode.NONE
        again = produce(connection, topic, sent)  # known as stored, whatever became of its bytes
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 4 * len(RECORDS))
        log = bytes(fetch(connection, topic, 0).records)
    headers = list(iter_batches(log))
    assert [(header.codec, header.producer_id, header.base_sequence) for header in headers] == [
        (codec, 9, given * len(RECORDS)) for given in range(len(CODECS))
    ]
    for header in headers:
        check_crc(log, header)
        found = decode_records(log, header)
        assert [Record(each.key, each.value, each.timestamp_ms, each.headers) for each in found] == RECORDS


def test_a_recompressed_batch_above_the_size_limit_is_rejected(cluster: Cluster, topic: str) -> None:
    limits = {"compression.type": "uncompressed", "max.message.bytes": "2000"}
    create_topic(cluster.bootstrap_servers, topic, config=limits)
    with RawConnection(cluster.bootstrap_servers) as connection:
        response = produce(connection, topic, encode_batch([Record(b"k", b"x" * 10_000, NOW_MS)], codec=1))
        assert response.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert not fetch(connection, topic, 0).records
