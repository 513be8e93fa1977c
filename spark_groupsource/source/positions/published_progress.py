"""Progress of a query that writes exactly once. Pure.

The progress is the last batch that the query has published. It is the metadata of an offset that the transaction of the
batch commits for a group without members, whose name is the transactional id with the suffix ``-progress``. The offset
is the number of the batch. So the output and its progress are visible together or not at all, and nothing but Kafka
stores them. The metadata keeps the progress of the last writers with the transactional id.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata

_SUFFIX = "-progress"
_DIGEST_BYTES = 8
# of 32 hexadecimal digits
_NAME_LENGTH = 8
_LEFT_OUT = "-"
# offset.metadata.max.bytes is 4,096 by default
_MAX_WRITERS, _MAX_METADATA_BYTES = 16, 4_000


@dataclass(frozen=True)
class WriterProgress:
    """The last published batch of one writer.

    Attributes:
        writer: id of the streaming query, or that of a batch query, of options txnAppId and topic.
        batch: number of the batch, or the value of option txnVersion.
        ends: reader of a groupsource source in the query -> digest of the end offset of its batch.
            The records of a batch that was left out are not in its output, see `digest`.
    """

    writer: str
    batch: int
    ends: Mapping[str, str] = field(default_factory=dict)


def offset_of_progress(progress: WriterProgress, others: Iterable[WriterProgress] = ()) -> OffsetAndMetadata:
    """Returns the offset to commit; the progress of other writers is kept as far as there is room."""
    kept = [progress, *(each for each in others if each.writer != progress.writer)][:_MAX_WRITERS]
    while len(text := json.dumps([[p.writer, p.batch, dict(sorted(p.ends.items()))] for p in kept])) > (
        _MAX_METADATA_BYTES
    ) and len(kept) > 1:
        kept.pop()
    return OffsetAndMetadata(progress.batch, text, -1)


def progress_group(transactional_id: str) -> str:
    """Returns the group whose offsets are the progress."""
    return f"{transactional_id}{_SUFFIX}"


def read_progress(commits: Iterable[OffsetAndMetadata | None]) -> list[WriterProgress]:
    """Returns the progress of every writer in committed offsets, the last batch of each.

    Raises: ConfigurationError for an offset that something else has committed.
    """
    found: dict[str, WriterProgress] = {}
    for commit in commits:
        for progress in _parse(commit.metadata) if commit is not None else ():
            known = found.get(progress.writer)
            if known is None or known.batch < progress.batch:
                found[progress.writer] = progress
    return list(found.values())


def _parse(metadata: str) -> list[WriterProgress]:
    try:
        # a list: an object has no slice
        writers: list[Any] = json.loads(metadata)[:_MAX_WRITERS]
        return [
            WriterProgress(str(writer), int(batch), {str(reader): str(end) for reader, end in ends.items()})
            for writer, batch, ends in writers
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"The offsets of a group with suffix {_SUFFIX} are not the progress of a query: {metadata[:200]!r}. "
            "Use another kafka.transactional.id."
        ) from error


def reader_name(reader: str) -> str:
    """Returns the name of a reader in `WriterProgress.ends`."""
    return reader[:_NAME_LENGTH]


def digest(end: Mapping[str, Any], *, is_left_out: bool = False) -> str:
    """Returns the digest of the end offset of a batch, as JSON values.

    Args:
        is_left_out: whether the batch was published without its records, which the next one reads.
    """
    text = json.dumps(end, sort_keys=True, separators=(",", ":"))
    found = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return found + _LEFT_OUT if is_left_out else found
