"""Checkpoints of Spark's own Kafka source.

Its initial offsets are read, and its offset log is written.

Source: Spark `KafkaSourceInitialOffsetWriter`, `OffsetSeqLog`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Collection, Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.source.options.option_values import local_path
from spark_groupsource.source.positions.offset_json import GROUP_KEY, SourceOffset, decode_offset, nest_positions


def initial_offsets(checkpoint: str, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the start of batch 0, which Spark's Kafka source writes to ``sources/<n>/0`` and not to the offset log.

    Args:
        checkpoint: local checkpoint directory of the query.
        partitions: partitions of the batch, which select the source of a query that has several.
    Raises: ConfigurationError if no source has these partitions.
    """
    root = local_path(checkpoint)
    for path in sorted((root / "sources").glob("*/0")) if root is not None else ():
        try:
            # one zero byte for Spark 2.1.0, the version, the offsets
            found = decode_offset(json.loads(path.read_text("utf-8").split("\n", 1)[1])).positions
        except (OSError, ValueError, IndexError, ConfigurationError):
            continue
        if partitions <= found.keys():
            return {p: found[p] for p in partitions}
    raise ConfigurationError(
        f"Reading the initial offsets of {bounded_names(sorted(partitions))} failed: no file {checkpoint}/sources/*/0 "
        "has them. Set checkpointLocation to the local checkpoint directory of the query."
    )


def export_checkpoint(source: Path, target: Path, offsets: Mapping[int, SourceOffset]) -> None:
    """Copies a checkpoint directory whose last batch is committed, with offsets that Spark's Kafka source reads.

    Args:
        offsets: index of a source -> its offset after the last batch, of sources that are to be changed.
    Raises: ConfigurationError if a position is missing, or `target` exists.
    """
    for offset in offsets.values():
        _check_complete(offset)
    if target.exists():
        raise ConfigurationError(f"Writing checkpoint {target} failed: it exists. Give the path of a new directory.")
    shutil.copytree(source, target)
    for path in sorted((target / "offsets").iterdir()):
        if path.name.isdecimal():
            path.write_text(_exported(path.read_text("utf-8"), offsets.keys()), "utf-8")
            # Hadoop's checksum of the file as it was
            (target / "offsets" / f".{path.name}.crc").unlink(missing_ok=True)


def _check_complete(offset: SourceOffset) -> None:
    """Spark's Kafka source reads each partition without a position from its earliest offset."""
    missing = [
        TopicPartition(topic, number)
        for topic, count in offset.partition_counts.items()
        for number in range(count)
        if TopicPartition(topic, number) not in offset.positions
    ]
    if missing:
        raise ConfigurationError(
            f"Exporting the checkpoint failed: it has no position of {bounded_names(missing)}, which other members of "
            f"group {offset.group_id} read. Stop the other members, run the query until it has read a batch of all "
            "partitions, and stop it gracefully."
        )


def _exported(text: str, sources: Collection[int]) -> str:
    version, metadata, *lines = text.split("\n")
    return "\n".join([version, metadata, *(_positions(s) if n in sources else s for n, s in enumerate(lines))])


def _positions(line: str) -> str:
    if GROUP_KEY not in line:
        return line
    return json.dumps(nest_positions(decode_offset(json.loads(line)).positions), separators=(",", ":"))
