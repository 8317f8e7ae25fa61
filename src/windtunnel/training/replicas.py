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

from windtunnel.graph import Graph, OpKind
from windtunnel.training.layout import Layout
from windtunnel.training.lower import DP, PP_BACKWARD, PP_FORWARD, STREAMS, Step, slowed_passes
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


def unfold(
    step: Step,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    compute: NDArray[np.float64],
    links: NDArray[np.float64],
    *,
    fold: bool = True,
) -> Unfolded:
    """Classes of replicas and their graph. `fold=False` gives every replica its own class: the naive twin.

    `compute`, `links`: float64[replicas, stages], factors on each cell's compute and on its links.
    """
    vectors = np.concatenate([compute, links], axis=1)
    if fold:
        kinds, class_of, sizes = np.unique(vectors, axis=0, return_inverse=True, return_counts=True)
    else:
        kinds, class_of, sizes = vectors, np.arange(len(vectors)), np.ones(len(vectors), np.int64)
    stages = layout.plan.pp
    compute_k, links_k = kinds[:, :stages], kinds[:, stages:]
    base, n, k = step.graph, step.graph.n_ops, len(kinds)
    duration = _durations(step, layout, pieces, pricer, compute_k, links_k, links.max(axis=0))
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
    return Unfolded(graph, duration, np.tile(step.interference, k), class_of.ravel(), sizes)


def _rendezvous(base: Graph, classes: int) -> NDArray[np.int32]:
    """Data-parallel collectives of one stage meet across classes; so does what already met across stages."""
    n = base.n_ops
    meets = np.full((classes, n), -1, np.int64)
    across = base.stream % len(STREAMS) == DP
    meets[:, across] = np.flatnonzero(across)
    label = np.array([name == "gradient norm" for name in base.labels])[base.label]
    if label.any():
        meets[:, label] = np.flatnonzero(label)[0]
    # Tied embeddings are summed between the ends of one replica's pipeline.
    within = (base.rendezvous >= 0) & ~label
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
    worst_link: NDArray[np.float64],
) -> NDArray[np.int64]:
    base = step.graph
    classes, stages = compute.shape
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
    stream = base.stream % len(STREAMS)
    sender = (program + np.where(stream == PP_FORWARD, -1, 1)) % stages
    hops = outside & (base.kind == OpKind.SEND)
    arriving = (stream == PP_FORWARD) | (stream == PP_BACKWARD)
    reduced = outside & (stream == DP)
    for k in range(classes):
        if (links[k] > 1.0).any():
            slower = np.where(arriving, np.maximum(links[k, program], links[k, sender]), links[k, program])
            durations[k, hops] = np.rint(step.duration_ns[hops] * slower[hops]).astype(np.int64)
    if (worst_link > 1.0).any():  # a ring goes at the pace of its slowest link, for all replicas
        durations[:, reduced] = np.rint(step.duration_ns[reduced] * worst_link[program[reduced]]).astype(np.int64)
    return durations.ravel()
