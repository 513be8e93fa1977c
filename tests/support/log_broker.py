"""Topics, logs and data directory of a broker without network."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from support.reported_lines import ReportedLines

from spark_groupsource.broker.storage.cleaner import Cleaner, log_to_clean
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.log_manager import LogManager
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch

NOW = 1_000
SMALL = {"segment.bytes": "1024", "index.interval.bytes": "100"}


class LogBroker:
    """Logs and data directory of a broker, without the rest of it."""

    def __init__(self, path: Path, flush: bool = True) -> None:
        self.reports = ReportedLines()
        self.data = DataDirectory(path, report=self.reports)
        self.data.open(1)
        config = TopicConfig(flush_messages=1) if flush else TopicConfig()
        self.logs = LogManager(self.data, config, self.reports)
        self.logs.open_all()

    def partition(self, topic: str) -> Partition:
        return self.logs.partition(topic, 0)

    def crash(self) -> None:
        """Closes the files and releases the lock."""
        self.data.close(is_clean=False)
        self.logs.files.close()

    def stop(self) -> None:
        self.data.close(self.logs.close_all())

    def clean(self, topic: str, on_wait: Callable[[], None] = lambda: None) -> None:
        """Compacts a topic in one pass; `on_wait` is called while the pass waits for the flush thread."""
        partition = self.partition(topic)
        task = log_to_clean(partition.log, 0, NOW, partition.last_stable_offset)
        if task is not None:
            for waits in Cleaner(partition, task, self.data, self.logs.files, NOW).run():
                if waits:
                    on_wait()


def read(partition: Partition) -> list[bytes]:
    """Values of all records that were not aborted, up to the last stable offset."""
    aborted = sorted(
        partition.transaction_index.overlapping(0, partition.log.log_end_offset), key=lambda row: row.first_offset
    )
    running: set[int] = set()
    values: list[bytes] = []
    offset = -1
    for stored in partition.log.batches(partition.log.log_start_offset):
        header = stored.header
        assert offset < header.base_offset, "offsets do not ascend"
        offset = header.last_offset
        if header.base_offset >= partition.last_stable_offset:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            running.add(aborted.pop(0).producer_id)
        if header.is_control:
            running.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in running):
            values += [record.value or b"" for record in decode_records(stored.buffer, header)]
    return values


def append(partition: Partition, value: bytes, key: bytes | None = None, **options) -> None:
    partition.append(encode_batch([Record(key, value, NOW)], **options), NOW)
