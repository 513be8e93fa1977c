"""Progress of a query that writes exactly once. Pure.

The progress is the last batch that the query has published. It is the metadata of an offset that the transaction of the
batch commits for a group without members, whose name is the transactional id with the suffix ``-progress``. The offset
is the number of the batch. So the output and its progress are visible together or not at all, and nothing but Kafka
stores them. The metadata keeps the progress of the other writers with the transactional id, as far as there is room.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Collection, Iterable, Mapping

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import OffsetAndMetadata

_SUFFIX = "-progress"
_DIGEST_BYTES = 8
# of 32 hexadecimal digits
_NAME_LENGTH = 8
_LEFT_OUT = "-"
# offset.metadata.max.bytes is 4,096 by default
_MAX_METADATA_BYTES = 4_000
# a query whose checkpoint was deleted has another id since
_MAX_QUERIES = 16
# of a batch query, between txnAppId and topic; the id of a streaming query has none
_SEPARATOR = "/"


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

    @property
    def is_of_batches(self) -> bool:
        """True for the writer of batch queries."""
        return _SEPARATOR in self.writer


def offset_of_progress(
    progress: WriterProgress, others: Iterable[WriterProgress] = (), elsewhere: Collection[str] = ()
) -> OffsetAndMetadata:
    """Returns the offset to commit.

    The progress of other writers is kept as far as there is room: first what no other offset has, and that of batch
    queries before that of streaming queries, of which most are former ones.

    Args:
        elsewhere: writers whose progress other offsets have.
    """
    rest = [each for each in others if each.writer != progress.writer]
    rest.sort(key=lambda each: (each.writer in elsewhere, not each.is_of_batches))
    kept: list[str] = []
    room, queries = _MAX_METADATA_BYTES - len("[]"), _MAX_QUERIES
    for each in (progress, *rest):
        queries -= not each.is_of_batches
        if queries < 0:
            continue
        text = json.dumps([each.writer, each.batch, dict(sorted(each.ends.items()))])
        room -= len(text) + len(", ")
        if kept and room < 0:
            break
        kept.append(text)
    return OffsetAndMetadata(progress.batch, f"[{', '.join(kept)}]", -1)


def batch_writer(app_id: str | None, topic: str | None) -> str | None:
    """Returns the writer of a batch query whose versions are written once: txnAppId in a topic, as in a table of Delta.

    Without option topic, all writes with a txnAppId are of one writer. None without a txnAppId.
    """
    return None if app_id is None else f"{app_id}{_SEPARATOR}{topic or ''}"


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
        writers: list[Any] = json.loads(metadata)[:_MAX_METADATA_BYTES]
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
