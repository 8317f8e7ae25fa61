"""Reads messages of protobuf without its library: varints and the fields of a message."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
Value = int | bytes


class DamagedError(ValueError):
    """The bytes are no message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a byte, and the byte behind it. Raises DamagedError."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DamagedError("no varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields_of(message: bytes) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of each field: varints as numbers, all else as its bytes. Raises DamagedError."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise DamagedError("field 0")
        if wire == VARINT:
            value, at = varint(message, at)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, at = varint(message, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise DamagedError("unknown wire type")
        if at + size > len(message):
            raise DamagedError("a field is longer than its message")
        yield number, wire, message[at : at + size]
        at += size
