"""Record batches and partition logs for tests."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Callable

from support.reported_lines import ReportedLines

from spark_groupsource.broker.storage.files import FileCache
from spark_groupsource.broker.storage.log import PartitionLog
from spark_groupsource.broker.storage.segment_index import TimestampAndOffset
from spark_groupsource.broker.storage.topic_config import TopicConfig
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.decode import decode_records
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches

# a segment holds a few batches
SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


def batch(*values: bytes, timestamp_ms: int = 1_000, **options) -> bytes:
    """One batch of records without keys, with ascending timestamps from `timestamp_ms` on."""
    records = [Record(None, value, timestamp_ms + number) for number, value in enumerate(values)]
    return encode_batch(records, **options)


def append(log: PartitionLog, data: bytes, now_ms: int = 1_000) -> int:
    (header,) = iter_batches(data)
    return log.append(bytearray(data), header, now_ms)


class ImmediateFlushes(FileCache):
    """Files whose background work is done at once."""

    def run_in_background(self, work: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        work()
        done.set_result(None)
        return done


def open_log(
    directory: Path,
    *,
    recovery_point: int | None = None,
    is_clean: bool = True,
    config: TopicConfig | None = None,
    log_start: int = 0,
    files: FileCache | None = None,
    gaps_end: int = 0,
):
    """Opens or creates the log in `directory`; returns it with the list of its reports.

    Without `recovery_point` the shutdown was unclean, and everything is recovered.
    """
    reports = ReportedLines()
    log = PartitionLog(
        directory, TopicPartition("t", 0), config or TopicConfig(), files or FileCache(), reports,
        log_start_offset=log_start, gaps_end=gaps_end,
    )  # fmt: skip
    if directory.exists():
        log.open(recovery_point or 0, is_clean and recovery_point is not None)
    else:
        log.create()
    return log, reports


def values_from(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record from `offset` to the end; raises at a corrupt range."""
    found = []
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes)
        for header in iter_batches(data):
            for record in decode_records(data, header):
                if record.offset >= offset:
                    found.append((record.offset, record.value))
            offset = header.next_offset
    return found


def offset_for_timestamp(log: PartitionLog, timestamp_ms: int) -> TimestampAndOffset | None:
    return run_at_once(log.find_timestamp(timestamp_ms))


def latest_timestamp(log: PartitionLog) -> TimestampAndOffset | None:
    return run_at_once(log.find_latest_timestamp())


def fill(log, batches: int = 30, size: int = 3) -> list[tuple[int, bytes]]:
    stored = []
    for number in range(batches):
        values = [b"value %d of batch %d" % (item, number) for item in range(size)]
        base = append(log, batch(*values, timestamp_ms=1_000 + 10 * number))
        stored += [(base + item, value) for item, value in enumerate(values)]
    return stored


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))
