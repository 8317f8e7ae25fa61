"""Reads Chakra execution traces in their binary form, without protobuf's library: the few messages are small.

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
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.protobuf import BYTES, DamagedError, Value, fields_of, varint
from windtunnel.studies.traces.chakra.node import ChakraFile, Node
from windtunnel.studies.traces.kineto.file import unpacked

NODES_MOST = 10_000_000
_FORMATS = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}


def read_wire(path: Path) -> ChakraFile:
    """Read `path`; of a file that is cut off, the nodes before that point.

    Raises InputFileError: no node can be read.
    """
    content, cut = unpacked(path)
    nodes: list[Node] = []
    at, number = 0, 0
    try:
        while at < len(content):
            size, at = varint(content, at)
            if at + size > len(content):
                raise DamagedError("ends in the middle of a message")
            if size == 0 or number > NODES_MOST:
                raise DamagedError("says nothing, or goes on for ever")
            message = content[at : at + size]
            at += size
            if number == 0 and all(field <= 2 and wire == BYTES for field, wire, _ in fields_of(message)):
                number = 1  # `GlobalMetadata` has a text where a node has its number
                continue
            nodes.append(_node(message))
            number += 1
    except (DamagedError, struct.error):
        cut = True
    if not nodes:
        raise InputFileError(path, "is no Chakra execution trace", "give one .et file per rank, or Kineto traces")
    notes = (f"cut off or damaged: the {len(nodes):,} nodes before that point were used",) if cut else ()
    return ChakraFile(path, nodes, notes)


def _node(message: bytes) -> Node:
    name = ""
    needs: list[int] = []
    attributes: dict[str, object] = {}
    numbers: dict[int, int] = {}
    for number, wire, value in fields_of(message):
        if number in (4, 5):
            needs += _packed(value)
        elif isinstance(value, int):
            numbers[number] = value
        elif number == 2 and wire == BYTES:
            name = value.decode("utf-8", "replace")
        elif number == 10 and wire == BYTES:
            key, content = _attribute(value)
            attributes[key] = content
    id_, kind, start, duration = (numbers.get(number, 0) for number in (1, 3, 6, 7))
    return Node(id_, name, kind, tuple(needs), start, duration, attributes)


def _packed(value: Value) -> list[int]:
    if isinstance(value, int):
        return [value]
    numbers: list[int] = []
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        numbers.append(number)
    return numbers


def _attribute(message: bytes) -> tuple[str, object]:
    name = ""
    content: object = None
    for number, _, value in fields_of(message):
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
