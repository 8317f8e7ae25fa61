"""Which ops of a graph share links, and what they take of them. docs/physics/contention.md has the formula.

A demand is what an op takes of links at full speed; many ops may have the same. From its start to its end the op is one
flow with that demand, and all members of a rendezvous are one flow together.

Most links can never be too narrow: a stream runs one op at a time, so no more can meet on a link than the largest
demand of each stream. `contenders` leaves those links out, and with them every op that uses no other; where none is
left the plain replay serves. It serves as well where what runs at once in it is never more than a link has (`fit`): the
two give the same nanoseconds where no link is ever full. Of links that always are in use to the same part of their
capacity, as the NICs of a ring are, one is followed for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.flows import Paths, check_paths, network_of
from windtunnel.physics.graph.program import Graph

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.flow_kernels import Network

SLACK = 1e-12  # by which sums of uses may miss a capacity and still equal it
WHOLE = 1 << 44  # of a link, in whole numbers, whose sums are exact ...
ROUNDED = 16  # ... but for rounding of what is summed: 1e-12 of the link

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sharing:
    """What each op takes of which links while it runs.

    Where a program stands for m ranks that all use a link, give m times the use and the same weight: their flows get
    what m flows would. On a link of which each rank has its own, give one rank's.
    """

    demand_of: NDArray[np.int32]  # [n] demand of each op; -1: none. Members of a rendezvous that give one give the same
    link_ptr: Ints  # [demands + 1] CSR: demand d uses link_idx[link_ptr[d]:link_ptr[d + 1]]
    link_idx: NDArray[np.int32]  # [entries] each link once per demand
    use: Floats  # [entries] capacity taken at speed 1
    weight: Floats  # [demands]
    capacity: Floats  # [links]

    def __post_init__(self) -> None:
        assert self.link_ptr[0] == 0
        assert self.link_ptr[-1] == len(self.link_idx) == len(self.use), "CSR: the last pointer counts the entries"
        assert np.all(np.diff(self.link_ptr) >= 0)
        assert len(self.weight) == self.n_demands, "one weight per demand"
        for array in (self.use, self.weight, self.capacity):
            assert np.all(np.isfinite(array) & (array > 0.0)), "use, weight and capacity are above zero and finite"
        assert np.all((self.link_idx >= 0) & (self.link_idx < len(self.capacity))), "a link that is not there"
        assert np.all((self.demand_of >= -1) & (self.demand_of < self.n_demands)), "a demand that is not there"

    @property
    def n_demands(self) -> int:
        """Number of different demands."""
        return len(self.link_ptr) - 1


class Contenders(NamedTuple):
    """The ops that may have to share, as flows on the links that may be too narrow."""

    flow: NDArray[np.int32]  # [n] -1: none. Ops of one flow never run at once, but for members of a rendezvous
    capacity: Floats  # of these links, then of one of each flow's own: 1
    paths: Paths  # of each flow, the link of its own last

    def network(self) -> Network:
        """The flows on the links, as the compiled loop takes them."""
        return network_of(self.capacity, self.paths)

    def fit(self, start_ns: Ints, end_ns: Ints) -> bool:
        """Whether no link is ever asked for more than it has while every op runs from its start to its end."""
        ops = np.flatnonzero((self.flow >= 0) & (end_ns > start_ns))
        order = ops[np.lexsort((end_ns[ops], start_ns[ops], self.flow[ops]))]
        flow, start = self.flow[order].astype(np.int64), start_ns[order]
        last = np.append((np.diff(flow) > 0) | (np.diff(start) > 0), True)[: len(order)]  # of a rendezvous
        entry, of = _entries(flow[last], self.paths.link_ptr)
        link = self.paths.link_idx[entry]
        entry, of = (array[link < len(self.capacity) - len(self.paths.weight)] for array in (entry, of))
        link = self.paths.link_idx[entry]
        part = np.rint(np.minimum(self.paths.use[entry] / self.capacity[link], 2.0) * WHOLE).astype(np.int64)
        when = np.concatenate((end_ns[order][last][of], start[last][of]))
        change = np.concatenate((-part, part))
        # What ends makes room for what starts at the same instant. A link's changes sum to nothing before the next's.
        after = np.cumsum(change[np.lexsort((change, when, np.tile(link, 2)))])
        return int(after.max(initial=0)) <= WHOLE + ROUNDED


def contenders(
    graph: Graph, duration_ns: NDArray[np.int64], sharing: Sharing, *, all_links: bool = False
) -> Contenders | None:
    """The flows that may have to share; None if no link can be too narrow. `all_links`: leave none out."""
    assert np.all((graph.stream >= 0) & (graph.stream < graph.n_streams)), "a stream that is not there"
    demand, lead = _by_rendezvous(graph, duration_ns, sharing.demand_of)
    lengths = np.diff(sharing.link_ptr)
    has = np.flatnonzero((demand >= 0) & (duration_ns[lead] > 0))
    has = has[lengths[demand[has]] > 0]
    # A flow is there exactly while its lead runs, so those of one demand and one lead's stream never meet.
    key = demand[has].astype(np.int64) * graph.n_streams + graph.stream[lead[has]]
    pairs, flow_of = _numbered(key, sharing.n_demands * graph.n_streams)
    demands, streams = pairs // max(1, graph.n_streams), pairs % max(1, graph.n_streams)
    narrow = np.ones(len(sharing.capacity), np.bool_)
    if not all_links:
        narrow = _most(demands, streams, sharing) > sharing.capacity * (1.0 + SLACK)
        narrow &= ~_repeats(narrow, demands, sharing)
    shared = narrow[sharing.link_idx]
    n_shared = np.add.reduceat(np.append(shared, False).astype(np.int64), sharing.link_ptr[:-1]) * (lengths > 0)
    may_share = n_shared[demands] > 0
    if not may_share.any():
        return None
    new_flow = np.where(may_share, np.cumsum(may_share) - 1, -1)
    flow = np.full(graph.n_ops, -1, np.int32)
    flow[has] = new_flow[flow_of]
    return Contenders(flow, *_on_links(demands[may_share], narrow, shared, n_shared, sharing))


def _by_rendezvous(graph: Graph, duration_ns: Ints, demand_of: NDArray[np.int32]) -> tuple[NDArray[np.int32], Ints]:
    """The demand of each op, be it a partner's, and its lead: the partner that takes longest, so ends last."""
    lead = np.arange(graph.n_ops)
    ops = np.flatnonzero(graph.rendezvous >= 0)
    if not len(ops):
        return demand_of, lead
    group = graph.rendezvous[ops]
    order = np.lexsort((ops, -duration_ns[ops], group))
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    common = np.maximum.reduceat(demand_of[ops][order], first)
    place = np.cumsum(np.diff(group[order], prepend=-1) != 0) - 1
    sorted_ops = ops[order]
    own = demand_of[sorted_ops]
    assert np.all((own < 0) | (own == common[place])), "members of a rendezvous are one flow: one demand"
    demand = demand_of.copy()
    demand[sorted_ops] = common[place]
    lead[sorted_ops] = sorted_ops[first][place]
    return demand, lead


