"""Offset checkpoints and the mark of a clean shutdown, in Kafka's formats.

Source: Kafka `OffsetCheckpointFile`, `CleanShutdownFileHandler`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Mapping

from spark_groupsource.broker.storage.files import replace_file, sync_directory
from spark_groupsource.broker.storage.metadata_files import corrupt_file, read_bytes
from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition

LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Returns the offsets of a checkpoint file, empty without the file.

    Raises: StorageError.
    """
    offsets: dict[TopicPartition, int] = {}
    if not path.exists():
        return offsets
    try:
        for line in read_bytes(path).decode().split("\n")[2:]:
            if line:
                topic, partition, offset = line.split(" ")
                offsets[TopicPartition(topic, int(partition))] = int(offset)
    except ValueError as error:
        raise corrupt_file(path, error) from error
    return offsets


def write_offset_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces a checkpoint file; durable on return.

    Raises: StorageError.
    """
    lines = [f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in sorted(offsets.items())]
    replace_file(path, f"0\n{len(lines)}\n{''.join(lines)}".encode())


def write_clean_shutdown(directory: Path) -> None:
    """Marks a clean shutdown; every log must be on the disk.

    Raises: StorageError.
    """
    replace_file(directory / _CLEAN_SHUTDOWN, json.dumps({"version": 0, "brokerEpoch": -1}).encode())


def take_clean_shutdown(directory: Path) -> bool:
    """Removes the mark of a clean shutdown; returns whether it was there.

    It is removed before the logs change, so that a crash is not mistaken for a clean shutdown.

    Raises: StorageError.
    """
    path = directory / _CLEAN_SHUTDOWN
    if not path.exists():
        return False
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(f"{path} cannot be removed: {error.strerror}. Check permissions.") from error
    sync_directory(directory)
    return True
