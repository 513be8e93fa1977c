"""Rebalance listener that stores in SQLite when this application owned each partition."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing

from spark_groupsource.assign import TopicPartition

_TABLE = """create table if not exists owners
    (topic text, partition integer, process text, since real, until real, how text)"""


class PartitionOwners:
    """Option ``rebalanceListener`` is ``partition_owners:PartitionOwners``.

    The environment variable ``OWNERS_DATABASE`` of the driver names the file.
    """

    def __init__(self) -> None:
        self._path = os.environ["OWNERS_DATABASE"]
        self._process = f"{os.uname().nodename}:{os.getpid()}:{id(self)}"
        with self._open() as database:
            database.execute(_TABLE)
            database.commit()

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        rows = [(topic, partition, self._process, time.time()) for topic, partition in assigned]
        with self._open() as database:
            database.executemany("insert into owners values (?, ?, ?, ?, null, null)", rows)
            database.commit()

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self._end(revoked, "revoked")

    def on_partitions_lost(self, lost: Sequence[TopicPartition]) -> None:
        self._end(lost, "lost")

    def _end(self, partitions: Sequence[TopicPartition], how: str) -> None:
        rows = [(time.time(), how, topic, partition, self._process) for topic, partition in partitions]
        with self._open() as database:
            database.executemany(
                "update owners set until = ?, how = ? "
                "where topic = ? and partition = ? and process = ? and until is null",
                rows,
            )
            database.commit()

    def _open(self) -> closing[sqlite3.Connection]:
        # calls come from two threads, one after the other, and a connection of SQLite belongs to its thread
        return closing(sqlite3.connect(self._path, timeout=30))
