"""Positions of the fields of many Protobuf values.

Serializers write fields in the order of their numbers and leave out those that are not set. Every step reads the least
tag of all lanes, so the lanes that have a field read it together. A step that few lanes take costs more than reading
these lanes one by one to their ends: a value with many more fields than the others costs no step for each.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_lanes import Lanes, Words
from spark_groupsource.values.lanes.avro_scan import DamagedValueError, read_unsigned
from spark_groupsource.values.lanes.binary_blocks import Ints
from spark_groupsource.values.lanes.protobuf_scan import (
    DELIMITED,
    FIXED_SIZES,
    GROUP,
    MAX_TAG,
    VARINT,
    read_value,
)

_FEW_LANES = 16
# after so many steps that less than one of `_SPARSE` lanes take, all are read one by one
_MAX_SPARSE, _SPARSE = 256, 64
_END = 1 << 62


class Found(NamedTuple):
    """Values with one tag, in increasing positions.

    Attributes:
        lanes: lane of each.
        start: position of its first byte.
        length: bytes of a delimited value or a group, without the end of the group; empty for others.
        number: of a varint, empty for others.
    """

    lanes: Ints
    start: Ints
    length: Ints
    number: Words


class FieldLayout(NamedTuple):
    """What the fields of a message may be.

    Attributes:
        wires: number of a field -> its wire types.
        oneofs: number of a field -> index of its oneof.
    """

    wires: Mapping[int, frozenset[int]]
    oneofs: Mapping[int, int]


class Fields:
    """The fields of some lanes.

    Attributes:
        found: tag -> values; those of a lane are in their order.
    """

    def __init__(self, lanes: Lanes, layout: FieldLayout) -> None:
        self._lanes = lanes
        self._layout = layout
        self.found: dict[int, list[Found]] = {}
        self._last: dict[int, tuple[Ints, Ints, Ints]] = {}
        self._alone: dict[int, list[tuple[int, int, int, int]]] = {}
        self._read()

    def values(self, number: int, wire: int) -> list[Found]:
        """Returns the values of a field with one wire type."""
        return self.found.get(number << 3 | wire, [])

    def last_other(self, number: int) -> Ints:
        """Returns where each lane sets another field of the oneof of a field last; -1 if it sets none."""
        oneof = self._layout.oneofs[number]
        if oneof not in self._last:
            self._last[oneof] = self._last_two(oneof)
        owner, last, before = self._last[oneof]
        return np.where(owner == number, before, last)

    def _last_two(self, oneof: int) -> tuple[Ints, Ints, Ints]:
        """Returns the field of a oneof that each lane sets last, where, and where it sets another one last."""
        owner, last, before = (np.full(len(self._lanes), -1) for _ in range(3))
        members = [number for number, each in self._layout.oneofs.items() if each == oneof]
        found = [
            (each.lanes, each.start, np.full(len(each.lanes), number))
            for number in members
            for wire in self._layout.wires[number]
            for each in self.values(number, wire)
        ]
        if found:
            lanes, start, numbers = (np.concatenate(parts) for parts in zip(*found))
            order = np.argsort(start, kind="stable")
            lanes, start, numbers = lanes[order], start[order], numbers[order]
            # of several assignments to a lane the last one remains
            owner[lanes], last[lanes] = numbers, start
            is_other = numbers != owner[lanes]
            before[lanes[is_other]] = start[is_other]
        return owner, last, before

    def _read(self) -> None:
        lanes = self._lanes
        tags = _next_tags(lanes)
        active = np.flatnonzero(tags < _END)
        sparse = 0
        while len(active):
            current = tags[active]
            tag = int(current.min())
            same = current == tag
            rows = active if same.all() else active[same]
            sparse += len(rows) * _SPARSE < len(active)
            if sparse > _MAX_SPARSE:
                rows = active
            if len(rows) <= _FEW_LANES or tag & 7 == GROUP or sparse > _MAX_SPARSE:
                for lane in rows.tolist():
                    self._read_alone(lane, int(tags[lane]))
                tags[rows] = _END
            else:
                part = lanes if len(rows) == len(lanes) else lanes.subset(rows)
                self._read_together(part, rows, tag)
                tags[rows] = _next_tags(part)
                if part is not lanes:
                    lanes.merge(rows, part)
            active = active[tags[active] < _END]
        for tag, values in self._alone.items():
            lane, start, length, number = zip(*sorted(values))
            is_sized = tag & 7 in (DELIMITED, GROUP)
            self.found.setdefault(tag, []).append(
                Found(
                    np.array(lane),
                    np.array(start),
                    np.array(length if is_sized else (), np.int64),
                    np.array(number if tag & 7 == VARINT else (), np.uint64),
                )
            )

    def _problem(self, tag: int) -> int:
        """Returns why a tag is malformed, 0 if it is not."""
        number, wire = tag >> 3, tag & 7
        if number == 0 or tag > MAX_TAG or wire not in (VARINT, DELIMITED, GROUP, *FIXED_SIZES):
            return reasons.TAG
        return reasons.WIRE_TYPE if wire not in self._layout.wires.get(number, (wire,)) else 0

    def _read_together(self, part: Lanes, rows: Ints, tag: int) -> None:
        number, wire = tag >> 3, tag & 7
        problem = self._problem(tag)
        if problem:
            part.fail(np.ones(len(part), np.bool_), problem)
            return
        raw = np.empty(0, np.uint64)
        if wire == VARINT:
            start = part.position.copy()
            raw = part.varint()
            length = np.empty(0, np.int64)
        elif wire == DELIMITED:
            start, length = part.delimited()
        else:
            start = part.skip(FIXED_SIZES[wire])
            length = np.empty(0, np.int64)
        if number in self._layout.wires:
            self.found.setdefault(tag, []).append(Found(rows, start, length, raw))

    def _read_alone(self, lane: int, tag: int) -> None:
        """Reads one lane to its end; `tag` is that of its next field."""
        lanes, layout = self._lanes, self._layout
        begin = int(lanes.position[lane])
        data = lanes.payload[begin : lanes.end[lane]].tobytes()
        at = 0
        try:
            while True:
                problem = self._problem(tag)
                if problem:
                    raise DamagedValueError(problem)
                number, start, end, at = read_value(data, at, tag)
                if tag >> 3 in layout.wires:
                    self._alone.setdefault(tag, []).append((lane, begin + start, end - start, number))
                if at == len(data):
                    break
                tag, at = read_unsigned(data, at)
            lanes.position[lane] = begin + at
        except (IndexError, DamagedValueError) as error:
            reason = error.reason if isinstance(error, DamagedValueError) else reasons.TRUNCATED
            lanes.fail_lane(lane, reason)


def _next_tags(lanes: Lanes) -> npt.NDArray[np.int64]:
    """Reads the next tag of each lane; `_END` for lanes at their end."""
    is_read = lanes.position < lanes.end
    tags: Ints = (lanes.word(lanes.position) & np.uint64(0xFF)).view(np.int64)
    is_long = (tags >= 0x80) & is_read
    lanes.position += is_read
    if is_long.any():
        index = np.flatnonzero(is_long)
        part = lanes.subset(index)
        part.position -= 1
        tags[index] = part.varint().view(np.int64)
        lanes.merge(index, part)
    tags[~is_read] = _END
    # unsigned numbers of 64 bits are negative
    is_invalid = is_read & ((tags < 0) | (tags > MAX_TAG))
    lanes.fail(is_invalid, reasons.TAG)
    tags[is_invalid | (lanes.reason != 0)] = _END
    return tags
