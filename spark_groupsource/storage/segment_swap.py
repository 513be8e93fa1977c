"""A cleaned segment: written beside those it replaces, then put in their place so that a crash leaves one or the other.

``00.log.cleaned`` and its indexes are written and flushed first; they count for nothing yet and are removed at the
next start. Renaming the log to ``00.log.<end>.swap`` decides: whatever happens from then on, the segments from `base`
to `end` are replaced, if need be at the next start.

Source: Kafka `UnifiedLog.replaceSegments`, `LogLoader.load` (suffixes `.cleaned` and `.swap`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Iterator, Sequence

from spark_groupsource.errors import StorageError
from spark_groupsource.records.header import BatchHeader
from spark_groupsource.storage import transaction_index as aborted
from spark_groupsource.storage.files import sync_directory
from spark_groupsource.storage.segment_index import SegmentIndex
from spark_groupsource.storage.transaction_index import AbortedTransaction

_CLEANED = ".cleaned"
_SWAP = ".swap"
_SUFFIXES = (".log", ".index", ".timeindex", aborted.SUFFIX)


class CleanedSegment:
    """The replacement of the segments from `base_offset` to `end_offset` (excluded), while it is written."""

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
        """Writes a batch; `header` is its header.

        Raises: StorageError.
        """
        try:
            self._file.write(batch)
        except OSError as error:
            raise self._error(error) from error
        # an empty batch has a time stamp and no record that bears it
        max_timestamp = header.max_timestamp if header.record_count else -1
        self._index.add_batch(self.size, len(batch), header.last_offset, max_timestamp)
        self.size += len(batch)

    def finish(self, aborted_rows: Sequence[AbortedTransaction] = ()) -> None:
        """Writes what is still in memory, and which transactions of the segment were aborted.

        Raises: StorageError.
        """
        try:
            self._file.close()
            if aborted_rows:
                path = self.directory / f"{self.base_offset:020d}{aborted.SUFFIX}{_CLEANED}"
                self._paths.append(path)
                path.write_bytes(aborted.encode(aborted_rows))
        except OSError as error:
            raise self._error(error) from error
        self._index.complete()

    def flush(self) -> None:
        """Waits until all files are on the disk; may run in another thread.

        Raises: StorageError.
        """
        try:
            for path in self._paths:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Lets go of the files and leaves them; those of an offline partition the next start looks after."""
        if hasattr(self, "_file"):
            try:
                self._file.close()
            except OSError:
                pass  # what could not be written is not wanted any more

    def discard(self) -> None:
        """Removes the files."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _error(self, error: OSError) -> StorageError:
        return StorageError(f"{self._paths[0]} cannot be written: {error.strerror}; free space or mend the disk")


def replacement_steps(
    directory: Path, base: int, end: int, forget: Callable[[Path], None] = lambda path: None
) -> Iterator[str]:
    """Puts the cleaned segment of `base` in the place of the segments from `base` to `end`, a step at a time.

    After the first step there is no way back: `complete_swaps` does the rest when this does not. `forget` closes a file
    that is about to go.

    Raises: StorageError.
    """
    log = directory / f"{base:020d}.log"
    decided = directory / f"{base:020d}.log.{end}{_SWAP}"
    try:
        if not decided.exists():
            os.rename(log.with_name(log.name + _CLEANED), decided)
            sync_directory(directory)
            yield "decided"
        for number in sorted(number for number in segment_base_offsets(directory) if base <= number < end):
            _remove_segment(directory / f"{number:020d}.log", forget, keep_snapshot=number == base)
            yield f"removed {number}"
        for suffix in _SUFFIXES[1:]:
            cleaned = log.with_name(log.stem + suffix + _CLEANED)
            if cleaned.exists():
                os.replace(cleaned, log.with_suffix(suffix))
                yield f"renamed {suffix}"
        os.rename(decided, log)
        sync_directory(directory)
        yield "done"
    except OSError as error:
        raise StorageError(
            f"segments of {directory} cannot be replaced by their cleaned one: {error.strerror}; mend the disk, "
            "the next start goes on with it"
        ) from error


def complete_swaps(directory: Path) -> None:
    """Does what a crash left undone: swaps that were decided are finished, cleaned segments that were not are removed.

    Raises: StorageError.
    """
    for decided in sorted(directory.glob(f"*{_SWAP}")):
        base, _, end = decided.name.split(".")[:3]
        for _ in replacement_steps(directory, int(base), int(end)):
            pass
    for path in directory.glob(f"*{_CLEANED}"):
        path.unlink()


def segment_base_offsets(directory: Path) -> list[int]:
    """The base offsets of the segments in a partition's directory, in order."""
    return sorted(int(path.stem) for path in directory.glob("*.log") if path.stem.isdigit())


def _remove_segment(log: Path, forget: Callable[[Path], None], keep_snapshot: bool) -> None:
    forget(log)
    for suffix in _SUFFIXES[::-1]:
        log.with_suffix(suffix).unlink(missing_ok=True)
    if not keep_snapshot:
        # producers are remembered from the latest snapshot on, and that is the active segment's
        log.with_suffix(".snapshot").unlink(missing_ok=True)
