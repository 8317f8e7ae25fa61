"""Exact folding of a whole priced graph: the oracle of what folds before it is built.

The product folds ranks before their ops exist (`graph.fold.refine`, `training/disturbances/replicas.py`); this takes
the graph of all of them and finds the coarsest partition of programs that no clock can tell apart. Colour refinement,
op by op: two programs keep one colour only if they see the same colours in each rendezvous and behind each dependency.
At the fixed point programs of one colour have the same timeline, by induction over the replay: an op starts at the
latest of what it waits for and goes at the lowest rate of whom it meets, both functions of the *set* of (colour, local
op) that it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.fold import numbered_by_first
from windtunnel.physics.graph.program import Graph

SAME = ("kind", "category", "flops", "bytes")  # what a class is asked for besides times


@dataclass(frozen=True, eq=False)
class Folded:
    """The smallest graph with the same timeline, and the way back."""

    graph: Graph  # one program per class, in the order of their first members; multiplicities summed
    duration_ns: NDArray[np.int64]
    interference: NDArray[np.uint8] | None
    class_of: NDArray[np.int64]  # [programs of the full graph] class, that is program of the folded graph
    op_of: NDArray[np.int64]  # [folded ops] the op of the full graph that was kept
    fold_of: NDArray[np.int32]  # [ops of the full graph] the folded op that stands for it

    def unfold(self, values: NDArray[Any]) -> NDArray[Any]:
        """What is known of every folded op (its start, its end ...) for every op of the full graph."""
        return values[self.fold_of]


def fold(
    graph: Graph,
    duration_ns: NDArray[np.int64],
    interference: NDArray[np.uint8] | None = None,
    *,
    same: Iterable[str] = SAME,
) -> Folded:
    """The classes of programs that nothing in the replay can tell apart, and the graph of one program each.

    `duration_ns`, `interference`: [n] as `replay` takes them (without interference, the fold is exact for replays
    without slowdown). `same`: further columns of `Graph` in which members of a class must agree, so that what is read
    off a folded op holds for all it stands for; labels are those of the member that is kept. Streams of two programs
    are matched by name, and without names by number; where their ops lie in the arrays does not matter.
    """
    columns = [np.asarray(duration_ns), *(getattr(graph, name) for name in same)]
    if interference is not None:
        columns.append(np.asarray(interference))
    assert all(len(column) == graph.n_ops for column in columns)
    ops = _in_order(graph)
    after, met = _dependencies(graph, ops), _rendezvous(graph, ops)
    class_of = _classes(ops, after, met, columns)
    return _quotient(graph, ops, class_of, np.asarray(duration_ns), interference)


@dataclass(frozen=True, eq=False)
class _Ordered:
    """Ops sorted by (program, stream, place in the stream): what follows counts them in this order."""

    op: NDArray[np.int64]  # [n] the op of the graph
    at: NDArray[np.int64]  # [n] where an op of the graph went
    first: NDArray[np.int64]  # [programs+1] where each program begins
    program: NDArray[np.int64]  # [n]
    local: NDArray[np.int64]  # [n] number within its program
    stream: NDArray[np.int64]  # [n] number of its stream within its program
    by_local: NDArray[np.int64]  # [n] the order of (local, program) ...
    seat: NDArray[np.int64]  # [n] ... and where each is in it


def _in_order(graph: Graph) -> _Ordered:
    n, rank = graph.n_ops, graph.stream_rank
    used = np.flatnonzero(np.bincount(graph.stream, minlength=graph.n_streams))
    name = np.unique(np.array(graph.stream_names)[used], return_inverse=True)[1] if graph.stream_names else used
    streams = used[np.lexsort((used, name, rank[used]))]
    place = np.zeros(graph.n_streams, np.int64)
    place[streams] = np.arange(len(streams))
    op = np.argsort(place[graph.stream], kind="stable")
    at = np.empty(n, np.int64)
    at[op] = np.arange(n)
    program = graph.program[op].astype(np.int64)
    first = np.zeros(graph.n_programs + 1, np.int64)
    np.cumsum(np.bincount(program, minlength=graph.n_programs), out=first[1:])
    local = np.arange(n) - first[program]
    first_stream = np.searchsorted(rank[streams], np.arange(graph.n_programs))
    by_local = np.argsort(local, kind="stable")
    seat = np.empty(n, np.int64)
    seat[by_local] = np.arange(n)
    stream = place[graph.stream[op]] - first_stream[program]
    return _Ordered(op, at, first, program, local, stream, by_local, seat)


@dataclass(frozen=True, eq=False)
class _Seen:
    """Whom somebody sees: sorted by (owner, local op, program), each once."""

    owner: NDArray[np.int64]
    op: NDArray[np.int64]  # in the order of `_Ordered`
    is_new: NDArray[np.bool_]  # a local op that this owner has not seen before
    position: NDArray[np.int64]  # which of the owner's distinct local ops this is


def _seen(ops: _Ordered, owner: NDArray[np.int64], op: NDArray[np.int64]) -> _Seen:
    n = max(len(ops.op), 1)
    owner, seat = np.divmod(_once(owner * n + ops.seat[op]), n)
    op = ops.by_local[seat]
    begins = np.diff(owner, prepend=-1) != 0
    is_new = begins | (np.diff(ops.local[op], prepend=-1) != 0)
    number = np.cumsum(is_new)
    start = number[begins] - 1
    return _Seen(owner, op, is_new, number - 1 - np.repeat(start, np.diff(np.append(np.flatnonzero(begins), len(op)))))


def _dependencies(graph: Graph, ops: _Ordered) -> _Seen:
    waiter = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    return _seen(ops, ops.at[waiter], ops.at[graph.dep_idx])


def _rendezvous(graph: Graph, ops: _Ordered) -> _Seen:
    """Owners are groups, numbered from 0 without gaps."""
    member = np.flatnonzero(graph.rendezvous >= 0)
    return _seen(ops, np.unique(graph.rendezvous[member], return_inverse=True)[1], ops.at[member])


def _classes(ops: _Ordered, after: _Seen, met: _Seen, columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """int64[programs]: the class of each."""
    n, programs = len(ops.op), len(ops.first) - 1
    n_groups = int(met.owner[-1]) + 1 if len(met.owner) else 0
    group = np.full(n, -1, np.int64)
    group[met.op] = met.owner
    # Its local ops by number are part of a program's first colour. Then (colour, position) says what (colour, op) does.
    kind = _numbers(ops.local[met.op[met.is_new]], np.bincount(met.owner[met.is_new], minlength=n_groups), {})
    meets_at = np.full(n, -1, np.int64)
    meets_at[met.op] = kind[met.owner]
    lists = np.bincount(after.owner[after.is_new], minlength=n)
    colour = _first_colours(
        ops.first,
        [ops.stream, *(column[ops.op] for column in columns), meets_at, lists],
        _Lists.of(np.diff(np.append(0, np.cumsum(lists))[ops.first]), ops.local[after.op[after.is_new]]),
    )
    # Only what differs from one program to another can split a class.
    crosses = np.zeros(n, np.bool_)
    crosses[after.owner[ops.program[after.op] != ops.program[after.owner]]] = True
    by_colour = np.argsort(colour, kind="stable")
    several: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    viewed = np.zeros(n, np.bool_)
    for alike in np.split(by_colour, np.flatnonzero(np.diff(colour[by_colour])) + 1):
        if len(alike) > 1:
            theirs = ops.first[alike][:, None] + np.arange(ops.first[alike[0] + 1] - ops.first[alike[0]])
            waits = theirs[:, crosses[theirs].any(axis=0)]
            viewed[waits] = True
            several.append((alike, waits, theirs[:, group[theirs[0]] >= 0]))
    chosen = viewed[after.owner]
    view_of = np.cumsum(viewed) - 1 + n_groups  # of the ops in `viewed`: their dependencies come after the groups
    row = np.concatenate([met.owner, view_of[after.owner[chosen]]])
    member = np.concatenate([ops.program[met.op], ops.program[after.op[chosen]]])
    position = np.concatenate([met.position, after.position[chosen]])
    lengths = np.bincount(row, minlength=n_groups + int(viewed.sum()))
    # Many collectives have the same members: one view serves them all.
    number = _numbers(position * programs + member, lengths, {})
    first = np.unique(number, return_index=True)[1]
    rows = _Lists.of(lengths, member)
    kept, kept_lengths = rows.entries(first)
    seen: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for alike, waits, meets in several:
        table = np.concatenate([number[view_of[waits]], number[group[meets]]], axis=1)
        across = np.ascontiguousarray(table.T)
        distinct = np.unique(_numbers(across.ravel(), np.full(len(across), len(alike)), {}), return_index=True)[1]
        seen.append((alike, table[:, distinct]))
    sees = np.zeros(programs, np.int64)
    for alike, table in seen:
        sees[alike] = table.shape[1]
    all_seen = _Lists.of(sees, np.empty(int(sees.sum()), np.int64))
    for alike, table in seen:
        all_seen.values[all_seen.ptr[alike][:, None] + np.arange(table.shape[1])] = table
    return _settle(colour, _Lists.of(kept_lengths, member[kept]), position[kept], all_seen)


def _first_colours(first: NDArray[np.int64], columns: Sequence[NDArray[Any]], after: _Lists) -> NDArray[np.int64]:
    """Equal for programs that do the same, op by op, whomever they do it with."""
    known: dict[bytes, int] = {}
    colour = np.empty(len(first) - 1, np.int64)
    bounds, lists = first.tolist(), after.ptr.tolist()
    for program in range(len(colour)):
        begin, end = bounds[program], bounds[program + 1]
        # How many ops there are says where each part begins; and their lists' lengths, where each list does.
        parts = [(end - begin).to_bytes(8, "little"), *(column[begin:end].tobytes() for column in columns)]
        parts.append(after.values[lists[program] : lists[program + 1]].tobytes())
        colour[program] = known.setdefault(b"".join(parts), len(known))
    return colour


def _quotient(
    graph: Graph,
    ops: _Ordered,
    class_of: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    interference: NDArray[np.uint8] | None,
) -> Folded:
    """The graph of the first program of each class, what it waits for and meets put in terms of classes."""
    n, k = graph.n_ops, int(class_of.max(initial=-1)) + 1
    if k == graph.n_programs:
        return Folded(graph, duration_ns, interference, class_of, np.arange(n), np.arange(n, dtype=np.int32))
    kept = np.unique(class_of, return_index=True)[1]
    is_kept = np.zeros(graph.n_programs, np.bool_)
    is_kept[kept] = True
    op_of = np.flatnonzero(is_kept[graph.program])
    number = np.full(n, -1, np.int64)
    number[op_of] = np.arange(len(op_of))
    stands_for = ops.op[ops.first[kept[class_of[ops.program]]] + ops.local]  # in the order of `ops`
    fold_of = number[stands_for][ops.at]
    streams = np.flatnonzero(is_kept[graph.stream_rank])
    stream = np.zeros(graph.n_streams, np.int32)
    stream[streams] = np.arange(len(streams))
    at, lengths = _Lists(graph.dep_ptr, graph.dep_idx.astype(np.int64)).entries(op_of)
    waiter, on = np.repeat(np.arange(len(op_of)), lengths), fold_of[graph.dep_idx[at]]
    once = np.sort(np.unique(waiter * max(len(op_of), 1) + on, return_index=True)[1])
    # A folded rendezvous is named by its first member: those that show the same set share it, others share none.
    name = np.full(n + 1, n, np.int64)
    np.minimum.at(name, graph.rendezvous, fold_of)
    rendezvous = graph.rendezvous[op_of]
    multiplicity = np.zeros(k, np.int64)
    np.add.at(multiplicity, class_of, graph.multiplicity)
    folded = replace(
        graph,
        **{column: getattr(graph, column)[op_of] for column in ("kind", "label", "category", "flops", "bytes")},
        stream=stream[graph.stream[op_of]],
        stream_rank=class_of[graph.stream_rank[streams]].astype(np.int32),
        dep_ptr=_Lists.of(np.bincount(waiter[once], minlength=len(op_of)), once).ptr,
        dep_idx=on[once].astype(np.int32),
        rendezvous=np.where(rendezvous >= 0, name[rendezvous], -1).astype(np.int32),
        multiplicity=multiplicity,
        stream_names=tuple(graph.stream_names[s] for s in streams) if graph.stream_names else (),
    )
    shares = None if interference is None else interference[op_of]
    return Folded(folded, duration_ns[op_of], shares, class_of, op_of, fold_of.astype(np.int32))


@dataclass(frozen=True, eq=False)
class _Lists:
    """Lists of integers in a row: list i is values[ptr[i]:ptr[i+1]]."""

    ptr: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[Any], values: NDArray[np.int64]) -> _Lists:
        ptr = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ptr[1:])
        return cls(ptr, values)

    def entries(self, which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places in `values` of all entries of some lists, and the lengths of these."""
        lengths = self.ptr[which + 1] - self.ptr[which]
        before = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        return np.repeat(self.ptr[which] - before, lengths) + np.arange(total), lengths

    def inverse(self, n: int) -> _Lists:
        """For each value below n, the lists that hold it."""
        owner = np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))
        order = np.argsort(self.values, kind="stable")
        return _Lists.of(np.bincount(self.values, minlength=n), owner[order])


