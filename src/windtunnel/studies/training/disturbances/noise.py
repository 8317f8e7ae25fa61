"""What makes one step unlike the next, as factors on passes: jitter, pauses, heating up and noise of single ops.

Each is a `Source` of the lane replay: for a block of samples it gives, per unit (replicas that wait for each other
inside a pass), pass and sample, a factor on the pass's duration or nanoseconds to add. Everything random is seeded by
(seed, kind, how many of its kind came before, first sample of the block), so that taking one disturbance away leaves
what the others draw unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.samples import Draw, Source, from_tables, lognormal
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.studies.training.disturbances.cells import cell_factors, cells_of, stage_times, tied_replicas
from windtunnel.studies.training.disturbances.op_noise import pass_factors
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.passes import pass_durations
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer

KEYS = {"jitter": 1, "pause": 2, "noise": 3}
KNOTS = 5  # temperatures at which the passes of a warming cell are priced; straight lines between them


def passes_of(step: LoweredStep) -> NDArray[np.bool_]:
    """bool[ops]: passes of the step graph."""
    return step.graph.category < len(step.segments)


def random_source(disturbance: Slow, number: int, step: LoweredStep, layout: Layout, seed: int) -> Source:
    """What draws for a pause, for noise of ops or for jitter. `number`: how many of its kind come before it."""
    key = (seed, KEYS[disturbance.kind], number)
    passes = passes_of(step)
    if disturbance.kind == "pause":
        return _pauses(disturbance, key, step, layout)
    if disturbance.kind == "jitter":
        return lognormal(disturbance.share, key, np.where(passes, 0, -1))
    tables = pass_factors(layout, step.segments, disturbance.share, seed + number)
    return from_tables(tables, np.where(passes, step.graph.category.astype(np.int64), -1), key)


def _pauses(disturbance: Slow, key: tuple[int, ...], step: LoweredStep, layout: Layout) -> Source:
    """A paused rank holds up its cell: `seconds` more in a pass that runs at a random moment."""
    tied = tied_replicas(layout)
    units, stages = layout.dp // tied, layout.plan.pp
    ranks = layout.plan.tp * layout.plan.cp * tied
    program, passes = step.graph.program, passes_of(step)
    by_stage = [np.flatnonzero(passes & (program == stage)) for stage in range(stages)]
    upto = [np.cumsum(step.duration_ns[ops]) for ops in by_stage]
    length = np.float32(disturbance.seconds * 1e9)
    n = step.graph.n_ops

    def start(first_sample: int, lanes: int) -> Draw:
        generator = np.random.default_rng((*key, first_sample))
        counts = generator.binomial(ranks, disturbance.share, (units, stages, lanes))
        unit, stage, lane = np.nonzero(counts)
        again = counts[unit, stage, lane]
        unit, stage, lane = (np.repeat(where, again) for where in (unit, stage, lane))
        moment = generator.random(len(unit))
        op = np.zeros(len(unit), np.int64)
        for which in range(stages):
            here = stage == which
            if len(by_stage[which]):
                at = np.searchsorted(upto[which], moment[here] * upto[which][-1], side="right")
                op[here] = by_stage[which][np.minimum(at, len(by_stage[which]) - 1)]
        begins = np.searchsorted(unit, np.arange(units + 1))  # `np.nonzero` goes unit by unit

        def draw(low: int, high: int, ops: NDArray[np.int64]) -> NDArray[np.float32]:
            extra = np.zeros((high - low, len(ops), lanes), np.float32)
            row = np.full(n, -1, np.int64)
            row[ops] = np.arange(len(ops))
            events = slice(begins[low], begins[high])
            rows = row[op[events]]
            wanted = rows >= 0
            np.add.at(extra, (unit[events][wanted] - low, rows[wanted], lane[events][wanted]), length)
            return extra

        return draw

    return Source(start, adds=True)


@dataclass(frozen=True, eq=False)
class _Warm:
    """A cell that warms up, and how its passes follow."""

    unit: int
    stage: int
    static: float  # factor of compute that is there from the start
    work: float  # of an uneven stage
    heats: tuple[tuple[float, float], ...]  # hot factor and time constant in seconds of each GPU
    knots: NDArray[np.float64]  # factors on compute
    passes: NDArray[np.float64]  # [knots, passes], in terms of the hot pass


def warming(
    slow: tuple[Slow, ...],
    step: LoweredStep,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    links: NDArray[np.float64],
    step_s: float,
) -> tuple[Source, ...]:
    """Sample i is step i, `step_s` after the one before: a GPU's factor there is 1 + (F - 1)(1 - exp(-t / tau)).

    Factors on what passes take when hot. `links`: float64[replicas, stages], factors on links under `slow`.
    """
    cells = _warm_cells(slow, step, layout, pieces, pricer, links)
    if not cells:
        return ()
    graph = step.graph
    passes, program = passes_of(step), graph.program
    update = (graph.kind == OpKind.COMPUTE) & ~passes

    def start(first_sample: int, lanes: int) -> Draw:
        elapsed = step_s * (first_sample + np.arange(lanes))
        factors = []
        for cell in cells:
            heat = np.max([1.0 + (hot - 1.0) * -np.expm1(-elapsed / tau) for hot, tau in cell.heats], axis=0)
            compute = np.maximum(cell.static, cell.work * heat)
            columns = [np.interp(compute, cell.knots, column) for column in cell.passes.T]
            factors.append((np.array(columns, np.float32), (compute / cell.knots[-1]).astype(np.float32)))

        def draw(low: int, high: int, ops: NDArray[np.int64]) -> NDArray[np.float32]:
            out = np.ones((high - low, len(ops), lanes), np.float32)
            for cell, (of_pass, of_update) in zip(cells, factors, strict=True):
                if low <= cell.unit < high:
                    mine = program[ops] == cell.stage
                    rows = np.flatnonzero(mine & passes[ops])
                    out[cell.unit - low, rows] = of_pass[graph.category[ops[rows]]]
                    out[cell.unit - low, mine & update[ops]] = of_update
            return out

        return draw

    return (Source(start),)


def _warm_cells(
    slow: tuple[Slow, ...],
    step: LoweredStep,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    links: NDArray[np.float64],
) -> list[_Warm]:
    tied = tied_replicas(layout)
    heats: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for disturbance in slow:
        if disturbance.kind == "thermal":
            replicas, stages = cells_of(layout, disturbance.gpus)
            heats.setdefault((int(replicas[0]) // tied, int(stages[0])), []).append(
                (disturbance.factor, disturbance.seconds)
            )
    static = cell_factors(layout, [disturbance for disturbance in slow if disturbance.kind != "thermal"])[0]
    work = stage_times(layout, slow)
    cells = []
    priced: dict[tuple[float, float, float], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for (unit, stage), gpu_heats in sorted(heats.items()):
        cold = float(static[unit * tied, stage])
        hot = max(cold, float(work[stage]) * max(factor for factor, _ in gpu_heats))
        key = (cold, hot, float(links[unit * tied, stage]))
        if key not in priced:
            knots = np.linspace(cold, hot, KNOTS if hot > cold else 1)
            prices = [pricer.slowed(float(knot), key[2]) for knot in knots]
            durations = np.array([pass_durations(step, pieces, price) for price in prices], np.float64)
            priced[key] = knots, durations / np.maximum(durations[-1], 1.0)
        cells.append(_Warm(unit, stage, cold, float(work[stage]), tuple(gpu_heats), *priced[key]))
    return cells
