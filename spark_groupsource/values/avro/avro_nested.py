"""Reading of Avro records, unions, arrays and maps into Arrow columns.

Source: Avro specification 1.12 (binary encoding), Spark `AvroDeserializer`.
"""

from __future__ import annotations

from array import array
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.records.columns.arrow_arrays import booleans, fixed_width, integers, to_numbers
from spark_groupsource.values.avro.avro_columns import AvroNode, Bytes
from spark_groupsource.values.lanes import avro_lanes as reasons
from spark_groupsource.values.lanes.avro_lanes import Lanes, ValueBytes
from spark_groupsource.values.lanes.avro_scan import DamagedValueError, read_block_count, read_long
from spark_groupsource.values.lanes.binary_blocks import Ints

# a step over fewer lanes than this costs more than finding the items one by one
_FEW_LANES = 150
# items that are read together after they were found one by one
_PIECE = 1 << 16


class RecordNode:
    """A record.

    Args:
        fields: of the writer, with the name of the reader's field; it is empty for a field that is not selected.
        defaults: of the reader's fields that the writer does not have, as arrays of one value.
    """

    def __init__(
        self, fields: Sequence[tuple[str, AvroNode]], defaults: Mapping[str, pa.Array], kind: pa.DataType | None
    ) -> None:
        self._kind = kind
        self._fields = fields
        self._defaults = defaults

    def skip(self, data: ValueBytes, at: int) -> int:
        for _, each in self._fields:
            at = each.skip(data, at)
            if at > len(data):
                raise IndexError
        return at

    def read(self, lanes: Lanes) -> pa.Array | None:
        if self._kind is None:
            for _, each in self._fields:
                # a type that is used repeatedly may have more fields than any value has bytes
                if lanes.reason.all():
                    return None
                each.read(lanes)
            return None
        found = {name: each.read(lanes) for name, each in self._fields}
        if not self._kind.num_fields:
            return pa.Array.from_buffers(self._kind, len(lanes), [None])
        same = integers(np.zeros(len(lanes), np.int64)) if self._defaults else None
        columns = [
            self._defaults[each.name].take(same) if each.name in self._defaults else found[each.name]
            for each in self._kind
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


class Branch(NamedTuple):
    """A branch of the writer's union, and the member of the struct that it becomes; empty without."""

    member: str
    node: AvroNode


class UnionNode:
    """A union.

    In Spark it is its only type other than null, the wider of two numbers, or a struct of its members.
    """

    def __init__(self, branches: Sequence[Branch], is_struct: bool, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._branches = branches
        self._is_struct = is_struct and kind is not None

    def skip(self, data: ValueBytes, at: int) -> int:
        branch, at = read_long(data, at)
        if not 0 <= branch < len(self._branches):
            raise DamagedValueError(reasons.BRANCH)
        return self._branches[branch].node.skip(data, at)

    def read(self, lanes: Lanes) -> pa.Array | None:
        branch = lanes.long()
        lanes.fail((branch < 0) | (branch >= len(self._branches)), reasons.BRANCH)
        if not self._is_struct:
            first = int(branch[0]) if len(branch) else 0
            if 0 <= first < len(self._branches) and (branch == first).all():
                return self._branches[first].node.read(lanes)
        parts: dict[str, list[tuple[Ints, pa.Array]]] = {}
        for at, (member, node) in enumerate(self._branches):
            index = np.flatnonzero(branch == at)
            part = lanes.subset(index)
            column = node.read(part)
            lanes.merge(index, part)
            if column is not None:
                parts.setdefault(member, []).append((index, column))
        if self._kind is None:
            return None
        if not self._is_struct:
            return _scattered(len(lanes), parts.get("", []), self._kind)
        columns = [_scattered(len(lanes), parts.get(field.name, []), field.type) for field in self._kind]
        present = np.isin(branch, [at for at, (member, _) in enumerate(self._branches) if member])
        return pa.StructArray.from_arrays(columns, fields=list(self._kind), mask=booleans(~present))


class MemberNode:
    """A type that is one member of the reader's union; `name` is empty for one that is not selected."""

    def __init__(self, name: str, node: AvroNode, kind: pa.DataType) -> None:
        self._name = name
        self._node = node
        self._kind = kind

    def skip(self, data: ValueBytes, at: int) -> int:
        return self._node.skip(data, at)

    def read(self, lanes: Lanes) -> pa.Array | None:
        found = self._node.read(lanes)
        columns = [found if field.name == self._name else pa.nulls(len(lanes), field.type) for field in self._kind]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _scattered(rows: int, parts: list[tuple[Ints, pa.Array]], kind: pa.DataType) -> pa.Array:
    """Returns a column with each array's values at its rows, and null elsewhere."""
    if not parts:
        return pa.nulls(rows, kind)
    joined = pa.concat_arrays([column for _, column in parts])
    places = np.full(rows, -1, np.int64)
    places[np.concatenate([index for index, _ in parts])] = np.arange(len(joined))
    return joined.take(integers(places, places >= 0))


class _Items:
    """Items that were read, with the lane of each."""

    def __init__(self) -> None:
        self.owners: list[Ints] = []
        self.keys: list[pa.Array] = []
        self.items: list[pa.Array] = []

    def add(self, owners: Ints, key: pa.Array | None, item: pa.Array | None) -> None:
        if item is not None:
            self.owners.append(owners)
            self.items.append(item)
            self.keys += [key] if key is not None else []


class ArrayNode:
    """An array, or a map, whose items are a key and a value.

    Every step reads the next item of all arrays that have one. When few have one, their items are found one by one,
    and then read together: an array with many more items than the others costs no step for each.

    Args:
        is_empty: whether the items have no bytes.
    """

    def __init__(self, item: AvroNode, is_map: bool, is_empty: bool, kind: pa.DataType | None) -> None:
        self._kind = kind
        self._item = item
        self._key = Bytes(None if kind is None else pa.string()) if is_map else None
        self._is_empty = is_empty and not is_map

    def skip(self, data: ValueBytes, at: int) -> int:
        while True:
            count, at = read_block_count(data, at, self._is_empty)
            if not count:
                return at
            for _ in range(count):
                at = self._skip_item(data, at)

    def _skip_item(self, data: ValueBytes, at: int) -> int:
        return self._item.skip(data, at if self._key is None else self._key.skip(data, at))

    def read(self, lanes: Lanes) -> pa.Array | None:
        found = _Items()
        active = np.arange(len(lanes))
        rest = np.zeros(len(lanes), np.int64)
        while len(active) > _FEW_LANES:
            ended = active[rest[active] == 0]
            if len(ended):
                rest[ended] = self._block_counts(lanes, ended)
                active = active[rest[active] > 0]
            if not len(active):
                break
            part = lanes.subset(active)
            found.add(active, *self._read_items(part))
            lanes.merge(active, part)
            rest[active] -= 1
            # an array with invalid bytes has no further items
            active = active[(lanes.reason[active] == 0)]
        self._read_alone(lanes, active, rest, found)
        return None if self._kind is None else self._assembled(len(lanes), found)

    def _read_items(self, lanes: Lanes) -> tuple[pa.Array | None, pa.Array | None]:
        key = None if self._key is None else self._key.read(lanes)
        return key, self._item.read(lanes)

    def _block_counts(self, lanes: Lanes, ended: Ints) -> Ints:
        part = lanes.subset(ended)
        count = part.long()
        negative = np.flatnonzero(count < 0)
        if len(negative):
            sized = part.subset(negative)
            sized.long()
            part.merge(negative, sized)
            count[negative] = -count[negative]
        limit = part.empty_items if self._is_empty else part.end - part.position
        failed = (count < 0) | (count > limit)
        part.fail(failed & (part.reason == 0), reasons.BLOCK)
        if self._is_empty:
            np.subtract(part.empty_items, count, out=part.empty_items, where=part.reason == 0)
        lanes.merge(ended, part)
        found: Ints = np.where(part.reason == 0, count, 0)
        return found

    def _read_alone(self, lanes: Lanes, active: Ints, rest: Ints, found: _Items) -> None:
        """Reads the remaining items of some lanes; `rest` are those of the present block."""
        positions = _Positions(lanes)
        ended: list[tuple[int, int]] = []
        for lane in active[lanes.reason[active] == 0].tolist():
            begin, data = int(lanes.position[lane]), lanes.value(lane)
            positions.begin_lane(lane, begin)
            count, at, reason = int(rest[lane]), 0, 0
            try:
                while True:
                    if not count:
                        count, at = read_block_count(data, at, self._is_empty)
                        if not count:
                            break
                    some = min(count, _PIECE)
                    at = positions.find(self._skip_item, data, at, some)
                    count -= some
                    if len(positions.ends) >= _PIECE:
                        self._read_found(lanes, positions, found)
                        positions.begin_lane(lane, begin)
            except IndexError:
                reason = reasons.TRUNCATED
            except DamagedValueError as error:
                reason = error.reason
            if reason or at > len(data):
                ended.append((lane, reason or reasons.TRUNCATED))
            else:
                lanes.position[lane] = begin + at
            lanes.keep_empty_items(lane, data)
        self._read_found(lanes, positions, found)
        # an invalid item is the reason, if there is one
        for lane, reason in ended:
            lanes.fail_lane(lane, reason)

    def _read_found(self, lanes: Lanes, positions: _Positions, found: _Items) -> None:
        owners, part = positions.take()
        if not len(owners):
            return
        found.add(owners, *self._read_items(part))
        part.fail(part.position != part.end, reasons.TRUNCATED)
        failed = np.flatnonzero(part.reason)
        # of several invalid items the first is the reason
        for item in failed[np.unique(owners[failed], return_index=True)[1]]:
            lanes.fail_lane(int(owners[item]), int(part.reason[item]))

    def _assembled(self, count: int, found: _Items) -> pa.Array:
        kind = self._kind
        assert kind is not None
        owners = np.concatenate(found.owners) if found.owners else np.empty(0, np.int64)
        is_ordered = bool((owners[1:] >= owners[:-1]).all())
        order = None if is_ordered else np.argsort(owners, kind="stable")

        def ordered(arrays: list[pa.Array], element: pa.DataType) -> pa.Array:
            joined = pa.concat_arrays(arrays) if arrays else pa.nulls(0, element)
            return joined if order is None else joined.take(integers(order))

        if self._key is None:
            offsets = _offsets(owners, count)
            return pa.ListArray.from_arrays(offsets, ordered(found.items, kind.value_type), type=kind)
        owners = owners if order is None else owners[order]
        keys, items = ordered(found.keys, kind.key_type), ordered(found.items, kind.item_type)
        owners, keys, items = _without_repeated_keys(owners, keys, items)
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        limits = _offsets(owners, count).buffers()[1]
        return pa.Array.from_buffers(kind, count, [None, limits], children=[entries])


def _offsets(owners: Ints, count: int) -> pa.Array:
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=ends[1:])
    return fixed_width(pa.int32(), ends)


def _without_repeated_keys(owners: Ints, keys: pa.Array, items: pa.Array) -> tuple[Ints, pa.Array, pa.Array]:
    """Returns the entries of maps, in the order of the maps; of a key that is repeated the last value, as in Java."""
    if not (owners[1:] == owners[:-1]).any():
        return owners, keys, items
    encoded = keys.dictionary_encode()
    entry = owners * len(encoded.dictionary) + to_numbers(encoded.indices)
    if pc.count_distinct(integers(entry)).as_py() == len(entry):
        return owners, keys, items
    first = np.unique(entry, return_index=True)[1]
    last = len(entry) - 1 - np.unique(entry[::-1], return_index=True)[1]
    order = np.argsort(first)
    kept = first[order]
    return owners[kept], keys.take(integers(kept)), items.take(integers(last[order]))


class _Positions:
    """Positions of items of some lanes, found one by one."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._begin()

    def _begin(self) -> None:
        self._owners: list[tuple[int, int, int]] = []
        self.starts, self.ends = array("q"), array("q")
        # of invalid items
        self._empty_items: dict[int, int] = {}

    def begin_lane(self, lane: int, begin: int) -> None:
        """Begins with the items of a lane, whose positions are relative to `begin`."""
        self._owners.append((lane, begin, len(self.ends)))

    def find(self, skip: Callable[[ValueBytes, int], int], data: ValueBytes, at: int, count: int) -> int:
        """Finds some items; returns the position after the last one. An item that is invalid ends with the value."""
        starts, ends, empty_items = self.starts, self.ends, data.empty_items
        try:
            for _ in range(count):
                starts.append(at)
                empty_items = data.empty_items
                at = skip(data, at)
                ends.append(at)
        finally:
            if len(ends) < len(starts):
                self._empty_items[len(ends)] = empty_items
                ends.append(len(data))
        return at

    def take(self) -> tuple[Ints, Lanes]:
        """Returns the lane of each item, and the items as lanes; removes them."""
        lane, begin, first = np.array(self._owners, np.int64).reshape(-1, 3).T
        counts = np.diff(first, append=len(self.ends))
        owners, base = np.repeat(lane, counts), np.repeat(begin, counts)
        limit = self._lanes.end[owners]
        start = np.minimum(base + np.frombuffer(self.starts, np.int64), limit) if len(owners) else base
        end = np.minimum(base + np.frombuffer(self.ends, np.int64), limit) if len(owners) else base
        found = Lanes(self._lanes.payload, start, end)
        for item, empty_items in self._empty_items.items():
            found.empty_items[item] = empty_items
        self._begin()
        return owners, found
