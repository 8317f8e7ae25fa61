"""Predict one training step: resolve, lower, price, replay, read.

`predict(model, cluster, plan)` is the whole study. The headline breakdown is the mean over all ranks and sums exactly
to the step; each rank class has its own in `Result.stages`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.price import Source
from windtunnel.engine import Timeline, exposed
from windtunnel.hardware import Cluster, parse_cluster
from windtunnel.model import Model, load_model
from windtunnel.result import Disturbed, Infeasible, Result, StageMemory, StageReport
from windtunnel.training.disturbances.cells import parse_disturbances
from windtunnel.training.disturbances.planned import disturb, with_waiting
from windtunnel.training.excerpt import excerpt_of
from windtunnel.training.layout import PEAK_DTYPE, Layout, resolve
from windtunnel.training.lowering.model_chunks import pieces_of
from windtunnel.training.lowering.pass_builder import owned
from windtunnel.training.lowering.simulated import Simulated, simulate
from windtunnel.training.lowering.step import Step
from windtunnel.training.memory.peak import memory_of
from windtunnel.training.plan import Plan, read_plan
from windtunnel.training.pricing import Pricer
from windtunnel.training.reading import fixes_for, limits_of, recomputed_flops, sum_to, unmeasured_of
from windtunnel.training.reproduce import reproduce
from windtunnel.training.schedules import check, schedule
from windtunnel.training.workload.imbalance import busiest_experts, mean_document, packed, routed, with_router
from windtunnel.training.workload.router_load import parse_router_load
from windtunnel.training.workload.sequence_lengths import read_lengths

BUBBLE = "pipeline bubble"
STRAGGLING = "waiting for the slowest rank"
DISTURBED = "waiting for disturbed ranks"
SLOWED = "slowed by overlap"
EVENLY = "experts are taken as evenly loaded; --router-load tells otherwise"
Z95 = 1.645  # standard deviations from the mean to the 95th percentile
SLOWER = 1.15  # the upper half of the band over the lower


def predict(
    model: Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | Mapping[str, Any],
    plan: Plan | str | Path | Mapping[str, Any],
    *,
    slow: Sequence[str] = (),
    jitter: float | str = 0.0,
    samples: int = 0,
    seed: int = 0,
    router_load: str | Path | None = None,
    lengths: str | Path | None = None,
) -> Result:
    """How long one optimizer step takes, where the time goes, and whether it fits.

    `model`: a catalogue name, a Hugging Face `config.json` (path or mapping) or a Model; `cluster`: `h100-sxm:8192`, a
    YAML file or a Cluster; `plan`: a YAML file, a mapping or a Plan. `slow`: disturbances such as `gpu=1037:1.15` or
    `link=node12.nic3:0.5` (docs/disturb.md); `jitter`: relative standard deviation of a pass, sampled `samples` times.
    `router_load`: popularity of experts, `zipf:0.5` or a CSV file; `lengths`: a CSV histogram of the documents that
    sequences are packed from. Raises UserError on a spec that cannot be; a job that does not fit in memory is a Result
    whose status is "infeasible".
    """
    named = (model, cluster)
    model = model if isinstance(model, Model) else load_model(model)
    cluster = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    layout = resolve(model, cluster, read_plan(plan))
    asked = parse_disturbances(slow, cluster, jitter=jitter, samples=samples, seed=seed)
    pricer = Pricer(layout)
    documents = None if lengths is None else read_lengths(lengths)
    if documents is not None:
        pricer = pricer.with_documents(mean_document(documents, layout, seed))
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    check(chosen)
    even = base = simulate(layout, pieces_of(layout), chosen, pricer)
    uneven = None
    if router_load is not None:
        loads = parse_router_load(str(router_load), model, seed=seed)
        uneven = routed(loads, layout, lambda pieces: simulate(layout, pieces, chosen, pricer), seed)
        base = uneven.simulated

    def under_all(simulated: Simulated) -> tuple[int, Disturbed | None]:
        if not (asked.parts or documents):
            return simulated.makespan_ns, None
        step, pieces = simulated.step, simulated.pieces
        sources = {}
        if documents is not None:
            sources[f"lengths {lengths}"] = packed(documents, layout, step, pieces, pricer, seed)
        return disturb(step, layout, pieces, pricer, simulated.makespan_ns, asked, sources=sources)

    makespan, disturbed = under_all(base)
    if uneven is not None:
        disturbed = with_router(
            disturbed, uneven, layout, makespan, base.makespan_ns, even.makespan_ns, under_all(even)[0]
        )
    # A job runs out of memory in the worst step of a trace, not in its median one.
    steps = (base,) if uneven is None else uneven.steps
    memory = fullest(memory_of(layout, one.pieces, one.step, one.timeline.end_ns) for one in steps)
    extra = [f" --router-load {shlex.quote(str(router_load))}"] if router_load is not None else []
    extra += [f" --lengths {shlex.quote(str(lengths))}"] if lengths is not None else []
    words = asked.words()
    if seed and extra and "--seed" not in words:
        words += f" --seed {seed}"
    command = reproduce(layout, *named) + "".join(extra) + words
    result = _result(layout, pricer, base.step, base.timeline, memory, command, makespan, disturbed)
    if uneven is None:
        return result
    warnings = tuple(busiest_experts(uneven.load, layout) if text == EVENLY else text for text in result.warnings)
    return replace(result, warnings=warnings)


def fullest(steps: Iterable[tuple[StageMemory, ...]]) -> tuple[StageMemory, ...]:
    """Each stage's memory in the step that needs most of it."""
    return tuple(max(stage, key=lambda one: one.device_bytes) for stage in zip(*steps, strict=True))


