"""A data path and a NIC as files say them, such as examples/nic/gateway.yaml. Cycles are for one packet that comes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from windtunnel.errors import InputFileError, UnknownNameError
from windtunnel.files.document import form_of, read_document, read_form
from windtunnel.units import parse_bandwidth, parse_bytes, parse_count, parse_number, parse_share

NODES_MOST = 200
REMEDY = "see docs/nic.md for a file that is right"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: cycles of a packet on the host and on the NIC (accesses to state come on top there)."""

    name: str
    host_cycles: float
    nic_cycles: float
    state_bytes: int = 0
    accesses: float = 0.0
    on_nic: bool = True  # the NIC can do it

    @property
    def stateful(self) -> bool:
        """It keeps something for each flow."""
        return self.state_bytes > 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Packets go from one node to another: numbers of nodes, and how many of all packets."""

    start: int
    end: int
    share: float


@dataclass(frozen=True, slots=True)
class DataPath:
    """What happens to a packet, and the traffic."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    packet_bytes: int
    flows: int
    skew: float
    host_hz: float
    crossing_cycles: float

    def reached(self) -> tuple[float, ...]:
        """The share of all packets that comes to each node: all where nothing leads to it."""
        shares = [0.0] * len(self.nodes)
        led = {edge.end for edge in self.edges}
        for edge in self.edges:
            shares[edge.end] += edge.share
        return tuple(min(1.0, share) if at in led else 1.0 for at, share in enumerate(shares))


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC's own resources."""

    name: str
    source: str
    cores: int
    hz: float
    line_bytes_per_s: float
    pcie_bytes_per_s: float
    cached_access_cycles: float
    access_cycles: float
    cache_bytes: int
    memory_bytes: int
    entries: int | None = None  # of its flow table, where that is the limit

    def cycles(self, node: Node, flows: float) -> float:
        """Of a packet at a node whose state for so many flows is here: what the cache does not hold is in memory."""
        state_bytes = node.state_bytes * flows
        hit = 1.0 if state_bytes <= self.cache_bytes else self.cache_bytes / state_bytes
        return node.nic_cycles + node.accesses * (hit * self.cached_access_cycles + (1 - hit) * self.access_cycles)


def read_path(path: Path) -> DataPath:
    """The data path of a file. Raises InputFileError, SpecError."""
    data = read_document(path, REMEDY)
    where = str(path)
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list) or not data["nodes"]:
        raise InputFileError(path, "has no list `nodes`", REMEDY)
    _mapping(path, data, {"packet", "flows", "skew", "host", "nodes", "edges"}, "the file")
    host = _mapping(path, data.get("host", {}), {"clock", "crossing_cycles"}, "host")
    if len(data["nodes"]) > NODES_MOST:
        raise InputFileError(path, f"has {len(data['nodes'])} nodes", f"give {NODES_MOST} at most")
    nodes = tuple(_node(path, entry) for entry in data["nodes"])
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise InputFileError(path, "has two nodes of one name", "give each its own")
    return DataPath(
        nodes,
        _edges(path, data.get("edges"), names),
        parse_bytes(data.get("packet", "1500 B"), "packet", where),
        _positive(path, "flows", parse_count(data.get("flows", 1), "flows", where)),
        _least(path, "skew", parse_number(data.get("skew", 0), "skew", where)),
        _hertz(path, host.get("clock", "2.5GHz")),
        _least(path, "crossing_cycles", parse_number(host.get("crossing_cycles", 140), "crossing_cycles", where)),
    )


def _node(path: Path, body: object) -> Node:
    entry = _mapping(path, body, {"name", "host_cycles", "nic_cycles", "state", "accesses", "nic"}, "a node")
    for key in ("name", "host_cycles"):
        if key not in entry:
            raise InputFileError(path, f"has a node without {key}", REMEDY)
    where = f"{path}: {entry['name']}"
    can = entry.get("nic", "nic_cycles" in entry)
    if not isinstance(can, bool) or (can and "nic_cycles" not in entry):
        raise InputFileError(path, f"says no nic_cycles of {entry['name']}", "give them, or nic: false")
    numbers = [parse_number(entry.get(key, 0), key, where) for key in ("host_cycles", "nic_cycles", "accesses")]
    host, nic, accesses = (_least(path, f"{entry['name']}: cycles and accesses", number) for number in numbers)
    state = parse_bytes(entry["state"], "state", where) if "state" in entry else 0
    return Node(str(entry["name"]), host, nic, state, accesses, can)


