"""A step whose work is uneven: experts of uneven popularity, sequences packed from documents of uneven length.

`router_load.py` and `sequence_lengths.py` say how uneven; here it becomes a step, what it costs against even work, and
what makes one step unlike the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.samples import Draw, Source
from windtunnel.physics.step.result import Blame, Disturbed, Samples
from windtunnel.studies.training.disturbances.cells import tied_replicas
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.lowering.simulated import Simulated
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.workload.router_load import RouterLoad, rank_loads_of
from windtunnel.studies.training.workload.sequence_lengths import (
    Lengths,
    attention_shares,
    attention_variants,
    micro_batch_of,
    waited_shares,
)

STEPS_MOST = 64  # of a router trace that are simulated, evenly chosen
DRAWS = 8  # steps over which the mean attention of packed sequences is taken


@dataclass(frozen=True, eq=False)
class Routed:
    """The steps of a router trace: the one of median length, and how they spread."""

    load: RouterLoad
    simulated: Simulated
    samples: Samples | None  # None for a single step
    steps: tuple[Simulated, ...]  # all that were simulated


def routed(
    loads: tuple[RouterLoad, ...], layout: Layout, simulate: Callable[[tuple[Piece, ...]], Simulated], seed: int
) -> Routed:
    """Simulate the steps of a router trace, at most STEPS_MOST of them."""
    chosen = [loads[i] for i in np.unique(np.linspace(0, len(loads) - 1, STEPS_MOST).astype(int))]
    steps = [simulate(pieces_of(layout, load)) for load in chosen]
    times = np.array([step.makespan_ns for step in steps])
    middle = int(np.argsort(times, kind="stable")[(len(times) - 1) // 2])
    samples = None
    if len(times) > 1:
        low, median, high = (int(value) for value in np.percentile(times, [5, 50, 95], method="inverted_cdf"))
        samples = Samples(0.0, len(times), seed, low, median, high)
    return Routed(chosen[middle], steps[middle], samples, tuple(steps))


def mean_document(lengths: Lengths, layout: Layout, seed: int) -> int:
    """Tokens of the document that a token finds itself in, on average: the attention of evenly spread work."""
    shares = [attention_shares(lengths, layout, seed, draw).mean() for draw in range(DRAWS)]
    return max(1, round(float(np.mean(shares)) * layout.plan.seq_len))


def packed(
    lengths: Lengths, layout: Layout, step: LoweredStep, pieces: tuple[Piece, ...], pricer: Pricer, seed: int
) -> Source:
    """What packing does to each pass of each replica, step by step, over the same attention spread evenly.

    `step`, `pricer`: with documents of `mean_document`.
    """
    tied = tied_replicas(layout)
    variants = attention_variants(step, pieces, pricer)
    nominal = np.array([max(1, segment.duration_ns) for segment in step.segments], np.float64)[:, None, None, None]
    micro_batch = micro_batch_of(step)

    def start(first_sample: int, lanes: int) -> Draw:
        per_lane = []
        for lane in range(lanes):
            shares = attention_shares(lengths, layout, seed, first_sample + lane)
            per_lane.append(waited_shares(shares, tied)[::tied])
        ratios = (variants(np.stack(per_lane)) / nominal).astype(np.float32)  # [segments, lanes, units, micro-batches]

        def draw(low: int, high: int, ops: NDArray[np.int64]) -> NDArray[np.float32]:
            factors = np.ones((high - low, len(ops), lanes), np.float32)
            rows = np.flatnonzero(micro_batch[ops] >= 0)
            own = ops[rows]
            for unit in range(low, high):
                factors[unit - low, rows] = ratios[step.graph.category[own], :, unit, micro_batch[own]]
            return factors

        return draw

    return Source(start)


def busiest_experts(load: RouterLoad, layout: Layout) -> str:
    """How uneven a router's load is, in words."""
    loads = rank_loads_of(load, layout)
    hottest, layer, rank = loads.worst
    return (
        f"the busiest expert rank gets {loads.mean:.2f} x the mean load over all layers; at worst {hottest:.2f} x, rank"
        f" {rank} in layer {layer}"
    )


def with_router(
    disturbed: Disturbed | None,
    uneven: Routed,
    layout: Layout,
    makespan_ns: int,
    alone_ns: int,
    even_ns: int,
    others_ns: int,
) -> Disturbed:
    """What explains a step with uneven experts: the popularity of experts beside the other disturbances.

    Times of the step: `makespan_ns` with everything, `alone_ns` with the router's load only, `even_ns` with nothing,
    `others_ns` with everything else.
    """
    cost = Blame(f"router load {uneven.load.text}", alone_ns - even_ns, makespan_ns - others_ns, -1, -1)
    lost = layout.cluster.n_gpus * (1.0 - even_ns / makespan_ns) if makespan_ns else 0.0
    if disturbed is None:
        disturbed = Disturbed(even_ns, lost, layout.plan.pp, (layout.dp,), (), uneven.samples)
    blame = sorted((*disturbed.blame, cost), key=lambda cause: (-cause.without_ns, -cause.alone_ns, cause.what))
    return replace(disturbed, undisturbed_step_time_ns=even_ns, gpus_lost=lost, blame=tuple(blame))
