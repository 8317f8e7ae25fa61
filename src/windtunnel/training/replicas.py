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

from windtunnel.engine.sharing import Sharing
from windtunnel.graph import Graph, OpKind
from windtunnel.graph.footprint import refuse_if_too_large
from windtunnel.training.contention import LinkFactors
from windtunnel.training.disturbances import in_step
from windtunnel.training.layout import Layout
from windtunnel.training.lower import DP, STREAMS, Step, slowed_passes
from windtunnel.training.nics import step_sharing
from windtunnel.training.pieces import Piece
from windtunnel.training.pricing import Pricer


@dataclass(frozen=True, eq=False)
class Unfolded:
    """A step whose replicas differ. Program k * stages + r is stage r of replica class k."""

    graph: Graph
    duration_ns: NDArray[np.int64]
    interference: NDArray[np.uint8]
    class_of: NDArray[np.int64]  # [replicas]
    sizes: NDArray[np.int64]  # [classes] replicas in each
    sharing: Sharing | None  # of the NICs


def unfold(
    step: Step,
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
    inside, hops, reduced = links, links, links.max(axis=0)
    if shared is not None:
        inside = np.maximum(links, in_step(layout, shared.inside))
        hops = np.maximum(links, in_step(layout, shared.hops))
        reduced = np.maximum(reduced, shared.reduced)
    vectors = np.concatenate([compute, inside, hops], axis=1)
    if fold:
        kinds, class_of, sizes = np.unique(vectors, axis=0, return_inverse=True, return_counts=True)
    else:
        kinds, class_of, sizes = vectors, np.arange(len(vectors)), np.ones(len(vectors), np.int64)
    stages = layout.plan.pp
    compute_k, inside_k, hops_k = kinds[:, :stages], kinds[:, stages : 2 * stages], kinds[:, 2 * stages :]
    base, n, k = step.graph, step.graph.n_ops, len(kinds)
    fewest = len(np.unique(vectors, axis=0)) if not fold else k
    folded = None if fold else (fewest * stages, fewest * n)
    refuse_if_too_large(k * n, k * len(base.dep_idx), k * base.n_streams, folded=folded)
    duration = _durations(step, layout, pieces, pricer, compute_k, inside_k, hops_k, reduced)
    which = np.arange(k, dtype=np.int64)[:, None]
    graph = Graph(
        kind=np.tile(base.kind, k),
        stream=(base.stream + which * base.n_streams).ravel().astype(np.int32),
        stream_rank=(base.stream_rank + which * stages).ravel().astype(np.int32),
        dep_ptr=np.concatenate([[0], (base.dep_ptr[1:] + which * len(base.dep_idx)).ravel()]).astype(np.int64),
        dep_idx=(base.dep_idx + which * n).ravel().astype(np.int32),
        rendezvous=_rendezvous(base, k),
        label=np.tile(base.label, k),
        category=np.tile(base.category, k),
        flops=np.tile(base.flops, k),
        bytes=np.tile(base.bytes, k),
        multiplicity=np.repeat(sizes, stages) * (layout.plan.tp * layout.plan.cp),
        labels=base.labels,
        categories=base.categories,
        stream_names=base.stream_names * k,
    )
    sharing = step_sharing(graph, np.tile(step.nic_share, k))
    return Unfolded(graph, duration, np.tile(step.interference, k), class_of.ravel(), sizes, sharing)


def meets_across(base: Graph) -> NDArray[np.bool_]:
    """bool[n]: ops that start only when every replica may: data-parallel collectives and the gradient norm."""
    reduced: NDArray[np.bool_] = base.stream % len(STREAMS) == DP
    return reduced | _is_norm(base)


def _is_norm(base: Graph) -> NDArray[np.bool_]:
    norm: NDArray[np.bool_] = np.array([name == "gradient norm" for name in base.labels])[base.label]
    return norm


def _rendezvous(base: Graph, classes: int) -> NDArray[np.int32]:
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
    return meets.ravel().astype(np.int32)


def _durations(
    step: Step,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    compute: NDArray[np.float64],
    links: NDArray[np.float64],
    hop_links: NDArray[np.float64],
    worst_link: NDArray[np.float64],
) -> NDArray[np.int64]:
    base = step.graph
    classes = len(compute)
    durations = np.tile(step.duration_ns, (classes, 1))
    program = base.program
    passes = base.category < len(step.segments)
    nominal = np.array([segment.duration_ns for segment in step.segments], np.int64)
    variants: dict[tuple[float, float], NDArray[np.int64]] = {}
    for k in range(classes):
        for stage in np.flatnonzero((compute[k] > 1.0) | (links[k] > 1.0)):
            factors = (float(compute[k, stage]), float(links[k, stage]))
            if factors not in variants:
                variants[factors] = slowed_passes(step, pieces, pricer, *factors)
            own = np.flatnonzero(passes & (program == stage))
            segment = base.category[own]
            # A pass that is cut into buckets keeps its cuts.
            durations[k, own] = step.duration_ns[own] * variants[factors][segment] // np.maximum(nominal[segment], 1)
            last = (base.kind == OpKind.COMPUTE) & (program == stage) & ~passes  # the optimizer
            durations[k, last] = np.rint(step.duration_ns[last] * factors[0]).astype(np.int64)
    outside = np.array(["(scale-out)" in name for name in base.categories])[base.category]
    hops = np.flatnonzero(outside & (base.kind == OpKind.SEND))
    ends = step.sender[hops], step.receiver[hops]
    reduced = outside & (base.stream % len(STREAMS) == DP)
    for k in range(classes):
        if (hop_links[k] > 1.0).any():
            slower = np.maximum(hop_links[k, ends[0]], hop_links[k, ends[1]])
            durations[k, hops] = np.rint(step.duration_ns[hops] * slower).astype(np.int64)
    if (worst_link > 1.0).any():  # a ring goes at the pace of its slowest link, for all replicas
        durations[:, reduced] = np.rint(step.duration_ns[reduced] * worst_link[program[reduced]]).astype(np.int64)
    return durations.ravel()
