"""Reads Chakra execution traces in their binary form, without a protobuf library: the few messages are small.

A file is a sequence of messages, each after its length as a varint: first `GlobalMetadata`, then a `Node` each
(mlcommons/chakra, schema/protobuf/et_def.proto). Fields that are read (number: name, wire type):

    Node            1 id v   2 name l   3 type v   4 ctrl_deps l/v   5 data_deps l/v   6 start_time_micros v
                    7 duration_micros v   10 attr l
    AttributeProto  1 name l   3 double f64   5 float f32   7/9/11/13 int v   15/17 sint v   19 fixed32   21 fixed64
                    23 sfixed32   25 sfixed64   27 bool v   29 string l   (lists are skipped)

v varint, l length-delimited (repeated numbers come packed in one, or one by one as varints), f fixed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.studies.traces.chakra.node import ChakraFile, Node
from windtunnel.studies.traces.kineto.file import unpacked

_Value = int | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
NODES_MOST = 10_000_000
_FORMATS = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}


class _DamagedError(ValueError):
    """The bytes are no message."""


def read_wire(path: Path) -> ChakraFile:
    """Read `path`; of a file that is cut off, the nodes before that point.

    Raises:
        InputFileError: no node can be read.
    """
    content, cut = unpacked(path)
    nodes: list[Node] = []
    at, number = 0, 0
    try:
        while at < len(content):
            size, at = _varint(content, at)
            if at + size > len(content):
                raise _DamagedError("ends in the middle of a message")
            if size == 0 or number > NODES_MOST:
                raise _DamagedError("says nothing, or goes on for ever")
            message = content[at : at + size]
            at += size
            if number == 0 and _is_metadata(message):
                number = 1
                continue
            nodes.append(_node(message))
            number += 1
    except (_DamagedError, struct.error):
        cut = True
    if not nodes:
        raise InputFileError(path, "is no Chakra execution trace", "give one .et file per rank, or Kineto traces")
    notes = (f"cut off or damaged: the {len(nodes):,} nodes before that point were used",) if cut else ()
    return ChakraFile(path, nodes, notes)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _DamagedError("no varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(message: bytes) -> Iterator[tuple[int, int, _Value]]:
    """(number, wire type, value) of each field."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise _DamagedError("field 0")
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise _DamagedError("unknown wire type")
        if at + size > len(message):
            raise _DamagedError("a field is longer than its message")
        yield number, wire, message[at : at + size]
        at += size


def _is_metadata(message: bytes) -> bool:
    """`GlobalMetadata` has a text where a node has its number."""
    return all(number <= 2 and wire == _BYTES for number, wire, _ in _fields(message))


def _node(message: bytes) -> Node:
    name = ""
    needs: list[int] = []
    attributes: dict[str, object] = {}
    numbers: dict[int, int] = {}
    for number, wire, value in _fields(message):
        if number in (4, 5):
            needs += _packed(value)
        elif isinstance(value, int):
            numbers[number] = value
        elif number == 2 and wire == _BYTES:
            name = value.decode("utf-8", "replace")
        elif number == 10 and wire == _BYTES:
            key, content = _attribute(value)
            attributes[key] = content
    id_, kind, start, duration = (numbers.get(number, 0) for number in (1, 3, 6, 7))
    return Node(id_, name, kind, tuple(needs), start, duration, attributes)


def _packed(value: _Value) -> list[int]:
    if isinstance(value, int):
        return [value]
    found: list[int] = []
    at = 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(one)
    return found


def _attribute(message: bytes) -> tuple[str, object]:
    name = ""
    content: object = None
    for number, _, value in _fields(message):
        if isinstance(value, int):
            if number in (7, 9):
                content = value - (1 << 64) if value >> 63 else value  # negative numbers fill all 64 bits
            elif number in (15, 17):
                content = (value >> 1) ^ -(value & 1)
            elif number == 27:
                content = bool(value)
            elif number in (11, 13):
                content = value
        elif number == 1:
            name = value.decode("utf-8", "replace")
        elif number == 29:
            content = value.decode("utf-8", "replace")
        elif number in _FORMATS:
            content = struct.unpack(_FORMATS[number], value)[0]
    return name, content
