"""Commits that a client repeats with other offsets.

A member usually commits the same partitions again and again. What does not depend on the offsets, among it the encoding
of the records, is prepared once for all of its commits.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spark_groupsource.group.commit_records import CommitRecords
from spark_groupsource.group.repeated_offsets import CommitColumns, RepeatedOffsets
from spark_groupsource.wire.byte_pattern import BytePattern
from spark_groupsource.wire.messages import OffsetCommitRequest, OffsetCommitResponse


class CommitForm(NamedTuple):
    """A commit outside of transactions, without its offsets.

    Attributes: `request`, one of these commits; `columns`, of their offsets; `records`, the encoded records, whose
    numbers are the offset and the timestamp of each commit; `response`, without errors; `longest_metadata`, its length
    as offset.metadata.max.bytes limits it.
    """

    request: OffsetCommitRequest
    columns: CommitColumns
    records: BytePattern
    response: OffsetCommitResponse
    longest_metadata: int

    def commit(self, offsets: Sequence[int], timestamp_ms: int) -> CommitRecords:
        """Returns the records of a commit of these offsets."""
        numbers = [timestamp_ms] * (2 * len(offsets))
        numbers[::2] = offsets
        committed = RepeatedOffsets(self.columns, offsets, timestamp_ms)
        return CommitRecords(self.request.group_id, committed, self.records.fill(numbers))
