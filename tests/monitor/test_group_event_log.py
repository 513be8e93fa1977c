"""What is read of the log of one group among others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource.errors import NetworkError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.monitor.offsets import offsets_log
from spark_groupsource.monitor.rebalances import group_history
from spark_groupsource.monitor.rebalances.group_history import GroupLogReader
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.group_records import GroupKey, GroupValue, encode_group_value, encode_key

PART = OffsetRange(TopicPartition("__consumer_offsets", 0), 0, 4)


def batch(group: str, codec: int, offset: int) -> bytes:
    value = encode_group_value(GroupValue("consumer", 1, None, None))
    return bytes(encode_batch([Record(encode_key(GroupKey(group)), value, 5)], base_offset=offset, codec=codec))


@pytest.mark.parametrize("codec", [0, 1])
def test_batches_of_other_groups_are_skipped(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def decode(buffer: Any, header: Any) -> Any:
        decoded.append(header.base_offset)
        return offsets_log.decode_records(buffer, header)

    blocks = [
        SimpleNamespace(error=0, data=batch("other", codec, 0) + batch("others", 0, 1), next_offset=2),
        SimpleNamespace(error=0, data=batch("mine", codec, 2) + batch("other", 0, 3), next_offset=4),
    ]
    monkeypatch.setattr(offsets_log, "PartitionFetcher", lambda *_: SimpleNamespace(fetch_blocks=lambda parts: blocks))
    monkeypatch.setattr(offsets_log, "replace", lambda settings, **_: settings)
    monkeypatch.setattr(group_history, "log_partitions", lambda *_: [PART.topic_partition])
    monkeypatch.setattr(offsets_log, "log_ranges", lambda *_: [PART])
    monkeypatch.setattr(group_history, "decode_records", decode)
    cluster: Any = SimpleNamespace(settings=None)
    found = GroupLogReader(cluster, NameSelection(("mine",))).read()
    assert [len(log.records) for log in found.values()] == [1] and list(found) == ["mine"]
    # a compressed batch must be decoded
    assert decoded == ([2] if codec == 0 else [0, 2])


def test_a_failed_read_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []

    def fetch(_: Any, part: OffsetRange, __: Any) -> Iterator[offsets_log.Batch]:
        starts.append(part.start)
        for offset in range(part.start, part.end):
            if starts == [0] and offset == 2:
                raise NetworkError("refused")
            data = batch("mine", 0, offset)
            yield offsets_log.Batch(0, next(iter(iter_batches(data))), data, -1)

    monkeypatch.setattr(group_history, "fetch_batches", fetch)
    monkeypatch.setattr(group_history, "log_partitions", lambda *_: [PART.topic_partition])
    monkeypatch.setattr(offsets_log, "log_ranges", lambda *_: [PART])
    cluster: Any = SimpleNamespace(settings=None)
    reader = GroupLogReader(cluster, None)
    with pytest.raises(NetworkError):
        reader.read()
    assert len(reader.read()["mine"].records) == 4 and starts == [0, 2]
