"""Noise of single ops: how much longer a pass takes when every op of every rank takes a little more or less.

A pass of the step is timed on one rank, whose collectives cost what they cost when nobody is late. Here the ranks of a
whole cell run it side by side, each op with a factor of its own, and every collective starts with its last member. So
the mean grows with the number of ranks that wait for each other, and with the number of collectives in a pass.

Two levels: a cell's pass is sampled op by op (256 times), and the passes of the step then draw from what came out. Of a
larger cell 16 ranks run, the first ones in rank order; the maximum over more of them would be a little higher.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.samples import sample_makespans
from windtunnel.physics.graph import Graph, OpKind
from windtunnel.studies.training.disturbances.cells import tied_replicas
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.pass_builder import Segment

COPIES_MOST = 16
DRAWN = 256  # samples of a pass: a power of two
OPS_MOST = 2_000_000  # of all copies together; fewer copies of a longer pass


def pass_factors(layout: Layout, segments: tuple[Segment, ...], sigma: float, seed: int) -> NDArray[np.float32]:
    """float32[passes, DRAWN]: equally likely factors on each pass's duration when each op has noise `sigma`."""
    tables = np.ones((len(segments), DRAWN), np.float32)
    for number, segment in enumerate(segments):
        if not segment.duration_ns or not sigma:
            continue
        copies = copies_of(layout, segment)
        graph = cell_graph(layout, segment.graph, copies)
        durations = np.tile(segment.end_ns - segment.start_ns, copies)
        makespans = sample_makespans(graph, durations, durations > 0, sigma, DRAWN, seed)
        tables[number] = makespans / segment.duration_ns
    return tables


def copies_of(layout: Layout, segment: Segment) -> int:
    """Ranks of a cell that are run side by side."""
    cell = layout.plan.tp * layout.plan.cp * tied_replicas(layout)
    return max(1, min(cell, COPIES_MOST, OPS_MOST // max(1, segment.graph.n_ops)))


def cell_graph(layout: Layout, base: Graph, copies: int) -> Graph:
    """`copies` ranks of one cell in rank order, each running `base`; their collectives meet by group."""
    n, rank = base.n_ops, np.arange(copies, dtype=np.int64)
    meets = np.full((copies, n), -1, np.int64)
    joint = (base.kind == OpKind.COLLECTIVE) | (base.kind == OpKind.SEND)
    for category in np.unique(base.category[joint]):
        # "exposed GROUP (TIER)": copies to the host have no group, and meet nobody.
        group = _members(layout, base.categories[category].removeprefix("exposed ").partition(" (")[0])
        if group is None:
            continue
        size, stride = group
        # The first rank of the group lends its op as the name of the rendezvous.
        first = rank // (stride * size) * (stride * size) + rank % stride
        ops = np.flatnonzero(joint & (base.category == category))
        meets[:, ops] = first[:, None] * n + ops
    return base.copies(copies, meets, np.ones(copies, np.int64))


def _members(layout: Layout, group: str) -> tuple[int, int] | None:
    """Size and stride of a group of ranks; None where its members are not neighbours of one stage."""
    if group not in ("tp", "cp", "dp", "replica", "ep", "etp", "edp"):
        return None
    members = layout.group(group)
    return members.size, (members.span - 1) // (members.size - 1) if members.size > 1 else 1
