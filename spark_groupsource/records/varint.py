"""Zigzag varints and Java's 64-bit arithmetic, as record batches use them.

Source: Kafka `ByteUtils`.
"""

from __future__ import annotations


def read_varint(payload: bytes, position: int, max_bytes: int = 5) -> tuple[int, int]:
    """Returns a zigzag varint and the position after it. 5 bytes hold 32 bits, 10 hold 64; excess bits are dropped.

    Raises: ValueError if it does not end within `max_bytes`; IndexError if the payload ends first.
    """
    raw = shift = 0
    while True:
        byte = payload[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * max_bytes:
            raise ValueError(f"a varint is longer than {max_bytes} bytes")
    raw &= 0xFFFFFFFF if max_bytes == 5 else 0xFFFFFFFFFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), position


def encode_varint(value: int) -> bytes:
    """Returns `value` as a zigzag varint."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def write_varint(out: bytearray, value: int) -> None:
    """Appends `value` as a zigzag varint."""
    if 0 <= value < 64:
        out.append(value << 1)
        return
    write_uvarint(out, value << 1 if value >= 0 else ~(value << 1))


def write_uvarint(out: bytearray, value: int) -> None:
    """Appends `value`, which must not be negative, as a varint without zigzag."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def wrap_int64(value: int) -> int:
    """Returns `value` after the overflow of Java's long arithmetic."""
    return (value + 0x8000000000000000 & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000
