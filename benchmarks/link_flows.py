"""What collectives take of single links, for tests and benchmarks of shared links.

Which links the flows of a collective use: bytes from GPU to GPU by its algorithm, then the links between.

n ranks in M scale-up domains of k, S bytes as `cost.communication` counts them; passes p = 2(n-1)/n for all-reduce,
(n-1)/n for all-gather and reduce-scatter, 1 for broadcast and reduce.

    ring          k channels, each a ring of all ranks that crosses between domains on its own rail: p S / k per hop
    tree          k channels of two complementary binary trees of domains, a chain inside: S / 2k per edge and way
    hierarchical  ring inside each domain, and between domains k rings, one per rail:
                  p(k) S per hop inside, p(M) S / k per hop outside
    direct        every rank to every other: S / n each, or a matrix of bytes; a send: S

Ring and tree as in NCCL (channels that enter and leave a node by one NIC); the trees are those of Sanders, Speck and
Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009).

`demand` makes of the flows one that goes in step, because the parts of a collective do: a ring is as fast as its
slowest hop. It takes bytes / seconds of each link at full speed, 1.0, which is all it can have alone. What it gets
beside others: docs/physics/contention.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.engine import Sharing
from windtunnel.physics.engine.flows import Paths, _replayed
from windtunnel.physics.hardware.topology import Topology, paths

ALGORITHMS_OF = {
    "all_reduce": ("ring", "tree", "hierarchical"),
    "all_gather": ("ring", "hierarchical"),
    "reduce_scatter": ("ring", "hierarchical"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_to_all": ("direct",),
    "ep_dispatch": ("direct",),
    "ep_combine": ("direct",),
    "send_recv": ("direct",),
}
MAX_FLOWS = 1 << 24  # 16 million take about 2 GiB

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Flows:
    """Bytes from GPU to GPU and the links they cross. Flows of one pair of GPUs are one."""

    source: Ints  # [flows]
    target: Ints  # [flows]
    bytes_total: Floats  # [flows]
    link_ptr: Ints  # [flows + 1]
    link_idx: NDArray[np.int32]  # [entries]

    def bytes_by_link(self, n_links: int) -> Floats:
        """[links] what each link carries."""
        carried = np.repeat(self.bytes_total, np.diff(self.link_ptr))
        return np.bincount(self.link_idx, carried, minlength=n_links).astype(np.float64)


class RateLog(NamedTuple):
    """Every change of a rate: from `time_ns` on, `flow` goes at `rate` (0: it has ended)."""

    time_ns: Ints
    flow: Ints
    rate: Floats


class Demand(NamedTuple):
    """A collective as one flow of speed 0 to 1."""

    link: NDArray[np.int32]  # [links it uses], ascending
    use_bytes_per_s: Floats  # of each, at speed 1
    seconds: float  # alone
    weight: float  # such that it and another one get equal bytes per second of a link that is the busiest of both


def flows_of(
    kind: str, bytes_total: float | ArrayLike, ranks: Sequence[int], topology: Topology, algorithm: str | None = None
) -> Flows:
    """The flows of one collective among `ranks` (GPU numbers, in the order of the communicator).

    Args:
        kind: As in `cost.communication`, but for "barrier", which moves nothing worth sharing.
        bytes_total: As in `cost.communication`; for all-to-all also the [n, n] bytes from rank to rank.
        ranks: For send_recv: the sender and the receiver; for broadcast and reduce in the order of the chain.
        topology: The links.
        algorithm: One of ALGORITHMS_OF[kind]; None = the first of them.

    Raises:
        SpecError: an unknown kind or algorithm, a rank twice or not in the cluster, bytes below zero, domains of
            unequal size for "hierarchical", or an all-to-all of more than 4,096 ranks.
    """
    if kind not in ALGORITHMS_OF:
        raise SpecError("collective", kind, f"unknown; use one of {', '.join(ALGORITHMS_OF)}")
    known = ALGORITHMS_OF[kind]
    algorithm = known[0] if algorithm is None else algorithm
    if algorithm not in known:
        raise SpecError("algorithm", algorithm, f"no paths for {kind} by it; use one of {', '.join(known)}")
    members = np.asarray(ranks, np.int64)
    if len(np.unique(members)) != len(members):
        raise SpecError("ranks", list(ranks), "must name each rank once")
    if kind == "send_recv" and len(members) != 2:
        raise SpecError("ranks", list(ranks), "must be the sender and the receiver")
    size = np.asarray(bytes_total, np.float64)
    if not (np.isfinite(size).all() and (size >= 0).all()):
        raise SpecError("bytes_total", bytes_total, "must be zero or more")
    if size.ndim and (algorithm != "direct" or size.shape != (len(members),) * 2):
        raise SpecError("bytes_total", f"{size.ndim} dimensions", "one number, or [n, n] for an all-to-all of n ranks")
    if algorithm == "direct":
        return _joined([_direct(kind, size, members)], topology)
    total, groups = float(size), _domains(members, topology)
    build = {"ring": _ring, "tree": _tree, "hierarchical": _hierarchical}[algorithm]
    return _joined(build(kind, total, groups, topology) if len(members) > 1 else [], topology)


def demand(flows: Flows, topology: Topology, seconds: float | None = None) -> Demand:
    """The flows as one that goes in step.

    `seconds`: what the collective takes alone (`cost.communication`); None = what its busiest link needs. A price below
    that stands (the switch may reduce, which these paths do not know): such a link is in use to its capacity.
    """
    carried = flows.bytes_by_link(topology.n_links)
    link = np.flatnonzero(carried)
    capacity = topology.capacity_bytes_per_s[link]
    busiest = float((carried[link] / capacity).max(initial=0.0))
    alone = busiest if seconds is None else seconds
    if not len(link) or alone <= 0.0:
        return Demand(np.zeros(0, np.int32), np.zeros(0), alone, 1.0)
    use = np.minimum(carried[link] / alone, capacity)
    return Demand(link.astype(np.int32), use, alone, max(1.0, alone / busiest))


def sharing_of(demand_of: ArrayLike, demands: Sequence[Demand], capacity: ArrayLike) -> Sharing:
    """Ops with these demands on the links of a `Topology` (its `capacity_bytes_per_s`)."""
    empty = np.zeros(0)
    return Sharing(
        demand_of=np.ascontiguousarray(demand_of, np.int32),
        link_ptr=np.cumsum([0, *(len(one.link) for one in demands)], dtype=np.int64),
        link_idx=np.concatenate([empty, *(one.link for one in demands)]).astype(np.int32),
        use=np.concatenate([empty, *(one.use_bytes_per_s for one in demands)]),
        weight=np.array([one.weight for one in demands], np.float64),
        capacity=np.array(capacity, np.float64),
    )


class _Moves(NamedTuple):
    source: Ints
    target: Ints
    bytes_each: Floats | float


def _joined(moves: Sequence[_Moves], topology: Topology) -> Flows:
    """Moves of one pair added up, without those of nothing or to itself."""
    if not moves:
        moves = [_Moves(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)]
    n = topology.cluster.n_gpus
    source = np.concatenate([move.source for move in moves])
    target = np.concatenate([move.target for move in moves])
    size = np.concatenate([np.broadcast_to(move.bytes_each, move.source.shape) for move in moves])
    paths(topology, source, target)  # refuses ranks that the cluster lacks
    pair, place = np.unique(source * n + target, return_inverse=True)
    total = np.bincount(place, size, minlength=len(pair))
    real = (total > 0) & (pair // n != pair % n)
    source, target = pair[real] // n, pair[real] % n
    return Flows(source, target, total[real], *paths(topology, source, target))


def _passes(kind: str, n: int) -> float:
    if kind in ("broadcast", "reduce"):
        return 1.0
    return (2 if kind == "all_reduce" else 1) * (n - 1) / n


def _domains(members: Ints, topology: Topology) -> list[Ints]:
    """Members by scale-up domain, domains and members in the order in which the communicator names them."""
    domain = members // topology.cluster.scale_up_domain
    _, first = np.unique(domain, return_index=True)
    return [members[domain == domain[i]] for i in np.sort(first)]


def _ring(kind: str, size: float, groups: list[Ints], topology: Topology) -> list[_Moves]:
    """Every channel walks each domain from the member on its own rail, all round, and on."""
    n = sum(len(group) for group in groups)
    each = size * _passes(kind, n)
    if len(groups) == 1:
        orders = _mesh_orders(groups[0], topology)
    else:
        widest = max(len(group) for group in groups)
        orders = [np.concatenate([np.roll(group, -(c % len(group))) for group in groups]) for c in range(widest)]
    if kind in ("broadcast", "reduce"):  # a chain from the first rank, or to it: each channel starts there
        orders = [np.roll(order, -int(np.flatnonzero(order == groups[0][0])[0])) for order in orders]
        hops = [(order[:-1], order[1:]) if kind == "broadcast" else (order[1:], order[:-1]) for order in orders]
    else:
        hops = [(order, np.roll(order, -1)) for order in orders]
    return [_Moves(source, target, each / len(orders)) for source, target in hops]


def _mesh_orders(group: Ints, topology: Topology) -> list[Ints]:
    """One ring where a switch joins all, in a mesh a ring for each stride that visits everyone."""
    n = len(group)
    if topology.cluster.scale_up.peer_bandwidth_bytes_per_s is None:
        return [group]
    return [group[np.arange(n) * stride % n] for stride in range(1, n) if math.gcd(stride, n) == 1]


def _tree(kind: str, size: float, groups: list[Ints], topology: Topology) -> list[_Moves]:
    """Up and down two trees of domains; a domain's members are a chain that starts on the channel's rail."""
    assert kind == "all_reduce"
    channels = max(len(group) for group in groups)
    parents = _two_trees(len(groups))
    each = size / channels / len(parents)
    moves = []
    for c in range(channels):
        chains = [np.roll(group, -(c % len(group))) for group in groups]
        heads = np.array([chain[0] for chain in chains])
        near = np.concatenate([chain[:-1] for chain in chains])
        far = np.concatenate([chain[1:] for chain in chains])
        for parent in parents:
            has = np.flatnonzero(parent >= 0)
            low, high = np.concatenate([far, heads[has]]), np.concatenate([near, heads[parent[has]]])
            moves += [_Moves(low, high, each), _Moves(high, low, each)]
    return moves


def _two_trees(n: int) -> list[Ints]:
    """Parent of each of n nodes (-1: the root) in an in-order binary tree, and in its mirror image or shift.

    Node i > 0 stands as high as its lowest set bit; its parent is the neighbour one bit higher that exists. Inner nodes
    are even: mirrored (n even) or shifted by one (n odd) they are odd, so almost no node is inner in both trees.
    """
    parent = np.full(n, -1, np.int64)
    for i in range(1, n):
        bit = i & -i
        upper = (i & ~bit) | (bit << 1)
        parent[i] = upper if upper < n else i & ~bit
    twin = np.full(n, -1, np.int64)
    place: Callable[[Ints], Ints] = (lambda i: n - 1 - i) if n % 2 == 0 else (lambda i: (i + 1) % n)
    inner = np.flatnonzero(parent >= 0)
    twin[place(inner)] = place(parent[inner])
    return [parent, twin]


def _hierarchical(kind: str, size: float, groups: list[Ints], topology: Topology) -> list[_Moves]:
    k, m = len(groups[0]), len(groups)
    if any(len(group) != k for group in groups):
        counts = sorted({len(group) for group in groups})
        raise SpecError("algorithm", "hierarchical", f"needs as many ranks in each domain, not {counts}; use ring")
    moves = []
    if k > 1:
        for group in groups:
            orders = _mesh_orders(group, topology)
            inside = size * _passes(kind, k) / len(orders)
            moves += [_Moves(order, np.roll(order, -1), inside) for order in orders]
    if m > 1:
        table = np.stack(groups)
        for rail in range(k):
            moves.append(_Moves(table[:, rail], np.roll(table[:, rail], -1), size * _passes(kind, m) / k))
    return moves


def _direct(kind: str, size: Floats, members: Ints) -> _Moves:
    n = len(members)
    if kind == "send_recv":
        return _Moves(members[:1], members[1:], float(size) if size.ndim == 0 else size[0, 1:])
    if n * n > MAX_FLOWS:
        remedy = f"at most {math.isqrt(MAX_FLOWS):,} ranks; split the all-to-all by node, as hierarchical ones do"
        raise SpecError("ranks", f"{n:,} ranks", remedy)
    each = np.full((n, n), float(size) / n) if size.ndim == 0 else size
    return _Moves(np.repeat(members, n), np.tile(members, n), each.ravel())


def replay_flows(
    arrival_ns: ArrayLike,
    bytes_total: ArrayLike,
    link_ptr: ArrayLike,
    link_idx: ArrayLike,
    capacity_bytes_per_s: ArrayLike,
    weight: ArrayLike | None = None,
    use: ArrayLike | None = None,
) -> Ints:
    """`engine.flows.replay_flows` of flows with weights and uses, given as lists or arrays."""
    return replay_flows_logged(
        arrival_ns, bytes_total, link_ptr, link_idx, capacity_bytes_per_s, weight, use, logs=False
    )[0]


def replay_flows_logged(
    arrival_ns: ArrayLike,
    bytes_total: ArrayLike,
    link_ptr: ArrayLike,
    link_idx: ArrayLike,
    capacity_bytes_per_s: ArrayLike,
    weight: ArrayLike | None = None,
    use: ArrayLike | None = None,
    logs: bool = True,
) -> tuple[Ints, RateLog]:
    """`replay_flows`, and every change of a rate in the order of time: what a link carried when."""
    arrival, size = np.ascontiguousarray(arrival_ns, np.int64), np.ascontiguousarray(bytes_total, np.float64)
    capacity = np.ascontiguousarray(capacity_bytes_per_s, np.float64)
    finish, log = _replayed(arrival, size, capacity, paths_of(link_ptr, link_idx, weight, use), logs=logs)
    return finish, RateLog(log[:, 0].astype(np.int64), log[:, 1].astype(np.int64), log[:, 2])


def paths_of(link_ptr: ArrayLike, link_idx: ArrayLike, weight: ArrayLike | None, use: ArrayLike | None) -> Paths:
    """Paths as the engine takes them; weights and uses of 1 where none are given."""
    ptr, idx = np.ascontiguousarray(link_ptr, np.int64), np.ascontiguousarray(link_idx, np.int32)
    return Paths(
        ptr,
        idx,
        np.ones(len(idx)) if use is None else np.ascontiguousarray(use, np.float64),
        np.ones(len(ptr) - 1) if weight is None else np.ascontiguousarray(weight, np.float64),
    )
