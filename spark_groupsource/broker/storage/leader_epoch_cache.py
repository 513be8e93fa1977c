"""Leader epochs of one partition: the first offset of each epoch.

A client with a new leader requests the end offset of the last epoch that it has read, which shows whether the records
it has read are still in the log. The file is Kafka's ``leader-epoch-checkpoint`` in the partition directory; without it
the log has one epoch, 0, from the first record on. It is written before
the first record of an epoch, so that a start with a new epoch writes nothing.

Source: KIP-320; Kafka `LeaderEpochFileCache`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from spark_groupsource.broker.storage.files import replace_file
from spark_groupsource.broker.storage.metadata_files import corrupt_file
from spark_groupsource.common.descriptors import describe_os_error
from spark_groupsource.errors import StorageError

_CHECKPOINT_NAME = "leader-epoch-checkpoint"


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the requested one, and its end offset; -1, -1 if the epoch is unknown."""

    epoch: int
    end_offset: int


UNKNOWN_EPOCH_END = EpochEnd(-1, -1)
_FIRST = (0, 0)


class LeaderEpochCache:
    """The epochs of the log in `directory`; `latest_epoch` is written into each new batch.

    `is_stored`: whether `store` has nothing to do.
    """

    __slots__ = ("_directory", "_starts", "is_stored", "latest_epoch")

    def __init__(self, directory: Path | str) -> None:
        self._directory = str(directory)
        self.latest_epoch = 0
        self._starts: list[tuple[int, int]] | None = None  # (epoch, start offset) in ascending order, None until read
        self.is_stored = True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Starts `epoch` at `start_offset`; an epoch that is not above the latest one is ignored.

        Raises: StorageError when the checkpoint cannot be read; the epoch is then in effect.
        """
        if epoch <= self.latest_epoch:
            return
        self.latest_epoch = epoch
        starts = self._read_once()
        if starts[-1][0] < epoch:
            # as in Kafka, epochs without records are removed
            self._starts = [*(entry for entry in starts if entry[1] < start_offset), (epoch, start_offset)]
            self.is_stored = False

    def store(self) -> None:
        """Stores the assigned epochs; must be called before a record is appended.

        Raises: StorageError.
        """
        if not self.is_stored:
            self._write(self._read_once())

    def last_started_epoch(self) -> int:
        """Returns the largest epoch that was assigned to this log, also before the last start; 0 without one.

        Raises: StorageError.
        """
        return self._read_once()[-1][0]

    def truncate_from(self, log_end_offset: int) -> None:
        """Removes the epochs that start after `log_end_offset`, to which the log was truncated.

        Raises: StorageError.
        """
        starts = self._read_once()
        kept = [entry for entry in starts if entry[1] <= log_end_offset]
        if kept != starts:
            self._write(kept)

    def truncate_before(self, log_start_offset: int) -> None:
        """Removes the epochs that end at or below `log_start_offset`, which becomes the start of the first one left.

        Raises: StorageError.
        """
        starts = self._read_once()
        if starts == [_FIRST]:
            return
        passed = [entry for entry in starts if entry[1] < log_start_offset]
        if passed:
            following = starts[len(passed) :]
            is_empty = bool(following) and following[0][1] == log_start_offset
            self._write(following if is_empty else [(passed[-1][0], log_start_offset), *following])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Returns the end offset of `epoch`; the latest epoch ends at the log end offset.

        Raises: StorageError.
        """
        if epoch == self.latest_epoch:
            return EpochEnd(epoch, log_end_offset)
        if not 0 <= epoch < self.latest_epoch:
            return UNKNOWN_EPOCH_END
        starts = self._read_once()
        known = max((each for each, _ in starts if each <= epoch), default=epoch)
        return EpochEnd(known, next(start for each, start in starts if each > epoch))

    def epoch_for_offset(self, offset: int) -> int:
        """Returns the epoch in which the record at `offset` was appended, -1 if it is unknown.

        Raises: StorageError.
        """
        if not self.latest_epoch:
            return 0
        return max((epoch for epoch, start in self._read_once() if start <= offset), default=-1)

    def _read_once(self) -> list[tuple[int, int]]:
        if self._starts is None:
            self._starts = _read(Path(self._directory) / _CHECKPOINT_NAME)
        return self._starts

    def _write(self, starts: list[tuple[int, int]]) -> None:
        lines = [f"{epoch} {start}\n" for epoch, start in starts]
        replace_file(Path(self._directory) / _CHECKPOINT_NAME, f"0\n{len(lines)}\n{''.join(lines)}".encode())
        self._starts, self.is_stored = starts or [_FIRST], True


def _read(path: Path) -> list[tuple[int, int]]:
    """(epoch, start offset) in ascending order, at least one.

    Raises: StorageError.
    """
    if not path.exists():
        return [_FIRST]
    try:
        lines = path.read_text().splitlines()[2:]
        starts = [(int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines)]
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {describe_os_error(error, 'Restore it from a copy.')}") from error
    except ValueError as error:
        raise corrupt_file(path, error) from error
    if not starts:
        return [_FIRST]  # Kafka writes an empty checkpoint for a log without records
    if starts != sorted(starts):
        raise StorageError(f"{path} is corrupt: its epochs do not ascend. Restore it from a copy.")
    return starts
