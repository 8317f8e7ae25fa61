"""Reads Chakra nodes from JSON: the form of protobuf's JSON mapping, keys in either spelling (ctrlDeps, ctrl_deps).

`{"nodes": [...]}`, or what the Chakra jsonizer writes: one object after another, the metadata first. 64-bit numbers may
be texts, as protobuf's mapping has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.studies.traces.chakra.node import ChakraFile, Node, NodeType
from windtunnel.studies.traces.json_trace import JsonTrace, whole_values

_VALUE = re.compile(r"(double|float|s?int32|s?int64|uint32|uint64|s?fixed32|s?fixed64|bool|string)_?[vV]al")


def nodes_of(trace: JsonTrace) -> ChakraFile:
    """The nodes of a JSON file. Raises InputFileError: it holds no node, or a Kineto trace."""
    if trace.is_kineto:
        raise InputFileError(trace.path, "is a Kineto trace among Chakra traces", "give traces of one format at a time")
    nodes: list[Node] = []
    damaged = 0
    for item in trace.items:
        node = _node(item) if isinstance(item, dict) else None
        if node is None:
            damaged += 1
        else:
            nodes.append(node)
    if not nodes:
        raise InputFileError(trace.path, "holds no Chakra node", "give a trace with nodes that have an id and a type")
    notes = (*trace.notes, *((f"{damaged:,} nodes without usable id or type left out",) if damaged else ()))
    return ChakraFile(trace.path, nodes, notes)


def concatenated(path: Path, text: str) -> JsonTrace | None:
    """One JSON object after another, as the Chakra jsonizer writes them; None if `text` is not that."""
    items, ended = whole_values(text, 0)
    notes = () if ended else (f"cut off or damaged: the {len(items):,} objects before that point were used",)
    nodes = [item for item in items if isinstance(item, dict) and "id" in item]
    return JsonTrace(path, nodes, False, {}, notes) if nodes else None


def _node(item: Mapping[str, object]) -> Node | None:
    kind = item.get("type", 0)
    if isinstance(kind, str):
        kind = NodeType[kind] if kind in NodeType.__members__ else None
    number = _whole(item.get("id"))
    if number is None or not isinstance(kind, int):
        return None
    needs: list[int] = []
    for key in ("ctrlDeps", "ctrl_deps", "dataDeps", "data_deps"):
        value = item.get(key, ())
        needs += [node for node in map(_whole, value if isinstance(value, list) else (value,)) if node is not None]
    times = [
        next((amount for amount in (_amount(item.get(key)) for key in keys) if amount is not None), 0.0)
        for keys in (("startTimeMicros", "start_time_micros"), ("durationMicros", "duration_micros"))
    ]
    attributes: dict[str, object] = {}
    entries = item.get("attr") or item.get("attrs")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            for key, value in entry.items():
                if _VALUE.fullmatch(key):
                    # Texts stand for 64-bit numbers, except where the type is a text.
                    whole = None if key.startswith(("string", "bool")) else _whole(value)
                    attributes[entry["name"]] = value if whole is None else whole
    return Node(number, str(item.get("name", "")), kind, tuple(needs), times[0], times[1], attributes)


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 21 else None


def _amount(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    whole = _whole(value)
    return None if whole is None else float(whole)
