"""Division of a large snappy block into parts that decompress separately.

The usual compressors write fragments of 64 KiB that do not refer to one another, so a block can be cut between them.

Source: https://github.com/google/snappy/blob/main/format_description.txt.
"""

from __future__ import annotations

from typing import Iterator

_FRAGMENT_BYTES = 1 << 16
_PART_BYTES = 1 << 18


def snappy_parts(data: memoryview, position: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yields (begin, end, decompressed bytes) of consecutive parts of the block whose elements start at `position`.

    It ends before the first part that refers to an earlier one. `size` is the decompressed size of the block.

    Raises: ValueError if the elements exceed the block or do not add up to `size`.
    """
    begin, begin_out, out, end = position, 0, 0, len(data)
    try:
        while position < end:
            tag = data[position]
            kind = tag & 3
            if kind == 0:
                length = (tag >> 2) + 1
                if length > 60:
                    extra = length - 60
                    length = int.from_bytes(data[position + 1 : position + 1 + extra], "little") + 1
                    position += extra
                position += 1 + length
            else:
                if kind == 1:
                    length = 4 + (tag >> 2 & 7)
                    offset = (tag >> 5) << 8 | data[position + 1]
                    position += 2
                else:
                    length, width = (tag >> 2) + 1, 2 if kind == 2 else 4
                    offset = int.from_bytes(data[position + 1 : position + 1 + width], "little")
                    position += 1 + width
                if offset > out - begin_out:
                    return
            out += length
            if out - begin_out >= _PART_BYTES and out % _FRAGMENT_BYTES == 0:
                yield begin, position, out - begin_out
                begin, begin_out = position, out
    except IndexError:
        position = end + 1
    if position != end or out != size:
        raise ValueError(f"a block of {end} bytes does not decompress to {size} bytes")
    if out > begin_out:
        yield begin, end, out - begin_out
