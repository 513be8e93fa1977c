"""A partition of a compacted topic and its records after compaction."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from support.partition_logs import ImmediateFlushes, open_log

from spark_groupsource.broker.storage.cleaner import Cleaner, log_to_clean
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches

COMPACT = TopicConfig(
    segment_bytes=1024, index_interval_bytes=100, cleanup_policy=("compact",), delete_retention_ms=1000
)


class Store:
    """One partition of a compacted topic with its data directory."""

    def __init__(self, path: Path, config: TopicConfig = COMPACT) -> None:
        self.path, self.config = path, config
        self.data = DataDirectory(path)
        self.data.open(1)
        self.open()

    def open(self, recovery_point: int | None = None, is_clean: bool = True) -> None:
        self.log, self.reports = open_log(
            self.path / "t-0", config=self.config, recovery_point=recovery_point, is_clean=is_clean,
            files=ImmediateFlushes(), gaps_end=self.data.gaps_end(TopicPartition("t", 0), is_compacted=True),
        )  # fmt: skip
        self.partition = Partition(uuid.UUID(int=1), self.log, self.reports)
        self.partition._load_producers()  # private: `open` of a partition does it after its log

    def restart(self, clean: bool, is_flushed: bool = False) -> None:
        """An unclean restart recovers everything, or only the active segment with `is_flushed`."""
        end = self.log.log_end_offset if clean else self.log.segments[-1].base_offset if is_flushed else 0
        if clean:
            self.partition.close()
        self.data.close(is_clean=False)
        self.data = DataDirectory(self.path)
        self.data.open(1)
        self.open(end, clean)

    def append(self, *records: tuple[bytes, bytes | None], timestamp_ms: int = 1_000, **options) -> int:
        batch = encode_batch([Record(key, value, timestamp_ms) for key, value in records], **options)
        return self.partition.append(batch, timestamp_ms).base_offset

    def clean(self, timestamp_ms: int = 2_000, **options) -> bool:
        cleaned = self.data.cleaner_offsets.get(self.log.topic_partition, 0)
        task = log_to_clean(self.log, cleaned, timestamp_ms, self.partition.last_stable_offset)
        if task is None:
            return False
        for _ in Cleaner(self.partition, task, self.data, FileCache(), timestamp_ms, **options).run():
            pass
        return True

    def contents(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return keyed(self.log, self.log.log_start_offset)


def keyed(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes)
        assert data, f"nothing at {offset} of {log.log_end_offset}"
        for header in iter_batches(data):
            found += [(r.offset, r.key, r.value) for r in decode_records(data, header) if r.offset >= offset]
            assert header.next_offset > offset
            offset = header.next_offset
    return found


def compacted(records, active_base: int):
    """The records that a pass retains: the last one of each key, and all of the active segment."""
    latest = {key: offset for offset, key, _ in records if offset < active_base}
    return [each for each in records if each[0] >= active_base or latest[each[1]] == each[0]]


def fill(store: Store, seed: int, batches: int = 80, keys: int = 12, tombstones: bool = True, **options):
    rng = random.Random(seed)
    written = []
    for number in range(batches):
        records = [
            (b"key %d" % rng.randrange(keys), None if tombstones and rng.random() < 0.2 else b"value %d" % number)
            for _ in range(rng.randrange(1, 6))
        ]
        base = store.append(*records, timestamp_ms=1_000 + number, codec=rng.randrange(5), **options)
        written += [(base + item, key, value) for item, (key, value) in enumerate(records)]
    return written
