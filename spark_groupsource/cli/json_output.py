"""JSON output of the commands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from spark_groupsource.cli.common import F


def json_option(command: F) -> F:
    """Adds ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print a JSON array of objects instead of the table."
    )(command)


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints an array with one row per line."""
    lines = ",\n ".join(json.dumps(dict(row), ensure_ascii=False) for row in rows)
    click.echo(f"[{lines}]")
