"""Samples of a captured step: noise of single kernels, jitter of passes, pauses, and GPUs that heat up.

Noise makes every rank unlike every other, so each stands for itself: nothing is folded, and jobs of more ops than a
sample should take are refused. Sample i is seeded by (seed, kind, how many of its kind came before, i): taking one
disturbance away leaves what the others draw, and sample i is the same however many are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import UserError
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.disturbances.disturbances import turns_of
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.studies.programs.disturbances.pace import pace_of
from windtunnel.studies.programs.lowering.lower import CapturedGraph, PricedJob
from windtunnel.studies.programs.lowering.placement import Pace

KEYS = {"jitter": 1, "pause": 2, "noise": 3}
OPS_MOST = 300_000_000  # of all samples together: some minutes


@dataclass(frozen=True, eq=False)
class _Kernels:
    """The kernels of a step of which every rank has its own."""

    op: NDArray[np.int64]  # ops of the graph
    rank: NDArray[np.int64]
    of_pass: NDArray[np.int64]  # number of the pass (rank, phase, micro-batch) that each belongs to
    n_passes: int


def sampled(
    priced: PricedJob, parts: Sequence[Slow], seed: int, step_s: float, sets: Sequence[frozenset[int]], count: int
) -> list[NDArray[np.int64]]:
    """int64[count] makespans for each set of disturbances, by their numbers among `parts`, all on the same draws.

    `step_s`: length of a step, by which heat builds up from sample to sample. Raises UserError on a job too large.
    """
    n = priced.job.world_size
    whole = _ops_of(priced) * count * len(sets)
    if whole > OPS_MOST:
        most = max(1, OPS_MOST // max(1, _ops_of(priced) * len(sets)))
        raise UserError(
            f"noise, jitter and pauses make each of {n:,} ranks differ, so that {count} samples replay"
            f" {whole / 1e9:,.1f} billion ops: ask for at most {most} with --samples, or for a job of fewer ranks"
        )
    captured = priced.graph(Pace.even(n), fold=False)
    kernels = _kernels(priced, captured)
    alone_ns = captured.step.duration_ns[kernels.op]
    turns = turns_of(parts)
    makespans = [np.empty(count, np.int64) for _ in sets]
    for place, chosen in enumerate(sets):
        still = [parts[number] for number in sorted(chosen) if not parts[number].random]
        base = _durations(priced, captured, pace_of(priced, [slow for slow in still if slow.kind != "thermal"]))
        heats = any(slow.kind == "thermal" for slow in still)
        for sample in range(count):
            duration = base
            if heats:
                warm = [_warm(slow, sample * step_s) if slow.kind == "thermal" else slow for slow in still]
                duration = _durations(priced, captured, pace_of(priced, warm))
            kernel_ns = duration[kernels.op].astype(np.float64)
            added = np.zeros(len(kernel_ns))
            for number in sorted(chosen):
                if parts[number].random:
                    rng = np.random.default_rng((seed, KEYS[parts[number].kind], turns[number], sample))
                    factor, extra = _draw(parts[number], rng, kernels, alone_ns, n)
                    kernel_ns *= factor
                    added += extra
            varied = duration.copy()
            varied[kernels.op] = np.rint(kernel_ns + added).astype(np.int64)
            makespans[place][sample] = captured.step.replay(varied).makespan_ns
    return makespans


def _ops_of(priced: PricedJob) -> int:
    sizes = {template.program.rank: template.n_ops for template in priced.templates}
    captured, counts = np.unique(priced.job.runs, return_counts=True)
    return sum(sizes[rank] * count for rank, count in zip(captured.tolist(), counts.tolist(), strict=True))


def _warm(part: Slow, elapsed_s: float) -> Slow:
    return replace(part, factor=1.0 + (part.factor - 1.0) * -float(np.expm1(-elapsed_s / part.seconds)))


def _durations(priced: PricedJob, captured: CapturedGraph, pace: Pace) -> NDArray[np.int64]:
    """As `PricedJob.graph(pace, fold=False)` has them; the rest of the graph is the same under any pace."""
    if not (pace.compute != 1.0).any() and not (pace.links != 1.0).any():
        return captured.step.duration_ns
    if (pace.links != 1.0).any():
        return priced.graph(pace, fold=False).step.duration_ns
    duration = captured.step.duration_ns.copy()
    kernels = np.flatnonzero(captured.step.graph.kind == OpKind.COMPUTE)
    factor = pace.compute[captured.step.graph.program[kernels]]
    duration[kernels] = np.rint(duration[kernels] * factor).astype(np.int64)
    return duration


def _kernels(priced: PricedJob, captured: CapturedGraph) -> _Kernels:
    graph = captured.step.graph
    op = np.flatnonzero((graph.kind == OpKind.COMPUTE) & (captured.step.duration_ns > 0)).astype(np.int64)
    program = graph.program[op].astype(np.int64)
    passes: list[NDArray[np.int64]] = []
    for template in priced.templates:
        numbers: dict[tuple[object, ...], int] = {}
        ops = template.program.ops
        keys = [(ops[at].phase, ops[at].micro_batch) if at >= 0 else () for at in template.op_of.tolist()]
        passes.append(np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64))
    local = op - captured.first_op[program]
    which = captured.template_of[program]
    widest = 1 + max((int(array.max(initial=0)) for array in passes), default=0)
    of_pass = np.empty(len(op), np.int64)
    for number, table in enumerate(passes):
        mine = which == number
        of_pass[mine] = table[local[mine]]
    return _Kernels(op, captured.first_rank[program], program * widest + of_pass, widest * graph.n_programs)


def _draw(
    part: Slow, rng: np.random.Generator, kernels: _Kernels, alone_ns: NDArray[np.int64], ranks: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Factors on kernels, and nanoseconds to add."""
    n = len(kernels.op)
    if part.kind == "pause":
        extra = np.zeros(n)
        for rank in np.flatnonzero(rng.random(ranks) < part.share).tolist():
            own = np.flatnonzero(kernels.rank == rank)
            moment = rng.random()
            if len(own):
                upto = np.cumsum(alone_ns[own])
                at = min(int(np.searchsorted(upto, moment * upto[-1], side="right")), len(own) - 1)
                extra[own[at]] += part.seconds * 1e9
        return np.ones(n), extra
    spread = float(np.sqrt(np.log1p(part.share**2)))  # lognormal of mean 1
    normal = rng.standard_normal(kernels.n_passes if part.kind == "jitter" else n)
    factor = np.exp(spread * normal - spread**2 / 2.0)
    return (factor[kernels.of_pass] if part.kind == "jitter" else factor), np.zeros(n)
