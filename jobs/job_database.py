"""Database table with the offsets of its records, for exactly-once upserts.

PostgreSQL or SQLite; a batch changes both in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

OFFSETS_TABLE = "kafka_offsets"
SQL_TYPES = {"boolean": "boolean", "float": "double precision", "double": "double precision", "string": "text"}


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass
class Changes:
    """The changes of one batch.

    Attributes:
        rows: key, columns (None to delete the row), number of records; a later change of a key replaces an earlier one.
        next_offsets: the offset after the last record of each partition.
        rejected: number of records that change nothing.
    """

    rows: list[tuple[str, tuple[Any, ...] | None, int]] = field(default_factory=list)
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    rejected: int = 0


class Dialect(NamedTuple):
    """What differs between the databases: the parameter mark, and how a transaction locks the offsets that it reads."""

    mark: str
    begin: str
    lock: str


SQLITE = Dialect("?", "BEGIN IMMEDIATE", "")
POSTGRESQL = Dialect("%s", "BEGIN", " FOR UPDATE")


class Database:
    """A table with a key, columns and the number of records of each row; the offsets of one group beside it."""

    def __init__(self, connection: Any, dialect: Dialect, table: str, group: str, key: str, types: Mapping[str, str]):
        self._connection, self._dialect = connection, dialect
        self._scope = (group, table)
        name, columns = ".".join(map(quoted, table.split("."))), [quoted(column) for column in types]
        declared = [f"{quoted(c)} {SQL_TYPES.get(kind, 'bigint')}" for c, kind in types.items()]
        self._create = [
            f"CREATE TABLE IF NOT EXISTS {name} "
            f"({', '.join([f'{quoted(key)} text PRIMARY KEY', *declared, 'updates bigint NOT NULL'])})",
            f"CREATE TABLE IF NOT EXISTS {OFFSETS_TABLE} (consumer_group text, target text, topic text, "
            "partition_id bigint, next_offset bigint NOT NULL, "
            "PRIMARY KEY (consumer_group, target, topic, partition_id))",
        ]
        changed = [f"{column} = excluded.{column}" for column in columns]
        self._upsert = (
            f"INSERT INTO {name} AS target ({', '.join([quoted(key), *columns, 'updates'])}) "
            f"VALUES ({self._marks(len(columns) + 2)}) ON CONFLICT ({quoted(key)}) DO UPDATE SET "
            f"{', '.join([*changed, 'updates = target.updates + excluded.updates'])}"
        )
        self._delete = f"DELETE FROM {name} WHERE {quoted(key)} = {dialect.mark}"

    def create(self) -> None:
        """Creates the tables unless they exist."""
        with self._transaction() as cursor:
            for statement in self._create:
                cursor.execute(statement)

    def next_offsets(self) -> dict[TopicPartition, int]:
        """The next offset of every partition that has been applied."""
        with self._transaction() as cursor:
            return self._read(cursor, "")

    def apply(self, changes: Changes, before: Mapping[TopicPartition, int]) -> bool:
        """Writes rows and offsets in one transaction.

        Args:
            before: the offsets that the changes were computed with.
        Returns: False, with nothing written, if the offsets of a changed partition are others than `before`.
        """
        with self._transaction() as cursor:
            # a lock needs a row
            for partition in sorted(changes.next_offsets):
                cursor.execute(
                    f"INSERT INTO {OFFSETS_TABLE} VALUES ({self._marks(5)}) ON CONFLICT DO NOTHING",
                    (*self._scope, *partition, before.get(partition, 0)),
                )
            now = self._read(cursor, self._dialect.lock)
            if any(now[partition] != before.get(partition, 0) for partition in changes.next_offsets):
                return False
            for key, row, updates in changes.rows:
                if row is None:
                    cursor.execute(self._delete, (key,))
                else:
                    cursor.execute(self._upsert, (key, *row, updates))
            m = self._dialect.mark
            for partition, offset in changes.next_offsets.items():
                cursor.execute(
                    f"UPDATE {OFFSETS_TABLE} SET next_offset = {m} "
                    f"WHERE consumer_group = {m} AND target = {m} AND topic = {m} AND partition_id = {m}",
                    (offset, *self._scope, *partition),
                )
            return True

    def _read(self, cursor: Any, lock: str) -> dict[TopicPartition, int]:
        m = self._dialect.mark
        cursor.execute(
            f"SELECT topic, partition_id, next_offset FROM {OFFSETS_TABLE} "
            f"WHERE consumer_group = {m} AND target = {m} ORDER BY topic, partition_id{lock}",
            self._scope,
        )
        return {TopicPartition(topic, partition): offset for topic, partition, offset in cursor.fetchall()}

    def _marks(self, count: int) -> str:
        return ", ".join([self._dialect.mark] * count)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(self._dialect.begin)
            try:
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")


@contextmanager
def connect(url: str, table: str, group: str, key: str, types: Mapping[str, str]) -> Iterator[Database]:
    """A connection to a database whose tables exist, closed at exit.

    Args:
        types: name and Spark type of each column except the key.
    Raises: click.ClickException if the database cannot be opened.
    """
    connection, dialect = _connection(url)
    with closing(connection):
        database = Database(connection, dialect, table, group, key, types)
        database.create()
        yield database


def _connection(url: str) -> tuple[Any, Dialect]:
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        try:
            # foreachBatch runs in a thread of its own; it is the only user of the connection then
            return sqlite3.connect(rest[1:], 60, isolation_level=None, check_same_thread=False), SQLITE
        except sqlite3.Error as error:
            raise click.ClickException(f"Cannot open {rest[1:]}: {error}. Check --database.") from error
    if scheme not in ("postgresql", "postgres"):
        # the address may contain a password
        raise click.ClickException(f"Option --database must start with postgresql:// or sqlite:///, got {scheme}.")
    try:
        import psycopg
    except ImportError as error:
        raise click.ClickException(
            "Cannot connect to PostgreSQL: psycopg is not installed. Run: pip install 'psycopg[binary]'."
        ) from error
    try:
        return psycopg.connect(url, autocommit=True), POSTGRESQL
    except psycopg.Error as error:
        cause = " ".join(str(error).split())
        raise click.ClickException(f"Cannot connect to PostgreSQL: {cause}. Check --database.") from error


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
