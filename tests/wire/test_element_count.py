"""Size of messages in array elements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.message_strategies import API_SIDES, messages, versions

from spark_groupsource.wire.element_count import has_more_elements
from spark_groupsource.wire.messages import FetchResponse

RESPONSES = [api for api, side in API_SIDES if side is api.response]


def elements_of(value):
    """Counts the elements of any message by its schema, with 1,000 bytes of data as one."""
    total = 0
    for field in value.FIELDS:
        content = getattr(value, field.name)
        if field.is_array:
            total += len(content or ())
            if field.fields is not None:
                total += sum(map(elements_of, content or ()))
        elif field.type in ("bytes", "records"):
            total += len(content or b"") // 1_000
    return total


@pytest.mark.parametrize("api", RESPONSES, ids=lambda api: api.name)
def test_all_elements_count(api):
    @settings(max_examples=scaled(4), deadline=None)
    @given(st.data())
    def check(data):
        message = data.draw(messages(api.response, data.draw(versions(api))))
        count = elements_of(message)
        assert not has_more_elements(message, count)
        if count:
            assert has_more_elements(message, count - 1)

    check()


def test_bytes_count_as_elements():
    topic = FetchResponse.FetchableTopicResponse
    entry = topic.PartitionData(partition_index=0, records=bytes(5_999))
    message = FetchResponse(responses=[topic(topic="t", partitions=[entry])])
    assert not has_more_elements(message, 7)
    assert has_more_elements(message, 6)