def _result(
    layout: Layout,
    pricer: Pricer,
    step: Step,
    timeline: Timeline,
    memory: tuple[StageMemory, ...],
    command: str,
    makespan_ns: int,
    disturbed: Disturbed | None,
) -> Result:
    gpu, plan, model = layout.cluster.gpu, layout.plan, layout.model
    waiting = round(timeline.makespan_ns * pricer.training.straggling(layout.cluster.n_gpus))
    total = makespan_ns + waiting
    disturbed = with_waiting(disturbed, waiting, layout.cluster.n_gpus, total) if disturbed else None
    stages = _stages(layout, step, timeline, {STRAGGLING: waiting, DISTURBED: makespan_ns - timeline.makespan_ns})
    breakdown = _mean(stages, total)
    low, high = _band(layout, pricer, step, breakdown)
    provenance = _provenance(step)
    seconds = total / 1e9
    n = layout.cluster.n_gpus
    tokens = layout.tokens_per_step
    # Attention stays inside documents where sequences are packed from them, and only that is work.
    document = pricer.document_length or plan.seq_len
    flops = 3.0 * tokens * model.forward_flops_per_token(document, "full")
    executed = flops + recomputed_flops(layout, step)
    peak = gpu.peak_flops(PEAK_DTYPE.get(plan.precision, plan.precision))
    capacity = gpu.usable_memory_bytes
    most = max(memory, key=lambda stage: stage.device_bytes)
    trouble = None
    if most.device_bytes > capacity:
        trouble = Infeasible(
            reason="out of memory",
            stage=most.stage,
            needed_bytes=most.device_bytes,
            capacity_bytes=capacity,
            fixes=fixes_for(layout, most),
        )
    return Result(
        status="infeasible" if trouble else "ok",
        spec={
            "version": product_version(),
            "model": model.to_dict(),
            "cluster": layout.cluster.told(),
            "plan": plan.model_dump(mode="json") | {"dp": layout.dp, "etp": layout.etp, "schedule": layout.schedule},
        },
        step_time_ns=total,
        step_time_p5_ns=round(total * low),
        step_time_p95_ns=round(total * high),
        tokens_per_step=tokens,
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_gpu=tokens / seconds / n,
        mfu=flops / seconds / n / peak,
        hfu=executed / seconds / n / peak,
        mfu_convention=f"6 N + 12 L a d s per token, attention counted in full"
        f"{'' if document == plan.seq_len else f' inside documents (s = {document:,})'},"
        f" against dense {plan.precision} peak",
        model_tflops_per_gpu=flops / seconds / n / 1e12,
        breakdown_ns=breakdown,
        stages=stages,
        memory=memory,
        memory_capacity_bytes=capacity,
        provenance=provenance,
        limits=limits_of(layout, breakdown, total, step),
        defaults=layout.defaults,
        warnings=_warnings(layout, pricer, provenance),
        reproduce=command,
        n_gpus=n,
        n_classes=step.schedule.stages,
        n_ops=step.graph.n_ops + sum(segment.graph.n_ops for segment in step.segments),
        excerpt=excerpt_of(step, timeline),
        infeasible=trouble,
        disturbed=disturbed,
        traffic_bytes=_traffic(step),
    )


@lru_cache(maxsize=1)
def product_version() -> str:
    """Of the installed package, for what a result was made by."""
    try:
        return version("windtunnel")
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "not installed"


