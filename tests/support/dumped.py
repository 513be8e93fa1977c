"""Parsed output of Kafka's DumpLogSegments and of ``groupsource offsets-log``, for comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.java_tools import JavaTools

DUMP = "org.apache.kafka.tools.DumpLogSegments"
_FORMS = re.compile(r"(.*?) key: (\{.*\})(?: payload: (\{.*\}|<DELETE>))")


def dump_tool(java: JavaTools, files: Iterable[Path]) -> list[Any]:
    """Returns the parsed output of Kafka's tool for segments of `__consumer_offsets`."""
    run = java.call(DUMP, "--offsets-decoder", "--files", ",".join(map(str, files)))
    assert run.returncode == 0, run.stderr
    return parsed(run.stdout)


def parsed(text: str) -> list[Any]:
    """Parses each line, with its JSON parts as values."""
    found: list[Any] = []
    for line in text.splitlines():
        forms = _FORMS.fullmatch(line)
        if forms is None:
            found.append(line)
        else:
            head, key, payload = forms.groups()
            found.append((head, json.loads(key), payload if payload == "<DELETE>" else json.loads(payload)))
    return found


def segments(directory: Path) -> list[Path]:
    """Returns the segments of `__consumer_offsets` in a data directory, in the order of partitions."""
    partitions = sorted(directory.glob("__consumer_offsets-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return [path for partition in partitions for path in sorted(partition.glob("*.log"))]
