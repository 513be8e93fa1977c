"""Partition of a key, compared with Kafka's Java producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from spark_groupsource.records.key_partitions import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "expected"),
    # Kafka's UtilsTest.testMurmur2
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_equals_that_of_the_java_producer(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_hash_equals_that_of_kafka_python(key: bytes, partitions: int) -> None:
    assert murmur2(key) == reference(key)
    assert 0 <= partition_of_key(key, partitions) < partitions
