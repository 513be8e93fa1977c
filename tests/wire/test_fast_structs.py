"""Fast construction of message structs."""

from __future__ import annotations

import pytest

from spark_groupsource.wire.fast_structs import constructor
from spark_groupsource.wire.frames import encode_response
from spark_groupsource.wire.messages import ProduceResponse

Topic = ProduceResponse.TopicProduceResponse
Partition = Topic.PartitionProduceResponse


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_generated_constructor_makes_what_the_class_makes(version):
    fields = ("index", "error_code", "base_offset")
    partition = constructor(Partition, *fields)(3, 0, 7)
    assert partition == Partition(index=3, error_code=0, base_offset=7)
    assert (partition.current_leader, partition.log_append_time_ms, partition.record_errors) == (None, -1, [])
    topic = constructor(Topic, "name", "partition_responses")("t", [partition])
    message = constructor(ProduceResponse, "responses")([topic])
    expected = ProduceResponse(responses=[Topic(name="t", partition_responses=[Partition(index=3, base_offset=7)])])
    assert message == expected
    assert encode_response(message, version, 1) == encode_response(expected, version, 1)
