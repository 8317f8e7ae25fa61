"""Ranks that are run to test a fold: drawn so that parts of a rank that no other has are met, by pairs.

A part is what a rank may be treated by: a stretch of an axis, what a test of the source gives, kinds of tensors in its
share of a flat buffer. Programs that hang on one part, or on two together, are met by the ranks that hold
the most pairs that no rank holds which was run; among those, and where all were met, by chance.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.programs.rank_classes.flat_buffers import FlatBuffer, place_in
from windtunnel.studies.programs.rank_classes.grid import RankAxes

SOURCE_WEIGHT = 4  # of what the source or a buffer tells of, where a stretch of an axis counts 1
STRETCHES = 8  # of an axis; shorter ones are taken place by place


def parts_of_ranks(
    layout: RankAxes, buffers: Iterable[FlatBuffer] = (), tests: Iterable[NDArray[np.bool_]] = ()
) -> NDArray[np.int64]:
    """For each rank a row of its parts, as small numbers."""
    grid = layout.grid
    places = np.stack(np.unravel_index(np.arange(grid.world_size), grid.sizes), axis=1)
    columns = [places[:, d] * min(STRETCHES, grid.sizes[d]) // grid.sizes[d] for d in layout.axes]
    columns += [np.asarray(test, np.int64) for test in tests]
    for buffer in dict.fromkeys(buffers):
        span = grid.span(buffer.members)
        if buffer.is_lattice(grid):
            numbers: dict[frozenset[tuple[int, int]], int] = {}
            held = np.array([numbers.setdefault(kinds, len(numbers)) for kinds in buffer.kinds()])
            columns.append(held[place_in(grid, span, places)])
    return np.stack(columns, axis=1) if columns else np.zeros((grid.world_size, 0), np.int64)


def draw(
    layout: RankAxes, count: int, seed: int, ranks_run: Collection[int], parts: NDArray[np.int64] | None = None
) -> list[int]:
    """Ranks to verify with, among those not run yet: `count` of them, or all there are.

    Stages at one place along the axes are drawn together: where they exchange messages, none runs without the others.
    """
    world = layout.grid.world_size
    rows, row_of = np.unique(parts_of_ranks(layout) if parts is None else parts, axis=0, return_inverse=True)
    row_of = row_of.reshape(world)
    left = np.ones(world, bool)
    left[list(ranks_run)] = False
    run = list({int(row_of[rank]) for rank in ranks_run})
    order = random.Random(seed)
    stages = layout.stages()
    chosen: list[int] = []
    while len(chosen) < count and left.any():
        gains = _unseen_pairs(rows, run, len(layout.axes))[row_of] * left if rows.shape[1] else left * 0
        best = np.flatnonzero(left & (gains == gains[left].max()))
        rank = int(best[order.randrange(len(best))])
        _, along = layout.place(rank)
        others = [other for exact in stages if (other := layout.rank(exact, along)) != rank and left[other]]
        taken = [rank, *order.sample(others, min(len(others), count - len(chosen) - 1))]
        left[[rank, *others]] = False
        run += [int(row_of[other]) for other in taken]
        chosen += taken
    return sorted(chosen)


def _unseen_pairs(rows: NDArray[np.int64], run: Sequence[int], axes: int) -> NDArray[np.int64]:
    """How many pairs of parts each row has that no row has which ran; a pair with stretches of axes counts less."""
    gains = np.zeros(len(rows), np.int64)
    for one, other in combinations(range(rows.shape[1]), 2):
        pairs = rows[:, one] * (rows[:, other].max() + 1) + rows[:, other]
        seen = np.zeros(pairs.max() + 1, bool)
        seen[pairs[run]] = True
        gains += ~seen[pairs] * SOURCE_WEIGHT ** ((one >= axes) + (other >= axes))
    return gains
