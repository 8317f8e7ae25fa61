"""SpotServe's mapping (ASPLOS '24): which GPU takes which position of the new layout, so that most bytes stay.

    weight(gpu, position) = bytes of weights and of KV cache that the position needs and the GPU holds
    the mapping is a maximum-weight matching (Kuhn-Munkres); what is not held is moved

Positions are (data, pipeline, tensor) ranks of a model of L layers: rank (d, p, t) of (D, P, T) holds the tensor slice
[t / T, (t + 1) / T) of layers [p L / P, (p + 1) L / P), and the KV cache of the requests of replica d for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Layout = tuple[int, int, int]  # data, pipeline, tensor parallelism
Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Migration:
    """`gpu_of[i]`: which GPU takes position i, and the bytes that it has to receive there."""

    positions: tuple[Position, ...]
    gpu_of: tuple[int, ...]
    received_bytes: tuple[float, ...]  # by position; weights and cache
    received_cache: tuple[float, ...]  # the cache alone

    @property
    def moved_bytes(self) -> float:
        """In all."""
        return sum(self.received_bytes)


def positions_of(layout: Layout) -> tuple[Position, ...]:
    """All ranks of a layout, data first."""
    data, pipeline, tensor = layout
    return tuple((d, p, t) for d in range(data) for p in range(pipeline) for t in range(tensor))


def overlap(mine: Position, of: Layout, wanted: Position, to: Layout) -> float:
    """Share of the whole model that a GPU at `mine` of layout `of` holds and `wanted` of layout `to` needs."""
    layers = _common(mine[1], of[1], wanted[1], to[1])
    slices = _common(mine[2], of[2], wanted[2], to[2])
    return layers * slices


def map_positions(
    old_positions: Sequence[Position | None],
    old: Layout,
    new: Layout,
    weight_bytes: float,
    kv_bytes: Sequence[float] = (),
    replica_of: dict[int, int] | None = None,
) -> Migration:
    """The mapping that keeps most bytes.

    `old_positions[gpu]`: in the old layout, None for a fresh GPU. `kv_bytes[d]`: KV cache of the old replica d.
    `replica_of`: old replica -> new replica that takes its requests on; what is not named is dropped. Raises
    AssertionError where there are fewer GPUs than positions.
    """
    positions = positions_of(new)
    assert len(old_positions) >= len(positions), "more positions than GPUs: choose a smaller layout"
    moved_to = replica_of or {}
    value = [[0.0] * len(positions) for _ in old_positions]
    for gpu, mine in enumerate(old_positions):
        if mine is None:
            continue
        for place, wanted in enumerate(positions):
            part = overlap(mine, old, wanted, new)
            cached = kv_bytes[mine[0]] if kv_bytes and moved_to.get(mine[0]) == wanted[0] else 0.0
            value[gpu][place] = part * (weight_bytes + cached)
    matched = maximum_matching(value)
    taken_over = [0.0] * new[0]
    for old_d, new_d in moved_to.items():
        taken_over[new_d] += kv_bytes[old_d] if kv_bytes else 0.0
    share = 1.0 / (new[1] * new[2])
    weights, caches = [], []
    for gpu, wanted in zip(matched, positions, strict=True):
        mine = old_positions[gpu]
        part = 0.0 if mine is None else overlap(mine, old, wanted, new)
        own = kv_bytes[mine[0]] if mine is not None and kv_bytes and moved_to.get(mine[0]) == wanted[0] else 0.0
        weights.append(max(0.0, (share - part) * weight_bytes))
        caches.append(max(0.0, share * taken_over[wanted[0]] - part * own))
    received = tuple(map(sum, zip(weights, caches, strict=True)))
    return Migration(positions, tuple(matched), received, tuple(caches))


def missing_layers(
    mine: Position | None, old: Layout, wanted: Position, new: Layout, layers: int, weight_bytes: float
) -> tuple[int, list[float]]:
    """(first layer of `wanted`, weight bytes of each of its layers that a GPU at `mine` lacks); a cut may split one."""
    begin, end = wanted[1] * layers / new[1], (wanted[1] + 1) * layers / new[1]
    front, slices, lacks = int(begin), 0.0, []
    have = (0.0, 0.0)
    if mine is not None:
        slices = _common(mine[2], old[2], wanted[2], new[2])
        have = mine[1] * layers / old[1], (mine[1] + 1) * layers / old[1]
    layer = front
    while layer < end - 1e-9:
        low, high = max(begin, layer), min(end, layer + 1)
        there = max(0.0, min(high, have[1]) - max(low, have[0]))
        lacks.append(max(0.0, weight_bytes / layers * ((high - low) / new[2] - there * slices)))
        layer += 1
    return front, lacks


def maximum_matching(value: Sequence[Sequence[float]]) -> list[int]:
    """Kuhn-Munkres: for every column a row of its own, the sum of `value[row][column]` as large as can be.

    Potentials and shortest augmenting paths, O(columns^2 x rows). Ties go to the lowest row.
    """
    rows = len(value)
    columns = len(value[0]) if rows else 0
    assert rows >= columns, "fewer rows than columns"
    infinite = float("inf")
    of_column, of_row = [0.0] * (columns + 1), [0.0] * (rows + 1)
    column_of = [0] * (rows + 1)  # 1-based; 0: free
    for column in range(1, columns + 1):
        column_of[0] = column
        row = 0
        least = [infinite] * (rows + 1)
        before = [0] * (rows + 1)
        seen = [False] * (rows + 1)
        while True:
            seen[row] = True
            at, step, following = column_of[row], infinite, -1
            for other in range(1, rows + 1):
                if seen[other]:
                    continue
                cost = -value[other - 1][at - 1] - of_column[at] - of_row[other]
                if cost < least[other]:
                    least[other], before[other] = cost, row
                if least[other] < step:
                    step, following = least[other], other
            for other in range(rows + 1):
                if seen[other]:
                    of_column[column_of[other]] += step
                    of_row[other] -= step
                else:
                    least[other] -= step
            row = following
            if column_of[row] == 0:
                break
        while row:
            column_of[row] = column_of[before[row]]
            row = before[row]
    matched = [0] * columns
    for row in range(1, rows + 1):
        if column_of[row]:
            matched[column_of[row] - 1] = row - 1
    return matched


def _common(i: int, n: int, j: int, m: int) -> float:
    """Length that the i-th of n equal parts of [0, 1) shares with the j-th of m."""
    return max(0.0, min((i + 1) / n, (j + 1) / m) - max(i / n, j / m))