def _stages(layout: Layout, step: Step, timeline: Timeline, waiting_ns: Mapping[str, int]) -> tuple[StageReport, ...]:
    """Each rank class's step, split exactly: passes by what is inside them, the rest by what was exposed."""
    graph, schedule = step.graph, step.schedule
    nominal = np.array([segment.duration_ns for segment in step.segments], np.int64)
    reports = []
    for rank, parts in enumerate(owned(exposed(timeline, graph), graph)):
        split: dict[str, int] = {}
        first, last = schedule.rank_offset[rank], schedule.rank_offset[rank + 1]
        used = step.segment_of[schedule.stage_of[first:last], schedule.kind[first:last]]
        counts = np.bincount(used, minlength=len(step.segments))
        for name, nanoseconds in parts.items():
            if not name.startswith("segment "):
                key = BUBBLE if name == "idle" else name
                split[key] = split.get(key, 0) + nanoseconds
                continue
            number = int(name.removeprefix("segment "))
            alone = min(nanoseconds, int(counts[number] * nominal[number]))
            for inner, part in sum_to(step.segments[number].breakdown_ns, alone).items():
                key = "waiting inside a pass" if inner == "idle" else inner
                split[key] = split.get(key, 0) + part
            if nanoseconds > alone:
                split[SLOWED] = split.get(SLOWED, 0) + nanoseconds - alone
        split |= waiting_ns
        layers = sum(len(layout.virtual_layers[v]) for v in schedule.virtual_stage[rank])
        kept = {name: value for name, value in split.items() if value}
        reports.append(StageReport(rank, layout.cluster.n_gpus // schedule.stages, layers, kept))
    return tuple(reports)


def _mean(stages: tuple[StageReport, ...], total_ns: int) -> dict[str, int]:
    """Mean over ranks (all classes stand for equally many), rounded so that it still sums to the step."""
    sums: dict[str, int] = {}
    for stage in stages:
        for name, value in stage.breakdown_ns.items():
            sums[name] = sums.get(name, 0) + value
    return dict(sorted(sum_to(sums, total_ns).items(), key=lambda item: (-item[1], item[0])))


def _band(layout: Layout, pricer: Pricer, step: Step, breakdown: Mapping[str, int]) -> tuple[float, float]:
    """Relative p5 and p95 of the step.

    Parts err independently of each other, each by the standard deviation that published runs showed (`uncertainty` in
    the calibration) or by its kernels' own band where that is wider. What is missing makes runs slower rather than
    faster.
    """
    counts = _counts(step)
    time = sum(float(count) * segment.duration_ns for count, segment in zip(counts, step.segments, strict=True))
    wide = sum(
        float(count) * segment.duration_ns * (segment.p95 - segment.p5)
        for count, segment in zip(counts, step.segments, strict=True)
    )
    kernels = wide / time / 2 / Z95
    known = pricer.training.uncertainty
    moe = any(layer.feed_forward.kind == "moe" for layer in layout.model.layers)
    variance = known["software"] ** 2
    if not (pricer.training.measured and layout.habits.measured):
        variance += known["unmeasured"] ** 2
    total = sum(breakdown.values())
    for name, nanoseconds in breakdown.items():
        key = "exposed" if name.startswith("exposed") else "gemm_moe" if name == "gemm" and moe else name
        sigma = known.get(key, known["other"])
        if name in ("gemm", "attention", "memory-bound"):
            sigma = max(sigma, kernels)
        variance += (nanoseconds / total * sigma) ** 2
    z = Z95 * variance**0.5
    return 1.0 / (1.0 + z), 1.0 + SLOWER * z


def _provenance(step: Step) -> dict[str, float]:
    """Share of busy time by source of price; sums to 1."""
    busy = dict.fromkeys(Source, 0.0)
    for count, segment in zip(_counts(step), step.segments, strict=True):
        for source, seconds in segment.busy_s.items():
            busy[source] += float(count) * seconds
    for price in step.optimizer:
        busy[price.source] += price.seconds
    whole = sum(busy.values()) or 1.0
    return {source.name.lower(): seconds / whole for source, seconds in busy.items()}


def _counts(step: Step) -> NDArray[np.int64]:
    """How often each pass runs, over all rank classes."""
    used = step.segment_of[step.schedule.stage_of, step.schedule.kind]
    return np.bincount(used, minlength=len(step.segments))


def _traffic(step: Step) -> dict[str, int]:
    """Mean bytes per GPU and step of each collective kind, group and tier."""
    counts = _counts(step)
    total = dict(step.traffic_bytes)
    for count, segment in zip(counts, step.segments, strict=True):
        for key, value in segment.traffic_bytes.items():
            total[key] = total.get(key, 0.0) + value * float(count) / step.schedule.stages
    return {key: int(value) for key, value in sorted(total.items())}


def _warnings(layout: Layout, pricer: Pricer, provenance: Mapping[str, float]) -> tuple[str, ...]:
    warnings = list(unmeasured_of(layout, pricer))
    if provenance["roofline"] > 0.1:
        warnings.append(
            f"{provenance['roofline']:.0%} of busy time is priced by roofline: no measured kernels for it on"
            f" {layout.cluster.gpu.name}"
        )
    if any(layer.feed_forward.kind == "moe" for layer in layout.model.layers):
        warnings.append(EVENLY)
        if layout.replicas > 1:
            warnings.append("shard_group holds for dense parameters; experts are sharded over all their replicas")
    return tuple(warnings)
