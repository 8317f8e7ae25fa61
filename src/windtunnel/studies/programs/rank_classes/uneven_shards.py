"""Where shards become shorter: parameters whose length does not divide by the ranks that share them.

A dimension of n rows on a mesh dimension of s ranks is cut into parts of ceil(n / s) rows, as `torch.chunk` does: the
first floor(n / part) ranks hold whole parts, the next one what is left, and all others nothing. Programs change there,
if anywhere, so it is there that ranks are run first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windtunnel.studies.programs.rank_classes.grid import Members, RankAxes

Tail = tuple[Members, Sequence[int]]  # a group, and the places in it at which parts become shorter


def short_from(length: int, size: int) -> set[int]:
    """The places from which on `size` ranks hold less of `length` rows than the one before."""
    each = max(1, -(-length // size))
    return {at for at in (length // each, -(-length // each)) if 0 < at < size}


def likely_cuts(layout: RankAxes, tails: Iterable[Tail]) -> list[set[int]]:
    """Places along each axis before which programs probably change.

    In a group that spans several axes a tail may begin inside a row, which is then cut off before and behind.
    """
    cuts: list[set[int]] = [set() for _ in layout.axes]
    for members, places in tails:
        spanned = [axis for axis, d in enumerate(layout.axes) if d in layout.grid.span(members)]
        for place in places:
            _, along = layout.place(members[place])
            for turn, axis in enumerate(spanned):
                inside = any(along[later] for later in spanned[turn + 1 :])
                cuts[axis] |= {along[axis], along[axis] + inside}
    return [{at for at in places if 0 < at < length} for places, length in zip(cuts, layout.lengths, strict=True)]
