"""Batches that repeat an earlier one, except for values.

A group commits the same partitions again and again. Such a batch differs from the previous one in its values only, so
it needs no parsing: one comparison of all other bytes shows that it has the same keys in the same places.
"""

from __future__ import annotations

from typing import Any

from spark_groupsource.records.header import BatchHeader
from spark_groupsource.records.key_values import KeyValue, first_key, value_places

_MIN_RECORDS = 8
_MAX_FORM_BYTES, _MAX_BYTES = 65_536, 4_194_304
_MAX_SEEN = 2_000
_MAX_MISSES = 4
_MIN_HITS = 16  # of each form on average, before others take its place

_Known = tuple[bytes, int, int, int]
"""The first key, the bytes of the records, their number, and the largest offset delta."""


class BatchForm:
    """The bytes of a batch of records outside of values; `count`: of the records."""

    __slots__ = ("count", "misses", "_array", "_bytes", "_keys", "_mask", "_places")

    def __init__(self, payload: bytes, places: list[tuple[bytes, int, int]]) -> None:
        self.count = len(places)
        self.misses = 0
        import numpy as np  # a broker without repeated commits does not need it

        self._array: Any = np.frombuffer
        mask = self._mask = np.full(len(payload), 0xFF, np.uint8)
        for _, begin, end in places:
            mask[begin:end] = 0
        self._bytes = self._outside_values(payload)
        self._keys = [key for key, _, _ in places]
        self._places = [slice(begin, end) for _, begin, end in places]

    def is_of(self, payload: bytes) -> bool:
        """Returns whether a batch of the same length has this form."""
        return self._outside_values(payload) == self._bytes

    def _outside_values(self, payload: bytes) -> bytes:
        """Returns a payload with zeros in place of values: bytes are compared faster than arrays."""
        found: bytes = (self._array(payload, self._mask.dtype) & self._mask).tobytes()
        return found

    def pairs(self, payload: bytes) -> list[KeyValue]:
        """Returns the keys and values of a batch of this form."""
        return [(key, payload[place]) for key, place in zip(self._keys, self._places)]


class BatchForms:
    """The forms of the batches of one log, as many as fit into a bounded memory."""

    def __init__(self) -> None:
        self._seen: set[_Known] = set()  # once
        self._forms: dict[_Known, BatchForm] = {}
        self._bytes = self._hits = 0

    def find(self, payload: bytes, header: BatchHeader) -> BatchForm | None:
        """Returns the form of a batch, None if it is new or the batch has another one."""
        if header.record_count < _MIN_RECORDS or len(payload) > _MAX_FORM_BYTES:
            return None
        try:
            known = (first_key(payload), len(payload), header.record_count, header.last_offset_delta)
            form = self._forms.get(known)
            if form is None:
                form = self._new_form(known, payload, header)
            elif form.misses >= _MAX_MISSES or not form.is_of(payload):
                form.misses += 1  # other keys, or a record of another form
                return None
        except (IndexError, ValueError):
            return None
        self._hits += form is not None
        return form

    def _new_form(self, known: _Known, payload: bytes, header: BatchHeader) -> BatchForm | None:
        """Makes a form at the second sight, because it takes longer to make than to read a few batches."""
        if known not in self._seen:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen.add(known)
            return None
        if self._bytes > _MAX_BYTES:
            if self._hits < _MIN_HITS * len(self._forms):
                return None
            self._forms, self._bytes, self._hits = {}, 0, 0
        form = self._forms[known] = BatchForm(payload, value_places(payload, header))
        self._bytes += 6 * len(payload)  # the bytes themselves, mask, keys and slices
        return form
