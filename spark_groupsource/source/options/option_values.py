"""Parsers of source option values that `ConfigType` does not cover."""

from __future__ import annotations

import json
import re
from pathlib import Path

from spark_groupsource.common import config_def
from spark_groupsource.common.name_patterns import check_pattern
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition


def parse_text(name: str, text: str) -> str:
    """Rejects an empty value."""
    if not text:
        raise ConfigurationError(f"Option {name} must not be empty. Give it a value or leave it out.")
    return text


def parse_bytes(name: str, text: str) -> int:
    """Parses a size such as ``65536``, ``512k`` or ``64m`` (powers of 1024)."""
    found = config_def.parse_size(text)
    if not found:
        raise ConfigurationError(
            f"Option {name} must be a positive number of bytes such as 65536, 512k or 64m, got {text!r}."
        )
    return found


def parse_duration_ms(name: str, text: str) -> int:
    """Parses Spark's time strings (``500ms``, ``90s``, ``15m``, ``2h``, ``1d``); a bare number is milliseconds."""
    found = config_def.parse_duration_ms(f"{text}ms" if text.isdecimal() else text)
    if found is None:
        raise ConfigurationError(f"Option {name} must be a duration such as 500ms, 90s, 15m or 2h, got {text!r}.")
    return found


def parse_topics(name: str, text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of topics; duplicates are dropped."""
    topics = tuple(dict.fromkeys(config_def.comma_list(text)))
    if not topics:
        raise ConfigurationError(f"Option {name} must be a comma-separated list of topics, got {text!r}.")
    return topics


def parse_pattern(name: str, text: str) -> str:
    """Parses a regular expression of Python's ``re`` module."""
    return check_pattern(name, parse_text(name, text))


def parse_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parses ``{"topic":[0,1]}``."""
    try:
        chosen = json.loads(text)
        pairs = sorted({TopicPartition(topic, _partition(p)) for topic, numbers in chosen.items() for p in numbers})
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f'Option {name} must be JSON such as {{"topic":[0,1]}}, got {text!r}.') from error
    if not pairs:
        raise ConfigurationError(f"Option {name} must list at least one partition, got {text!r}.")
    return tuple(pairs)


def _partition(number: object) -> int:
    # true is an integer in Python, 1.5 becomes 1
    found = None if isinstance(number, (bool, float)) else config_def.parse_integer(str(number))
    if found is None or not 0 <= found <= config_def.INT32_MAX:
        raise ValueError(f"partition {number!r}")
    return found


def parse_members(name: str, text: str) -> int | None:
    """Parses a number of members; ``auto`` is None."""
    if text.lower() == "auto":
        return None
    found = config_def.parse_integer(text)
    if found is None or not 0 < found < 10**9:
        raise ConfigurationError(f"Option {name} must be auto or a positive integer, got {text!r}.")
    return found


def parse_class_path(name: str, text: str) -> str:
    """Parses ``module:Class``."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", text.strip()):
        raise ConfigurationError(f"Option {name} must be module:Class, got {text!r}.")
    return text.strip()


def local_path(path: str | Path) -> Path | None:
    """Returns a path as Hadoop names it, with or without the scheme ``file``; None for one of another file system."""
    text = str(path).removeprefix("file://").removeprefix("file:")
    # one letter is a drive
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text) else Path(text)