def _numbered(key: Ints, n: int) -> tuple[Ints, Ints]:
    """The different keys in ascending order, and which of them each is; `n`: they are below it."""
    if n > 8 * len(key) + 1024:
        return np.unique(key, return_inverse=True)
    seen = np.zeros(n, np.bool_)
    seen[key] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[key]


def _entries(demands: Ints, link_ptr: Ints) -> tuple[Ints, Ints]:
    """The entries of these demands one after the other, and which of `demands` each is of."""
    lengths = np.diff(link_ptr)[demands]
    of = np.repeat(np.arange(len(demands)), lengths)
    begins = np.cumsum(lengths) - lengths
    return np.arange(len(of)) - begins[of] + link_ptr[demands][of], of


def _most(demands: Ints, streams: Ints, sharing: Sharing) -> Floats:
    """[links] the most that can be asked of each at once: of every stream its largest demand."""
    entry, of = _entries(demands, sharing.link_ptr)
    n_links = len(sharing.capacity)
    if not len(entry):
        return np.zeros(n_links)
    key = streams[of] * n_links + sharing.link_idx[entry]
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    largest = np.maximum.reduceat(sharing.use[entry][order], first)
    return np.bincount(key[order][first] % n_links, largest, minlength=n_links).astype(np.float64)


def _repeats(narrow: NDArray[np.bool_], demands: Ints, sharing: Sharing) -> NDArray[np.bool_]:
    """[links] narrow ones of which every demand takes the same part as of an earlier one."""
    used = np.unique(demands)
    entry, of = _entries(used, sharing.link_ptr)
    entry, of = entry[narrow[sharing.link_idx[entry]]], of[narrow[sharing.link_idx[entry]]]
    repeats = np.zeros(len(narrow), np.bool_)
    order = np.argsort(sharing.link_idx[entry], kind="stable")  # by link, then by demand
    entry, of = entry[order], of[order]
    link = sharing.link_idx[entry]
    if not len(link):
        return repeats
    mantissa, exponent = np.frexp(sharing.use[entry] / sharing.capacity[link])
    part = np.rint(np.ldexp(mantissa, 40)).astype(np.int64) * 4096 + exponent  # its last digits are rounding
    first = np.flatnonzero(np.diff(link, prepend=-1))
    lengths = np.diff(np.append(first, len(link)))
    mixed = (part.astype(np.uint64) ^ (of.astype(np.uint64) << np.uint64(40))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    _, model, of_model = np.unique(np.add.reduceat(mixed, first), return_index=True, return_inverse=True)
    model = model[of_model]  # of links with the same sum the first: the same, unless sums collide
    same = (model != np.arange(len(first))) & (lengths[model] == lengths)
    place = np.arange(len(link)) - np.repeat(first, lengths)
    at = np.where(np.repeat(same, lengths), np.repeat(first[model], lengths) + place, np.arange(len(link)))
    equal = (of[at] == of) & (part[at] == part)
    same &= np.logical_and.reduceat(equal, first)
    repeats[link[first[same]]] = True
    return repeats


def _on_links(
    demands: Ints, narrow: NDArray[np.bool_], shared: NDArray[np.bool_], n_shared: Ints, sharing: Sharing
) -> tuple[Floats, Paths]:
    """Flows with these demands on the narrow links, each with a link of its own."""
    n, n_links = len(demands), int(narrow.sum())
    entry, of = _entries(demands, sharing.link_ptr)
    entry, of = entry[shared[entry]], of[shared[entry]]
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(n_shared[demands] + 1, out=ptr[1:])
    idx, use = np.empty(ptr[-1], np.int32), np.ones(ptr[-1])
    own = ptr[1:] - 1
    idx[own] = n_links + np.arange(n)
    rest = np.ones(len(idx), np.bool_)
    rest[own] = False
    idx[rest] = (np.cumsum(narrow) - 1)[sharing.link_idx[entry]]
    use[rest] = sharing.use[entry]
    capacity = np.concatenate([sharing.capacity[narrow], np.ones(n)])
    paths = Paths(ptr, idx, use, sharing.weight[demands])
    check_paths(len(capacity), paths)
    return capacity, paths
