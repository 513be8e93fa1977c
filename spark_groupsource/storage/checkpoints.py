"""Offset checkpoints, and log end offsets of a clean shutdown.

Checkpoints have the format of Kafka.

Source: Kafka `OffsetCheckpointFile`, `CleanShutdownFileHandler`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Mapping

from spark_groupsource.errors import StorageError
from spark_groupsource.model import TopicPartition
from spark_groupsource.storage.files import replace_file, sync_directory
from spark_groupsource.storage.metadata_files import corrupt_file, read_bytes, read_json

LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
_CLEAN_SHUTDOWN = "clean-shutdown.json"


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file, empty without the file.

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


def write_clean_shutdown(directory: Path, end_offsets: Mapping[TopicPartition, int]) -> None:
    """Stores the log end offsets of a clean shutdown.

    Raises: StorageError.
    """
    ends = [[tp.topic, tp.partition, offset] for tp, offset in end_offsets.items()]
    replace_file(directory / _CLEAN_SHUTDOWN, json.dumps({"version": 1, "log_ends": ends}).encode())


def take_clean_shutdown(directory: Path) -> dict[TopicPartition, int] | None:
    """Reads and removes the log end offsets of a clean shutdown; None after an unclean one.

    The file is removed before the logs change, so that a crash is not mistaken for a clean shutdown. A file that cannot
    be read does not prove a clean shutdown.
    """
    path = directory / _CLEAN_SHUTDOWN
    if not path.exists():
        return None
    offsets = None
    try:
        ends = read_json(path)["log_ends"]
        offsets = {TopicPartition(str(topic), int(number)): int(end) for topic, number, end in ends}
    except (KeyError, TypeError, ValueError, StorageError):
        pass
    path.unlink()
    sync_directory(directory)
    return offsets
