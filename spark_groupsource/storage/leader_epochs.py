"""Which records were written under which leader: where each leader epoch of a partition began.

A client that meets a new leader asks where the epoch it knows has ended, to find out whether what it read is still
there. Kept beside each log in Kafka's own file and format; no file stands for one epoch 0 from the beginning.

Source: KIP-320; Kafka `LeaderEpochFileCache` and its ``leader-epoch-checkpoint``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, NamedTuple

from spark_groupsource.broker.leaders import Leaders
from spark_groupsource.errors import StorageError
from spark_groupsource.storage.files import replace_file
from spark_groupsource.storage.log import Report
from spark_groupsource.storage.partition import Partition

_FILE = "leader-epoch-checkpoint"


class EpochEnd(NamedTuple):
    """The largest epoch not above the one asked for, and the offset after its last record; -1, -1 when unknown."""

    epoch: int
    end_offset: int


class Epochs:
    """Begins epochs where leaders have changed, and knows where they ended."""

    def __init__(self, leaders: Leaders, report: Report) -> None:
        self._leaders = leaders
        self._report = report

    def begin(self, partitions: Iterable[Partition]) -> None:
        """From now on records of these partitions are written in the epoch of their present leader."""
        for partition in partitions:
            epoch = self._leaders.leader(partition.topic_partition).epoch
            if epoch > partition.log.leader_epoch and not partition.offline:
                partition.log.leader_epoch = epoch
                self._note(partition, epoch)

    def end_of(self, partition: Partition, epoch: int) -> EpochEnd:
        """Where `epoch` ended; the present one ends where the log does.

        Raises: StorageError.
        """
        current = partition.log.leader_epoch
        if epoch == current:
            return EpochEnd(epoch, partition.log.log_end_offset)
        if not 0 <= epoch < current:
            return EpochEnd(-1, -1)
        starts = _read(partition.log.directory / _FILE)
        known = max((each for each, _ in starts if each <= epoch), default=epoch)
        return EpochEnd(known, next(start for each, start in starts if each > epoch))

    def _note(self, partition: Partition, epoch: int) -> None:
        path = partition.log.directory / _FILE
        try:
            starts = _read(path)
            if starts[-1][0] < epoch:
                # an epoch in which nothing was written is forgotten, as Kafka forgets it
                end_offset = partition.log.log_end_offset
                kept = [entry for entry in starts if entry[1] < end_offset]
                lines = [f"{each} {start}\n" for each, start in [*kept, (epoch, end_offset)]]
                replace_file(path, f"0\n{len(lines)}\n{''.join(lines)}".encode())
        except StorageError as error:
            self._report(f"leader epoch {epoch} of {partition.topic_partition} is not written down: {error}")


def _read(path: Path) -> list[tuple[int, int]]:
    """(epoch, first offset) in rising order, at least one."""
    if not path.exists():
        return [(0, 0)]
    try:
        lines = path.read_text().splitlines()[2:]
        starts = [(int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines)]
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from error
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error!r}); restore it from a copy") from error
    if not starts:
        return [(0, 0)]  # Kafka's, where nothing was written yet
    if starts != sorted(starts):
        raise StorageError(f"{path} is damaged (its epochs do not rise); restore it from a copy")
    return starts