def _settle(colour: NDArray[np.int64], views: _Lists, position: NDArray[np.int64], seen: _Lists) -> NDArray[np.int64]:
    """Split classes until members of one see equal views, first view with first view and so on.

    A view is a list of members, each with a position class; it shows the set of (colour, position). Contents are
    compared in full, as bytes, never by a hash alone. When a class splits, its largest part that was looked at keeps
    the colour, so that only those that changed are looked at again, and who sees them.
    """
    colour = colour.copy()
    n, n_views = len(colour), len(views.ptr) - 1
    n_colours = int(colour.max(initial=-1)) + 1
    kinds = int(position.max(initial=0)) + 1
    span = (n + 1) * kinds
    assert span * max(n_views, 1) < 2**63
    shown_in, seen_by = views.inverse(n), seen.inverse(n_views)
    known: dict[bytes, int] = {}  # what a view shows -> its number
    shows = np.full(n_views, -1, np.int64)
    stale = np.ones(n_views, np.bool_)
    sizes = np.bincount(colour, minlength=n_colours)
    look = np.flatnonzero(sizes[colour] > 1)
    while len(look):
        own, lengths = seen.entries(look)
        needed = np.zeros(n_views, np.bool_)
        needed[seen.values[own]] = True
        again = np.flatnonzero(needed & stale)
        at, counts = views.entries(again)
        key = np.repeat(np.arange(len(again)), counts) * span + colour[views.values[at]] * kinds + position[at]
        # A set: of equal entries of one view the first.
        key = _once(key)
        owner, content = np.divmod(key, span)
        shows[again] = _numbers(content, np.bincount(owner, minlength=len(again)), known)
        stale[again] = False
        # Rows of one class have one length: how much a program sees is part of its first colour.
        which = _numbers(
            np.insert(shows[seen.values[own]], np.cumsum(lengths) - lengths, colour[look]), lengths + 1, {}
        )
        first = np.unique(which, return_index=True)[1]
        part, size = colour[look[first]], np.bincount(which)
        order = np.lexsort((np.arange(len(first)), -size, part))
        largest = np.zeros(len(first), np.bool_)
        largest[order[np.flatnonzero(np.diff(part[order], prepend=-1))]] = True
        # Whom nobody looked at still sees what the class has always seen: those keep the colour then.
        looked_at = np.bincount(colour[look], minlength=n_colours)
        keeps = largest & (looked_at[part] == sizes[part])
        name = np.where(keeps, part, n_colours + np.cumsum(~keeps) - 1)
        colour[look] = name[which]
        n_colours += int((~keeps).sum())
        sizes = np.bincount(colour, minlength=n_colours)
        changed = look[~keeps[which]]
        stale[shown_in.values[shown_in.entries(changed)[0]]] = True
        watch = np.zeros(n, np.bool_)
        watch[seen_by.values[seen_by.entries(np.flatnonzero(stale))[0]]] = True
        look = np.flatnonzero(watch & (sizes[colour] > 1))
    return numbered_by_first(colour)


def _numbers(values: NDArray[np.int64], lengths: NDArray[np.int64], known: dict[bytes, int]) -> NDArray[np.int64]:
    """One number for each list of a row of lists, equal for equal lists; `known` remembers them."""
    data = np.ascontiguousarray(values, dtype=np.int64).tobytes()
    ends = (8 * np.cumsum(lengths)).tolist()
    found = np.empty(len(ends), np.int64)
    begin = 0
    for row, end in enumerate(ends):
        found[row] = known.setdefault(data[begin:end], len(known))
        begin = end
    return found


def _once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted, each once. (`np.unique` hashes first, which is four times as slow.)"""
    ordered = np.sort(values)
    first: NDArray[np.bool_] = np.diff(ordered, prepend=-1) != 0  # no value is negative
    return ordered[first]


def _dense(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
