"""A node of a Chakra execution trace, as both of its forms (protobuf and JSON) give it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class NodeType(IntEnum):
    """`NodeType` of mlcommons/chakra, schema/protobuf/et_def.proto."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7
    STORAGE_NODE = 8
    BATCH_NODE = 9
    CHECKPOINT_NODE = 10


class Node(NamedTuple):
    """What the import needs of a node."""

    id: int
    name: str
    type: int
    needs: tuple[int, ...]  # control and data dependencies
    start_us: float
    duration_us: float
    attributes: dict[str, object]


@dataclass(frozen=True, eq=False)
class ChakraFile:
    """The nodes of one rank."""

    path: Path
    nodes: list[Node]
    notes: tuple[str, ...] = field(default=())
