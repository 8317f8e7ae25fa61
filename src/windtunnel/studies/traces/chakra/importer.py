"""Chakra execution traces, one file per rank, as a `Trace`.

A node waits for its control and data dependencies. Nodes that name a stream (GPU) or a thread (CPU) and have start
times also run in that order there; others are ordered by their dependencies alone. Collectives meet by (pg_name, order
on the rank), sends and receives by (comm_src, comm_dst, comm_tag, order): see `matching`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.physics.graph.program import OpKind
from windtunnel.studies.traces.chakra.node import ChakraFile, Node, NodeType
from windtunnel.studies.traces.joined import join_ranks
from windtunnel.studies.traces.kernel_kinds import collective_kind, kernel_kind
from windtunnel.studies.traces.rank_ops import Communication, RankOps, rank_of_file
from windtunnel.studies.traces.trace import Trace

_COLLECTIVES = (
    *("all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all", "reduce-scatter"),
    *("reduce-scatter", "barrier"),
)  # by CollectiveCommType
_KINDS = {
    NodeType.COMM_SEND_NODE: OpKind.SEND,
    NodeType.COMM_RECV_NODE: OpKind.RECV,
    NodeType.COMM_COLL_NODE: OpKind.COLLECTIVE,
}
_WITHOUT_WORK = (NodeType.INVALID_NODE, NodeType.METADATA_NODE)
_LONGEST_US = 1e14  # three years
_LARGEST_US = 4e15


def chakra_trace(files: Sequence[ChakraFile]) -> Trace:
    """Join the files of one job.

    Raises InputFileError: two files of one rank, or a file in which nothing takes time.
    """
    ranks: dict[int, RankOps] = {}
    for number, file in enumerate(files):
        stated = _rank(file.path)
        rank = rank_of_file(file.path, stated, number, ranks)
        ranks[rank] = _ops(file, rank)
        if stated is None and len(files) > 1:
            ranks[rank].notes.append("the file name holds no rank: numbered in the order given")
    return join_ranks("Chakra", list(ranks.values()))


def _rank(path: Path) -> int | None:
    """The last number of the name: traces are named `job.12.et`."""
    numbers = re.findall(r"\d+", path.name.split(".gz")[0].removesuffix(".json").removesuffix(".et"))
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else None


def _ops(file: ChakraFile, rank: int) -> RankOps:
    ops = RankOps(rank=rank, path=str(file.path), notes=list(file.notes))
    usable = [node for node in file.nodes if 0 <= node.duration_us <= _LONGEST_US and 0 <= node.start_us < _LARGEST_US]
    if len(usable) < len(file.nodes):
        ops.notes.append(f"{len(file.nodes) - len(usable):,} nodes without usable time left out")
    if not any(node.duration_us > 0 for node in usable):
        raise InputFileError(
            file.path, "has no node that takes time", "record durations too, e.g. link the trace with a Kineto trace"
        )
    ordered = sorted(range(len(usable)), key=lambda at: (usable[at].start_us, at))
    place: dict[int, int] = {}
    nodes: list[Node] = []
    streams: dict[Hashable, int] = {}
    loose = doubled = free = 0
    for at in ordered:
        node = usable[at]
        if node.id in place:
            doubled += 1
            continue
        where = _place(node)
        if where is None and node.duration_us > 0:
            loose += 1
        key: Hashable = ("node", node.id) if where is None else where
        if key not in streams:
            streams[key] = ops.stream_of(f"node {node.id}" if where is None else " ".join(map(str, where)))
        nodes.append(node)
        place[node.id] = _op(ops, streams[key], node)
        free += node.type in _KINDS and node.duration_us == 0
    missing = 0
    example = 0
    for node in nodes:
        op = place[node.id]
        for need in node.needs:
            if need not in place:
                missing, example = missing + 1, example or need
            elif need != node.id:
                ops.waits.append((op, place[need]))
    for count, words in (
        (doubled, "nodes repeat the id of another and were left out"),
        (missing, f"dependencies on nodes that are not in the file, first {example}"),
        (loose, "nodes name no stream or no start: only their dependencies order them"),
        (free, "sends, receives or collectives have no duration: they take no time"),
    ):
        if count:
            ops.notes.append(f"{count:,} {words}")
    return ops


def _place(node: Node) -> tuple[str, int] | None:
    """The stream or thread on which a node runs in order of start."""
    if node.start_us <= 0:
        return None
    for key in ("stream", "tid"):
        value = node.attributes.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return key, value
    return None


def _op(ops: RankOps, stream: int, node: Node) -> int:
    kind = _KINDS.get(NodeType(node.type)) if node.type in NodeType.__members__.values() else None
    size = node.attributes.get("comm_size")
    on_cpu = node.attributes.get("is_cpu_op") in (True, 1)
    if kind == OpKind.COLLECTIVE:
        number = node.attributes.get("comm_type")
        has_name = isinstance(number, int) and 0 <= number < len(_COLLECTIVES)
        category = _COLLECTIVES[number] if has_name and isinstance(number, int) else collective_kind(node.name)
    elif kind is not None:
        category = "send" if kind == OpKind.SEND else "receive"
    elif node.type in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE):
        category = "memory copies"
    else:
        category = "host" if on_cpu else "storage" if node.type == NodeType.STORAGE_NODE else kernel_kind(node.name)
    op = ops.add(
        kind if kind is not None else OpKind.HOST if on_cpu or node.type in _WITHOUT_WORK else OpKind.COMPUTE,
        stream,
        round(node.start_us * 1000),
        round(node.duration_us * 1000),
        node.name,
        category,
        (node.type, node.name, str(size)),
        0,
    )
    if kind is not None:
        _communicates(ops, op, kind, node, category, str(size))
    return op


def _communicates(ops: RankOps, op: int, kind: OpKind, node: Node, category: str, size: str) -> None:
    group = str(node.attributes.get("pg_name", ""))
    pair: tuple[int, int, int] | None = None
    if kind != OpKind.COLLECTIVE:
        ends = [node.attributes.get(key) for key in ("comm_src", "comm_dst", "comm_tag")]
        source, destination, tag = (end if isinstance(end, int) else None for end in ends)
        if kind == OpKind.SEND:
            source = ops.rank if source is None else source
        else:
            destination = ops.rank if destination is None else destination
        if source is None or destination is None:
            ops.notes.append(f"'{node.name}' does not say with whom: it meets nobody")
            return
        pair = (source, destination, tag or 0)
    signature: Hashable = (category, size) if kind == OpKind.COLLECTIVE else size
    ops.communications.append(Communication(op, group, None, signature, (), pair=pair))
