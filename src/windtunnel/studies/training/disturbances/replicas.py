"""Replicas: the step graph of one pipeline, unfolded into as many classes of replicas as can be told apart.

Replicas meet only in collectives that each stage holds across all of them (gradients, parameters, the gradient norm).
So the partition of replicas by their vector of disturbances, stage by stage, is equitable: every replica of a class
sees the same multiset of partners, and one of them stands for all. Undisturbed, that is one class; one slow GPU makes
it two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph import Graph, OpKind
from windtunnel.physics.graph.footprint import refuse_if_too_large
from windtunnel.physics.step.step import Step, step_of
from windtunnel.studies.training.disturbances.cells import in_step
from windtunnel.studies.training.disturbances.contention import LinkFactors
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.pass_builder import Segment
from windtunnel.studies.training.lowering.passes import PARTS, nic_parts, passes_at
from windtunnel.studies.training.lowering.step import DP, STREAMS, LoweredStep
from windtunnel.studies.training.pricing import Pricer


@dataclass(frozen=True, eq=False)
class Unfolded:
    """A step whose replicas differ. Program k * stages + r is stage r of replica class k."""

    step: Step
    class_of: NDArray[np.int64]  # [replicas]
    sizes: NDArray[np.int64]  # [classes] replicas in each


def unfold(
    step: LoweredStep,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    compute: NDArray[np.float64],
    links: NDArray[np.float64],
    shared: LinkFactors | None = None,
    *,
    fold: bool = True,
) -> Unfolded:
    """Classes of replicas and their graph. `fold=False` gives every replica its own class: the naive twin.

    `compute`, `links`: float64[replicas, stages], factors on each cell's compute and on its NICs. `shared`: on
    what goes over links that cells share; what crosses both a slow NIC and a slow uplink takes the longer of the two.
    """
    shared = LinkFactors.none(layout) if shared is None else shared
    inside = np.maximum(links, in_step(layout, shared.inside))
    reduced = np.maximum(links.max(axis=0), shared.reduced)
    vectors = np.concatenate([compute, links, inside, in_step(layout, shared.hops)], axis=1)
    if fold:
        kinds, class_of, sizes = np.unique(vectors, axis=0, return_inverse=True, return_counts=True)
    else:
        kinds, class_of, sizes = vectors, np.arange(len(vectors)), np.ones(len(vectors), np.int64)
    stages = layout.plan.pp
    cells = _Cells(*np.split(kinds, 4, axis=1))
    base, n, k = step.graph, step.graph.n_ops, len(kinds)
    fewest = len(np.unique(vectors, axis=0)) if not fold else k
    folded = None if fold else (fewest * stages, fewest * n)
    refuse_if_too_large(k * n, k * len(base.dep_idx), k * base.n_streams, folded=folded)
    slowed = _slowed_passes(step, pieces, pricer, cells)
    duration = _durations(step, cells, slowed, reduced)
    multiplicity = np.repeat(sizes, stages) * (layout.plan.tp * layout.plan.cp)
    graph = base.copies(k, _rendezvous(base, k), multiplicity)
    class_of = class_of.ravel()
    ready = step_of(
        graph,
        duration,
        np.tile(step.interference, k),
        np.array(pricer.training.slowdown_factors()),
        _nic_shares(step, cells, slowed, reduced),
        np.repeat((class_of * stages + np.arange(stages)[:, None]).ravel(), layout.plan.tp * layout.plan.cp),
    )
    return Unfolded(ready, class_of, sizes)


def meets_across(base: Graph) -> NDArray[np.bool_]:
    """bool[n]: ops that start only when every replica may: data-parallel collectives and the gradient norm."""
    reduced: NDArray[np.bool_] = base.stream % len(STREAMS) == DP
    return reduced | _is_norm(base)


def _is_norm(base: Graph) -> NDArray[np.bool_]:
    norm: NDArray[np.bool_] = np.array([name == "gradient norm" for name in base.labels])[base.label]
    return norm


def _rendezvous(base: Graph, classes: int) -> NDArray[np.int64]:
    """Data-parallel collectives of one stage meet across classes; so does what already met across stages."""
    n = base.n_ops
    meets = np.full((classes, n), -1, np.int64)
    norm = _is_norm(base)
    across = meets_across(base) & ~norm
    meets[:, across] = np.flatnonzero(across)
    if norm.any():
        meets[:, norm] = np.flatnonzero(norm)[0]
    # Tied embeddings are summed between the ends of one replica's pipeline.
    within = (base.rendezvous >= 0) & ~norm
    if within.any():
        meets[:, within] = np.flatnonzero(within)[0] + n * np.arange(classes)[:, None]
    return meets


@dataclass(frozen=True, eq=False)
class _Cells:
    """Factors of each class of replicas, float64[classes, stages]."""

    compute: NDArray[np.float64]
    own_link: NDArray[np.float64]  # NICs of the cell itself
    inside: NDArray[np.float64]  # on links that the passes use, its own or shared
    shared_hops: NDArray[np.float64]  # on links between the cell and the next stage's that others use too

    def differ(self) -> list[tuple[int, int, tuple[float, float]]]:
        """Class, stage and factors on compute and links of the cells whose passes take longer."""
        where = np.argwhere((self.compute > 1.0) | (self.inside > 1.0)).tolist()
        return [(k, stage, (float(self.compute[k, stage]), float(self.inside[k, stage]))) for k, stage in where]


def _slowed_passes(
    step: LoweredStep, pieces: tuple[Piece, ...], pricer: Pricer, cells: _Cells
) -> dict[tuple[float, float], tuple[Segment, ...]]:
    """The passes of a step by factors on compute and links."""
    wanted = dict.fromkeys(factors for _, _, factors in cells.differ())
    return {factors: passes_at(step, pieces, pricer.slowed(*factors)) for factors in wanted}


def _durations(
    step: LoweredStep,
    cells: _Cells,
    slowed: dict[tuple[float, float], tuple[Segment, ...]],
    worst_link: NDArray[np.float64],
) -> NDArray[np.int64]:
    base = step.graph
    durations = np.tile(step.duration_ns, (len(cells.compute), 1))
    program = base.program
    passes = base.category < len(step.segments)
    nominal = np.array([segment.duration_ns for segment in step.segments], np.int64)
    variants = {
        factors: np.array([segment.duration_ns for segment in segments], np.int64)
        for factors, segments in slowed.items()
    }
    for k, stage, factors in cells.differ():
        own = np.flatnonzero(passes & (program == stage))
        segment = base.category[own]
        # A pass that is cut into buckets keeps its cuts.
        # In floating point: two passes of some seconds, multiplied, leave 64 bits.
        ratio = variants[factors][segment] / np.maximum(nominal[segment], 1)
        durations[k, own] = np.rint(step.duration_ns[own] * ratio).astype(np.int64)
        last = (base.kind == OpKind.COMPUTE) & (program == stage) & ~passes  # the optimizer
        durations[k, last] = np.rint(step.duration_ns[last] * factors[0]).astype(np.int64)
    outside = _across_nodes(base)
    hops = np.flatnonzero(outside & (base.kind == OpKind.SEND))
    sender, receiver = step.sender[hops], step.receiver[hops]
    # Between neighbours the earlier stage holds the factor; from the last stage round to the first one, the last.
    between = np.where(np.abs(sender - receiver) == 1, np.minimum(sender, receiver), np.maximum(sender, receiver))
    for k, (own_link, shared_hops) in enumerate(zip(cells.own_link, cells.shared_hops, strict=True)):
        if max(own_link.max(), shared_hops.max()) > 1.0:
            slower = np.maximum(np.maximum(own_link[sender], own_link[receiver]), shared_hops[between])
            durations[k, hops] = np.rint(step.duration_ns[hops] * slower).astype(np.int64)
    reduced = outside & (base.stream % len(STREAMS) == DP)
    if (worst_link > 1.0).any():  # a ring goes at the pace of its slowest link, for all replicas
        durations[:, reduced] = np.rint(step.duration_ns[reduced] * worst_link[program[reduced]]).astype(np.int64)
    return durations.ravel()


def _nic_shares(
    step: LoweredStep,
    cells: _Cells,
    slowed: dict[tuple[float, float], tuple[Segment, ...]],
    worst_link: NDArray[np.float64],
) -> NDArray[np.float64]:
    """float64[classes x ops]: share of what is left of its cell's NIC that each op takes.

    Bytes do not change. A pass that hides its transfers takes more of a slow NIC, and less while it computes slowly.
    What is held up elsewhere, by an uplink or another replica's NIC, leaves the rest of this one to others.
    """
    base = step.graph
    shares = np.tile(step.nic_share, (len(cells.compute), 1))
    passes, program = base.category < len(step.segments), base.program
    variants = {factors: nic_parts(segments) / PARTS for factors, segments in slowed.items()}
    for k, stage, factors in cells.differ():
        own = np.flatnonzero(passes & (program == stage))
        shares[k, own] = variants[factors][base.category[own]] * (cells.own_link[k, stage] / cells.inside[k, stage])
    reduced = np.flatnonzero(_across_nodes(base) & (base.stream % len(STREAMS) == DP))
    if (worst_link > 1.0).any():
        shares[:, reduced] *= (cells.own_link / worst_link)[:, program[reduced]]
    return shares.ravel()


def _across_nodes(base: Graph) -> NDArray[np.bool_]:
    """bool[n]: transfers between scale-up domains."""
    across: NDArray[np.bool_] = np.array(["(scale-out)" in name for name in base.categories])[base.category]
    return across
