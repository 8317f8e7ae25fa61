"""Exact folding: ranks that no clock can tell apart are simulated once.

Colour refinement. Every rank starts with the colour of what it does itself. Then, until nothing splits any more, two
ranks keep the same colour only if in each communicator they see the same colours. At that fixed point ranks of one
colour have the same timeline: an op starts at the latest of what it waits for and goes at the lowest rate of whom it
meets. So one rank stands for all of its colour, and nothing is approximated.

`refine` does this before anything is priced. It counts how many of each colour a communicator holds, because prices
depend on that. The same for a priced graph, op by op, is tests/laws/exact_fold.py, which the laws hold this against.
Sources: A. Cardon, M. Crochemore, "Partitioning a graph in O(|A| log2 |V|)", 1982; P. Buchholz, "Exact and ordinary
lumpability", 1994.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]


def refine(
    colour: Ints,
    communicators: Sequence[Ints],
    positions: Sequence[Ints | None] | None = None,
) -> NDArray[np.int64]:
    """int64[ranks]: the coarsest partition that refines `colour` and that no communicator can split further.

    `communicators`: one matrix [groups, size] of rank numbers per family (all tensor-parallel groups, say); a rank is
    in at most one group of a family. `positions[f]`: class of each column of family f where the place in the group
    matters (`arange(size)` for a pipeline); None: all members are alike. Classes are numbered by their first rank.
    """
    own = _dense(np.asarray(colour))
    ranks = len(own)
    places = list(positions) if positions is not None else [None] * len(communicators)
    assert len(places) == len(communicators), "one entry of positions per family"
    seen = np.full((ranks, len(communicators)), -1, np.int64)
    lengths: list[NDArray[np.int64]] = []
    members: list[NDArray[np.int64]] = []
    classes: list[NDArray[np.int64]] = []
    n_views = 0
    for family, (groups, place) in enumerate(zip(communicators, places, strict=True)):
        count, size = groups.shape
        flat = np.ascontiguousarray(groups, dtype=np.int64).ravel()
        assert not len(flat) or np.bincount(flat, minlength=ranks).max() == 1, "a rank is twice in one family"
        alike = np.zeros(size, np.int64) if place is None else _dense(np.asarray(place))
        column = np.tile(alike, count)
        seen[flat, family] = n_views + np.repeat(np.arange(count), size)
        if alike.any() or len(flat) < ranks:
            at = np.full(ranks, -1, np.int64)
            at[flat] = column
            own = _dense(own * (size + 1) + at + 1)
        n_views += count
        lengths.append(np.full(count, size, np.int64))
        members.append(flat)
        classes.append(column)
    return _settle(
        own,
        _Lists.of(_joined(lengths), _joined(members)),
        _joined(classes),
        _Lists.of((seen >= 0).sum(axis=1), seen[seen >= 0]),
        counted=True,
    )


@dataclass(frozen=True, eq=False)
class _Lists:
    """Lists of integers in a row: list i is values[ptr[i]:ptr[i+1]]."""

    ptr: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: Ints, values: NDArray[np.int64]) -> _Lists:
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


def _settle(
    colour: NDArray[np.int64], views: _Lists, position: NDArray[np.int64], seen: _Lists, *, counted: bool
) -> NDArray[np.int64]:
    """Split classes until members of one see equal views, first view with first view and so on.

    A view is a list of members, each with a position class; it shows the set (`counted`: the multiset) of (colour,
    position). Contents are compared in full, as bytes, never by a hash alone. When a class splits, its largest part
    that was looked at keeps the colour, so that only those that changed are looked at again, and who sees them.
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
        # Equal entries of one view are neighbours once sorted; a set keeps the first of them.
        key = np.sort(key) if counted else _once(key)
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


def _dense(values: Ints) -> NDArray[np.int64]:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def numbered_by_first(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same partition, its parts numbered by their first members."""
    _, first, part = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    renumbered: NDArray[np.int64] = number[part.ravel()]
    return renumbered


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
