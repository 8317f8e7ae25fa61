"""A replayed step as a Result, however the step was made: rates, breakdown that sums exactly, band, provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from windtunnel.physics.cost.power import step_watts, watts_band
from windtunnel.physics.cost.price import Source
from windtunnel.physics.cost.training import TrainingCosts
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.step.band import band_of
from windtunnel.physics.step.disturbances.attribution import with_waiting
from windtunnel.physics.step.result import Disturbed, Infeasible, Interval, Limit, Result, StageMemory, StageReport
from windtunnel.questions import plain
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.words import command

STRAGGLING = "waiting for the slowest rank"
DISTURBED = "waiting for disturbed ranks"
BUBBLE = "pipeline bubble"
PLAIN = ("gemm", "attention", "memory-bound", "optimizer")  # the work itself; anything else is overhead of the layout
ROOFLINE_WORTH_SAYING = 0.1  # of busy time
LIMIT_WORTH_NAMING = 0.02  # of the step
LIMITS_MOST = 5


@dataclass(frozen=True, slots=True)
class Work:
    """What the whole job does in one step."""

    tokens: int
    model_flops: float
    executed_flops: float  # with recomputation
    dtype: str  # whose peak the FLOPs are held against
    convention: str  # how they are counted, in words


@dataclass(frozen=True, slots=True)
class ClassTime:
    """How the ranks of one class spend the replayed step."""

    ranks: int
    layers: int
    spent_ns: Mapping[str, int]  # summed over its ranks


@dataclass(frozen=True, slots=True)
class Kernels:
    """Prices of all kernels of a step, summed over all ranks."""

    time: float  # in any unit
    p5_to_p95: float  # in the same unit: how far apart the ends of their bands are
    busy_s: Mapping[Source, float]  # by source of price, communication with them


@dataclass(frozen=True, slots=True)
class Reading:
    """What a replayed step says; times in nanoseconds."""

    total_ns: int
    p5_ns: int
    p95_ns: int
    band_reason: str
    breakdown_ns: Mapping[str, int]
    stages: tuple[StageReport, ...]
    provenance: Mapping[str, float]
    disturbed: Disturbed | None
    calm_ns: int  # the replay's end; on it follows
    waiting_ns: Mapping[str, int]  # what every rank waits, by why


def read(
    calm_ns: int,
    makespan_ns: int,
    disturbed: Disturbed | None,
    classes: Sequence[ClassTime],
    kernels: Kernels,
    training: TrainingCosts,
    *,
    n_gpus: int,
    experts: bool,
    distances: Sequence[tuple[str, float, str]] = (),
) -> Reading:
    """Read a step off its replay.

    Args:
        calm_ns: Its makespan undisturbed, which `classes` split.
        makespan_ns: Its makespan as asked for.
        disturbed: What explains the difference.
        classes: All classes of ranks.
        kernels: Prices of what they run.
        training: Straggling and uncertainty, as published runs showed them.
        n_gpus: Ranks.
        experts: Whether its products are those of routed experts.
        distances: What of the question lies beyond what was measured.
    """
    straggling = round(calm_ns * training.straggling(n_gpus))
    total = makespan_ns + straggling
    if disturbed is not None:
        disturbed = with_waiting(disturbed, straggling, n_gpus, total)
    waiting = {STRAGGLING: straggling, DISTURBED: makespan_ns - calm_ns}
    breakdown, stages = breakdown_of(classes, waiting, total)
    spread = own_spread(kernels, training)
    band = band_of(breakdown, spread, training.uncertainty, distances, experts=experts)
    return Reading(
        total,
        round(total * band.low),
        round(total * band.high),
        band.reason,
        breakdown,
        stages,
        provenance_of(kernels.busy_s),
        disturbed,
        calm_ns,
        waiting,
    )


def own_spread(kernels: Kernels, training: TrainingCosts) -> float:
    """(p95 - p5) / time of kernels, as far as `training.uncertainty` does not hold it already.

    What training runs missed by holds what their kernels missed by. Kernels that nobody timed are no part of that.
    """
    if not kernels.time:
        return 0.0
    untimed = provenance_of(kernels.busy_s)["roofline"] if training.from_runs else 1.0
    return untimed * kernels.p5_to_p95 / kernels.time


def breakdown_of(
    classes: Sequence[ClassTime], waiting_ns: Mapping[str, int], total_ns: int
) -> tuple[dict[str, int], tuple[StageReport, ...]]:
    """Mean over all ranks, longest part first, and that of each class; each sums exactly to the step.

    `waiting_ns`: what every rank waits on top of what its class spends.
    """
    everything: dict[str, int] = {}
    stages = []
    for number, class_time in enumerate(classes):
        spent = dict(class_time.spent_ns)
        for name, ns in waiting_ns.items():
            spent[name] = spent.get(name, 0) + ns * class_time.ranks
        for name, ns in spent.items():
            everything[name] = everything.get(name, 0) + ns
        stages.append(StageReport(number, class_time.ranks, class_time.layers, _without_zeros(sum_to(spent, total_ns))))
    mean = _without_zeros(sum_to(everything, total_ns))
    return dict(sorted(mean.items(), key=lambda item: (-item[1], item[0]))), tuple(stages)


def _without_zeros(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: ns for name, ns in parts.items() if ns}


def sum_to(parts: Mapping[str, int], total: int) -> dict[str, int]:
    """Scale integer parts so that they sum exactly to `total` (largest remainder; ties by name)."""
    whole = sum(parts.values())
    if whole == 0:
        return {}
    scaled = {name: divmod(value * total, whole) for name, value in parts.items()}
    result = {name: quotient for name, (quotient, _) in scaled.items()}
    left = total - sum(result.values())
    for name in sorted(scaled, key=lambda name: (-scaled[name][1], name))[:left]:
        result[name] += 1
    return result


def provenance_of(busy_s: Mapping[Source, float]) -> dict[str, float]:
    """Share of busy time by source of price; sums to 1."""
    whole = sum(busy_s.values()) or 1.0
    return {source.name.lower(): busy_s.get(source, 0.0) / whole for source in Source}


def roofline_warning(provenance: Mapping[str, float], gpu: str) -> Iterator[str]:
    """What a reader should know where many prices were not measured."""
    if provenance["roofline"] > ROOFLINE_WORTH_SAYING:
        yield f"{provenance['roofline']:.0%} of busy time is priced by roofline: no measured kernels for it on {gpu}"


def limits_of(parts: Mapping[str, int], total_ns: int) -> tuple[Limit, ...]:
    """The largest parts of a step, overheads of its layout first, then the work itself; and the step without each."""
    worth_naming = [(name, ns) for name, ns in parts.items() if ns >= LIMIT_WORTH_NAMING * total_ns]
    ordered = sorted(worth_naming, key=lambda item: (item[0] in PLAIN, -item[1], item[0]))
    return tuple(Limit(name, ns / total_ns, (total_ns - ns) / 1e9) for name, ns in ordered[:LIMITS_MOST])


def to_the_end(excerpt: tuple[Interval, ...], reading: Reading) -> tuple[Interval, ...]:
    """The excerpt, and what every rank waits on top of the replay, so that each ends when the step does.

    Disturbances and the slowest rank hold up a step all along; drawn is their sum, behind the replay.
    """
    intervals = list(excerpt)
    for stage in sorted({op.stage for op in excerpt}):
        now = reading.calm_ns
        for name in (DISTURBED, STRAGGLING):
            ns = reading.waiting_ns[name]
            if ns > 0 and now + ns <= reading.total_ns:
                intervals.append(Interval(stage, "compute", name, name, now, now + ns))
                now += ns
    return tuple(sorted(intervals, key=lambda op: op.stage))


def result_of(
    reading: Reading,
    work: Work,
    cluster: Cluster,
    *,
    spec: Mapping[str, object] | Callable[[], Mapping[str, object]],
    memory: tuple[StageMemory, ...],
    infeasible: Infeasible | None,
    limits: tuple[Limit, ...],
    defaults: tuple[str, ...],
    warnings: tuple[str, ...],
    question: Predict | None,
    n_classes: int,
    n_ops: int,
    excerpt: Callable[[], tuple[Interval, ...]],
    traffic_bytes: Mapping[str, int],
    class_names: tuple[str, ...] = (),
    memory_p95_bytes: int = 0,
    tight: bool = False,
) -> Result:
    """The answer; what is not said here is as in `Result`."""
    n, seconds, peak = cluster.n_gpus, reading.total_ns / 1e9, cluster.gpu.peak_flops(work.dtype)
    watts = step_watts(cluster.gpu, work.dtype, reading.breakdown_ns, work.executed_flops / n)
    watts_p5, watts_p95 = watts_band(cluster.gpu, watts)

    def later() -> tuple[Interval, ...]:
        return to_the_end(excerpt(), reading)

    def per_second(amount: float) -> float:
        return amount / seconds if seconds else 0.0

    return Result(
        status="infeasible" if infeasible else "ok",
        spec=spec,  # type: ignore[arg-type]  # perhaps made when it is read
        step_time_ns=reading.total_ns,
        step_time_p5_ns=reading.p5_ns,
        step_time_p95_ns=reading.p95_ns,
        band_reason=reading.band_reason,
        tokens_per_step=work.tokens,
        tokens_per_s=per_second(work.tokens),
        tokens_per_s_per_gpu=per_second(work.tokens) / n,
        mfu=per_second(work.model_flops) / n / peak,
        hfu=per_second(work.executed_flops) / n / peak,
        mfu_convention=work.convention,
        model_tflops_per_gpu=per_second(work.model_flops) / n / 1e12,
        gpu_watts=watts,
        gpu_watts_p5=watts_p5,
        gpu_watts_p95=watts_p95,
        breakdown_ns=reading.breakdown_ns,
        stages=reading.stages,
        memory=memory,
        memory_capacity_bytes=cluster.gpu.usable_memory_bytes,
        provenance=reading.provenance,
        limits=limits,
        defaults=defaults,
        warnings=warnings,
        reproduce="" if question is None else partial(command, question),  # type: ignore[arg-type]  # when read
        question={} if question is None else partial(plain, question),  # type: ignore[arg-type]  # likewise
        n_gpus=n,
        n_classes=n_classes,
        n_ops=n_ops,
        excerpt=later,  # type: ignore[arg-type]  # made when it is read
        infeasible=infeasible,
        disturbed=reading.disturbed,
        traffic_bytes=traffic_bytes,
        class_names=class_names,
        memory_p95_bytes=memory_p95_bytes,
        tight=tight,
    )
