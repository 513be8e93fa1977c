"""Checks that a decoder rejects truncated and extended bytes."""

from __future__ import annotations

import pytest

from spark_groupsource.errors import CorruptRecordError


def check_damage(decode, data):
    """Asserts that incomplete records and trailing bytes are corrupt."""
    for end in range(len(data)):
        with pytest.raises(CorruptRecordError, match="have no version|is corrupt"):
            decode(data[:end])
    with pytest.raises(CorruptRecordError, match="it ends at byte"):
        decode(data + b"\0")