def _edges(path: Path, rows: object, names: list[str]) -> tuple[Edge, ...]:
    if rows is None:
        return tuple(Edge(at, at + 1, 1.0) for at in range(len(names) - 1))
    if not isinstance(rows, list) or any(not isinstance(row, list) or len(row) not in (2, 3) for row in rows):
        raise InputFileError(path, "has edges that are not [from, to] or [from, to, share]", REMEDY)
    edges = []
    for row in rows:
        for name in row[:2]:
            if str(name) not in names:
                raise UnknownNameError("node", str(name), names)
        share = parse_share(row[2], "edges: share", str(path)) if len(row) == 3 else 1.0
        edges.append(Edge(names.index(str(row[0])), names.index(str(row[1])), share))
    return tuple(edges)


def nic_named(text: str) -> Nic:
    """A NIC of the catalogue, or of a YAML file in its form. Raises UnknownNameError, InputFileError."""
    if text.endswith((".yaml", ".yml")):
        return _nic(text, read_form(text, REMEDY))
    folder = files(__package__) / "catalogue"
    names = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))
    if text not in names:
        raise UnknownNameError("NIC", text, names)
    return _nic(text, form_of((folder / f"{text}.yaml").read_text(encoding="utf-8"), text, own=True))


def _nic(where: str, data: Mapping[str, object]) -> Nic:
    needed = {"name", "cores", "clock", "line_rate", "pcie_rate", "cycles_per_cached_access", "cycles_per_access"}
    needed |= {"cache", "memory"}
    _mapping(Path(where), data, needed | {"source", "entries"}, "the NIC")
    if lacking := sorted(needed - set(data)):
        raise InputFileError(where, f"has no {', '.join(lacking)}", REMEDY)
    return Nic(
        str(data["name"]),
        str(data.get("source", "given")),
        _positive(Path(where), "cores", parse_count(data["cores"], "cores", where)),
        _hertz(Path(where), data["clock"]),
        parse_bandwidth(data["line_rate"], "line_rate", where),
        parse_bandwidth(data["pcie_rate"], "pcie_rate", where),
        _least(Path(where), "cycles", parse_number(data["cycles_per_cached_access"], "cycles", where)),
        _least(Path(where), "cycles", parse_number(data["cycles_per_access"], "cycles", where)),
        parse_bytes(data["cache"], "cache", where),
        parse_bytes(data["memory"], "memory", where),
        parse_count(data["entries"], "entries", where) if "entries" in data else None,
    )


def _mapping(path: Path, data: object, names: set[str], what: str) -> Mapping[str, object]:
    """A mapping that says nothing else. Raises InputFileError."""
    if not isinstance(data, Mapping):
        raise InputFileError(path, f"says {data!r} where {what} should be", REMEDY)
    for name in data:
        if name not in names:
            raise InputFileError(path, f"has {name} in {what}", f"known are {', '.join(sorted(names))}")
    return data


def _hertz(path: Path, value: object) -> float:
    match = re.fullmatch(r"\s*([0-9.]+)\s*([GM])Hz\s*", str(value))
    if match is None:
        raise InputFileError(path, f"has the clock {value!r}", "write it as 2.5GHz")
    return _least(path, "clock", parse_number(match[1], "clock", str(path))) * {"G": 1e9, "M": 1e6}[match[2]]


def _positive(path: Path, name: str, value: int) -> int:
    if value < 1:
        raise InputFileError(path, f"has {name} {value}", "give 1 or more")
    return value


def _least(path: Path, name: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise InputFileError(path, f"has {name} {value:g}", "give 0 or more")
    return value
