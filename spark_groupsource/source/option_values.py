"""Parsers of source option values that `ConfigType` does not cover."""

from __future__ import annotations

import json
import re
from pathlib import Path

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition

_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_text(name: str, text: str) -> str:
    """Rejects an empty value."""
    if not text.strip():
        raise ConfigurationError(f"Option {name} must not be empty. Give it a value or leave it out.")
    return text.strip()


def parse_bytes(name: str, text: str) -> int:
    """Parses a size such as ``65536``, ``512k`` or ``64m`` (powers of 1024)."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in _BYTE_UNITS or not int(match[1]):
        raise ConfigurationError(
            f"Option {name} must be a positive number of bytes such as 65536, 512k or 64m, got {text!r}."
        )
    return int(match[1]) * _BYTE_UNITS[match[2]]


def parse_duration_ms(name: str, text: str) -> int:
    """Parses Spark's time strings (``500ms``, ``90s``, ``15m``, ``2h``, ``1d``); a bare number is milliseconds."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|min|m|h|d)?", text.strip().lower())
    if not match:
        raise ConfigurationError(f"Option {name} must be a duration such as 500ms, 90s, 15m or 2h, got {text!r}.")
    return int(match[1]) * _DURATION_UNITS_MS[match[2] or "ms"]


def parse_topics(name: str, text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of topics; duplicates are dropped."""
    topics = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not topics:
        raise ConfigurationError(f"Option {name} must be a comma-separated list of topics, got {text!r}.")
    return topics


def parse_pattern(name: str, text: str) -> str:
    """Parses a regular expression of Python's ``re`` module."""
    try:
        re.compile(parse_text(name, text))
    except re.error as error:
        raise ConfigurationError(
            f"Option {name} must be a regular expression of Python's re module, got {text!r}: {error}."
        ) from error
    return text.strip()


def parse_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parses ``{"topic":[0,1]}``."""
    try:
        chosen = json.loads(text)
        pairs = sorted({TopicPartition(topic, int(p)) for topic, numbers in chosen.items() for p in numbers})
        if any(p < 0 for _, p in pairs):
            raise ValueError("negative partition number")
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f'Option {name} must be JSON such as {{"topic":[0,1]}}, got {text!r}.') from error
    if not pairs:
        raise ConfigurationError(f"Option {name} must list at least one partition, got {text!r}.")
    return tuple(pairs)


def parse_members(name: str, text: str) -> int | None:
    """Parses a number of members; ``auto`` is None."""
    if text.strip().lower() == "auto":
        return None
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text.strip()):
        raise ConfigurationError(f"Option {name} must be auto or a positive integer, got {text!r}.")
    return int(text.strip())


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
