"""Rows of a Parquet sink, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet


def log_entries(directory: Path) -> list[Path]:
    """Returns the files of the sink's metadata log, in the order of the batches they are named after."""
    log = directory / "_spark_metadata"
    # a compacted entry, ``9.compact``, repeats the earlier ones and adds its own batch
    found = [path for path in log.iterdir() if path.name.partition(".")[0].isdigit()] if log.exists() else []
    return sorted(found, key=lambda path: int(path.name.partition(".")[0]))


def files_of(entry: Path) -> list[str]:
    """Returns the paths of the data files in one entry of the metadata log."""
    return [unquote(urlparse(json.loads(line)["path"]).path) for line in entry.read_text().splitlines()[1:]]


def committed_rows(directory: Path) -> pa.Table | None:
    """Returns the rows that the metadata log names, as Spark reads them; None when there are none."""
    files = {path for entry in log_entries(directory) for path in files_of(entry)}
    tables = [pyarrow.parquet.read_table(path, partitioning=None) for path in sorted(files)]
    return pa.concat_tables(tables) if tables else None
