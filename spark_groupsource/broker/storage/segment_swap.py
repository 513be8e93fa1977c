"""Atomic replacement of log segments by a cleaned segment.

``00.log.cleaned`` and its indexes are written and flushed first; the next start removes them if nothing else happened.
Renaming the log to ``00.log.<end>.swap`` commits the replacement: the next start completes it if necessary.

Source: Kafka `UnifiedLog.replaceSegments`, `LogLoader.load` (suffixes `.cleaned` and `.swap`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, Iterator, Sequence

from spark_groupsource.broker.storage.files import sync_directory, sync_files
from spark_groupsource.broker.storage.segment_index import SegmentIndex
from spark_groupsource.broker.storage.transaction_index import TXN_INDEX_SUFFIX, AbortedTxn, encode_rows
from spark_groupsource.errors import StorageError
from spark_groupsource.records.header import BatchHeader

_CLEANED = ".cleaned"
_SWAP = ".swap"
_SWAP_NAME = re.compile(r"([0-9]+)\.log\.([0-9]+)\.swap")
_SUFFIXES = (".log", ".index", ".timeindex", TXN_INDEX_SUFFIX)


class CleanedSegment:
    """Writer of the segment that replaces those from `base_offset` to `end_offset` (excluded)."""

    def __init__(self, directory: Path, base_offset: int, end_offset: int, index_interval_bytes: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size = 0
        log_path = directory / f"{base_offset:020d}.log"
        self._index = SegmentIndex(log_path, base_offset, index_interval_bytes, _CLEANED)
        self._paths = [log_path.with_name(log_path.name + _CLEANED), *self._index.paths]
        self.discard()
        try:
            for path in self._index.paths:
                path.touch()
            self._file = open(self._paths[0], "wb")
        except OSError as error:
            raise self._error(error) from error

    def append(self, batch: bytes | memoryview, header: BatchHeader) -> None:
        """Writes a batch with the header `header`.

        Raises: StorageError.
        """
        try:
            self._file.write(batch)
        except OSError as error:
            raise self._error(error) from error
        # a batch that compaction emptied has a max timestamp but no record
        max_timestamp = header.max_timestamp if header.record_count else -1
        self._index.add_batch(self.size, len(batch), header.last_offset, max_timestamp)
        self.size += len(batch)

    def finish(self, aborted_rows: Sequence[AbortedTxn] = ()) -> None:
        """Completes the indexes; `aborted_rows` are the aborted transactions of the segment.

        Raises: StorageError.
        """
        try:
            self._file.close()
            if aborted_rows:
                path = self.directory / f"{self.base_offset:020d}{TXN_INDEX_SUFFIX}{_CLEANED}"
                self._paths.append(path)
                path.write_bytes(encode_rows(aborted_rows))
        except OSError as error:
            raise self._error(error) from error
        self._index.complete()

    def flush(self) -> None:
        """Returns when all files are on the disk; may run in another thread.

        Raises: StorageError.
        """
        sync_files(self._paths)

    def close(self) -> None:
        """Closes the file but does not remove it; the next start completes or removes those of an offline partition."""
        if hasattr(self, "_file"):
            try:
                self._file.close()
            except OSError:
                pass  # the content is discarded

    def discard(self) -> None:
        """Closes and removes the files."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _error(self, error: OSError) -> StorageError:
        return StorageError(f"{self._paths[0]} cannot be written: {error.strerror}. Free space or check the disk.")


def replacement_steps(
    directory: Path, base: int, end: int, close_file: Callable[[Path], None] = lambda path: None
) -> Iterator[str]:
    """Replaces the segments from offset `base` to `end` by the cleaned segment of `base`, one step per iteration.

    The first step commits the replacement; `complete_swaps` does the remaining steps after a crash. `close_file` is
    called before a file is removed.

    Raises: StorageError.
    """
    log = directory / f"{base:020d}.log"
    swap = directory / f"{base:020d}.log.{end}{_SWAP}"
    try:
        if not swap.exists():
            os.rename(log.with_name(log.name + _CLEANED), swap)
            sync_directory(directory)
            yield "committed"
        for number in sorted(number for number in segment_base_offsets(directory) if base <= number < end):
            _remove_segment(directory / f"{number:020d}.log", close_file, keep_snapshot=number == base)
            yield f"removed {number}"
        for suffix in _SUFFIXES[1:]:
            cleaned = log.with_name(log.stem + suffix + _CLEANED)
            if cleaned.exists():
                os.replace(cleaned, log.with_suffix(suffix))
                yield f"renamed {suffix}"
        sync_directory(directory)  # without the swap file, nothing would remove a segment that a power loss restores
        os.rename(swap, log)
        sync_directory(directory)
        yield "done"
    except OSError as error:
        raise StorageError(
            f"Segments of {directory} cannot be replaced by their cleaned segment: {error.strerror}. Check the disk, "
            "then restart the broker, which completes the replacement."
        ) from error


def complete_swaps(directory: Path) -> None:
    """Completes committed replacements after a crash, and removes cleaned segments of others.

    Raises: StorageError.
    """
    for swap in sorted(directory.glob(f"*{_SWAP}")):
        found = _SWAP_NAME.fullmatch(swap.name)
        if found is not None:
            for _ in replacement_steps(directory, int(found[1]), int(found[2])):
                pass
    for path in directory.glob(f"*{_CLEANED}"):
        path.unlink()


def segment_base_offsets(directory: Path) -> list[int]:
    """Returns the base offsets of the segments in a partition directory, in ascending order."""
    return sorted(int(path.stem) for path in directory.glob("*.log") if path.stem.isdigit())


def _remove_segment(log: Path, close_file: Callable[[Path], None], keep_snapshot: bool) -> None:
    close_file(log)
    for suffix in _SUFFIXES[::-1]:
        log.with_suffix(suffix).unlink(missing_ok=True)
    if not keep_snapshot:
        # recovery starts at the latest snapshot, which is that of the active segment
        log.with_suffix(".snapshot").unlink(missing_ok=True)
