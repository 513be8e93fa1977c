"""The databases that the job upsert_database writes to."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)]


@contextmanager
def database_url(kind: str) -> Iterator[str]:
    """The address of an empty database; skips the test where PostgreSQL or psycopg is not installed."""
    with tempfile.TemporaryDirectory() as directory:
        if kind == "sqlite":
            yield f"sqlite:///{directory}/db"
        else:
            with _postgresql(Path(directory)) as address:
                yield address


@contextmanager
def _postgresql(directory: Path) -> Iterator[str]:
    """A server of its own, on a Unix socket."""
    psycopg = pytest.importorskip("psycopg")
    initdb = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None) or shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed")
    prefix: list[str] = []
    if os.geteuid() == 0:
        # the server does not run as root
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(directory, "postgres", "postgres")
    data = directory / "data"
    create = [*prefix, str(initdb), "-D", str(data), "-A", "trust", "-U", "tester"]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    serve = [*prefix, str(Path(initdb).with_name("postgres")), "-D", str(data), "-k", str(directory)]
    server = subprocess.Popen([*serve, "-c", "listen_addresses="], stderr=subprocess.DEVNULL)
    address = f"postgresql://tester@/postgres?host={directory}"

    def is_open() -> bool:
        try:
            psycopg.connect(address).close()
        except psycopg.Error:
            return False
        return True

    try:
        wait_until(is_open, "PostgreSQL is ready", 60)
        yield address
    finally:
        # fast shutdown: the tests leave no client
        server.send_signal(signal.SIGINT)
        server.wait(30)


def rows_of_query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(statement).fetchall()
    import psycopg

    with psycopg.connect(url) as connection:
        return list(connection.execute(statement).fetchall())
