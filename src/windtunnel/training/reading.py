"""What a replayed step says to a person: what limits it, what would change that, and what would make it fit.

Every change is named as a flag of the command line, with a value that this very layout would accept: each is tried
against `resolve` before it is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import UserError
from windtunnel.graph import OpKind
from windtunnel.result import Limit, StageMemory
from windtunnel.step.result_of import PLAIN
from windtunnel.training.layout import PEAK_DTYPE, Layout, resolve
from windtunnel.training.lowering.pass_builder import Segment
from windtunnel.training.lowering.step import LoweredStep
from windtunnel.training.pricing import Pricer

WORTH_NAMING = 0.02  # of the step
LIMITS_MOST = 5
FIXES_MOST = 4
RECOMPUTATION = "recomputation"


def unmeasured_of(layout: Layout, pricer: Pricer) -> Iterator[str]:
    """What no published run stands behind, so that the band is wider."""
    gpu, habits = layout.cluster.gpu, layout.habits
    if not pricer.training.measured:
        yield f"no training run on a GPU of generation {gpu.generation} informed the constants: the band is wider"
    if not habits.measured:
        yield f"no run with {habits.title} informed the constants: its habits are as documented, the band is wider"


def limits_of(layout: Layout, breakdown_ns: Mapping[str, int], total_ns: int, step: LoweredStep) -> tuple[Limit, ...]:
    """The largest parts of the step and what would shrink them: overheads of the layout first, then the work itself."""
    parts = dict(breakdown_ns)
    again = _recomputed_ns(layout, step)
    if again:
        parts[RECOMPUTATION] = min(again, total_ns)  # inside the work's categories, so named beside them
    named = [(name, value) for name, value in parts.items() if value >= WORTH_NAMING * total_ns]
    limits = []
    for name, value in sorted(named, key=lambda item: (item[0] in PLAIN, -item[1], item[0])):
        advice = _change(layout, name)
        if advice:
            limits.append(Limit(name, value / total_ns, advice, (total_ns - value) / 1e9))
    return tuple(limits[:LIMITS_MOST])


def fixes_for(layout: Layout, fullest: StageMemory) -> tuple[str, ...]:
    """The cheapest ways to make a job fit, cheapest first."""
    return tuple(list(_fixes(layout, fullest.categories))[:FIXES_MOST]) or ("more GPUs, or GPUs with more memory",)


def _fixes(layout: Layout, parts: Mapping[str, int]) -> Iterator[str]:
    plan, whole = layout.plan, sum(parts.values())
    sharded = plan.zero_stage or 0
    if parts["optimizer"] > 0.2 * whole and sharded < 1 and layout.dp * plan.cp > 1:
        yield "--zero-stage 1: shards the optimizer over data-parallel ranks at no cost in time"
    if parts["activations"] > 0.3 * whole:
        if plan.tp > 1 and not plan.sequence_parallel and _accepts(layout, sequence_parallel=True):
            yield "--sequence-parallel: shards the activations between the GEMMs at no cost in time"
        if plan.micro_batch > 1 and _accepts(layout, micro_batch=plan.micro_batch // 2):
            yield f"--micro-batch {plan.micro_batch // 2}: halves activations, no recomputation"
        if plan.recompute == "none":
            yield "--recompute selective:activation,norms: saves their inputs for about 2 % more time"
        if plan.recompute != "full":
            yield "--recompute full: keeps one tensor per layer for about 30 % more compute"
        if _accepts(layout, cp=2 * plan.cp, dp=None):
            yield f"--cp {2 * plan.cp}: halves activations per GPU"
    if sharded < 3 and layout.dp * plan.cp > 1:
        yield "--zero-stage 3: shards parameters and gradients too, for more gathering"
    if 2 * plan.tp <= layout.cluster.gpus_in_domain and _accepts(layout, tp=2 * plan.tp, dp=None):
        yield f"--tp {2 * plan.tp}: halves parameters and activations per GPU"
    if plan.layers_per_stage is None and _accepts(layout, pp=2 * plan.pp, dp=None):
        yield f"--pp {2 * plan.pp}: halves parameters per GPU"
    if plan.offload_optimizer < 1.0:
        yield "--offload-optimizer 1: keeps the optimizer in host memory, for a slower update"


def _accepts(layout: Layout, **changes: object) -> bool:
    """Whether the same question with these changes could be laid out."""
    try:
        other = resolve(layout.model, layout.cluster, layout.asked.model_copy(update=changes))
    except UserError:
        return False
    return other.plan.virtual_stages == 1 or other.micro_batches % other.plan.pp == 0


def _change(layout: Layout, name: str) -> str | None:
    """What would shrink one part of the step, as flags where there are flags."""
    ways = list(_ways(layout, name))
    return None if not ways else ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"


def _ways(layout: Layout, name: str) -> Iterator[str]:
    plan = layout.plan
    kind, _, group = name.partition(" ")
    if kind == "exposed":
        yield from _communication_ways(layout, group.partition(" (")[0])
    elif name == "pipeline bubble":
        yield from _bubble_ways(layout)
    elif name == RECOMPUTATION:
        yield "--recompute selective:core_attention or none, where memory allows"
    elif name == "host":
        if not plan.cuda_graphs:
            yield "--cuda-graphs"
        if _accepts(layout, micro_batch=2 * plan.micro_batch):
            yield f"--micro-batch {2 * plan.micro_batch}"
    elif name == "optimizer":
        if not plan.zero_stage and layout.dp * plan.cp > 1:
            yield "--zero-stage 1"
        if plan.optimizer_dtype == "fp32":
            yield "--optimizer-dtype bf16"
        yield "more data parallelism, which shards it further"
    elif name == "memory-bound":
        if not plan.compile:
            yield "--compile"
        if plan.precision == "fp8-current":
            yield "--precision fp8 (delayed scaling: fewer quantisation passes)"
        if plan.tp > 1 and not plan.sequence_parallel:
            yield "--sequence-parallel"
    elif name == "attention":
        if plan.attention_impl != "flash":
            yield "--attention-impl flash"
        yield "a shorter --seq-len (its FLOPs grow with the square)"
    elif name == "gemm":
        lower = next((dtype for dtype in ("fp8", "mxfp8") if dtype in layout.cluster.gpu.flops_per_s), None)
        if lower and plan.precision not in PEAK_DTYPE:
            yield f"--precision {lower}"
        if plan.tp > 1 and _accepts(layout, tp=plan.tp // 2, dp=None):
            yield f"--tp {plan.tp // 2} (larger shapes)"
        if _accepts(layout, micro_batch=2 * plan.micro_batch):
            yield f"--micro-batch {2 * plan.micro_batch} (larger shapes)"
    elif name == "waiting for the slowest rank":
        yield "fewer ranks, or removal of slow nodes"
    elif name == "waiting inside a pass" and plan.tp > 1:
        yield "--overlap-tp" if not plan.overlap_tp else f"--tp {plan.tp // 2}"
    elif name == "slowed by overlap":
        yield "collectives that take fewer SMs (NVLS, copy engines), or less overlap"


def _bubble_ways(layout: Layout) -> Iterator[str]:
    plan = layout.plan
    if plan.micro_batch > 1 and plan.micro_batch % 2 == 0:
        yield f"--micro-batch {plan.micro_batch // 2} (more of them per step)"
    wider = 2 * plan.virtual_stages
    even = layout.model.n_layers % (plan.pp * wider) == 0
    if layout.schedule in ("gpipe", "1f1b", "interleaved") and plan.layers_per_stage is None and even:
        schedule = {"schedule": None} if layout.schedule != "interleaved" else {}
        if _accepts(layout, virtual_stages=wider, **schedule):
            yield f"--virtual-stages {wider}"
    if layout.schedule in ("gpipe", "1f1b"):
        yield "--schedule zb-h1"
    yield "a larger --global-batch"


def _communication_ways(layout: Layout, group: str) -> Iterator[str]:
    plan = layout.plan
    if group == "tp":
        if not plan.overlap_tp:
            yield "--overlap-tp"
        if _accepts(layout, tp=plan.tp // 2, dp=None):
            yield f"--tp {plan.tp // 2}"
    elif group in ("dp", "edp", "replica"):
        if not plan.overlap_grad_reduce:
            yield "--overlap-grad-reduce"
        if not plan.overlap_param_gather and plan.zero_stage:
            yield "--overlap-param-gather"
        near = max(1, layout.cluster.gpus_in_domain // plan.tp)
        if plan.zero_stage == 3 and 1 < near < layout.shard_group and _accepts(layout, shard_group=near):
            yield f"--shard-group {near} (HSDP: gathers stay in the domain)"
        yield "a larger --global-batch"
    elif group == "ep":
        if not plan.overlap_ep:
            yield "--overlap-ep"
        if _accepts(layout, ep=plan.ep // 2):
            yield f"--ep {plan.ep // 2}"
    elif group == "etp":
        yield "--etp 1"
    elif group == "cp":
        if _accepts(layout, cp=max(1, plan.cp // 2), dp=None):
            yield f"--cp {plan.cp // 2}"
        if plan.cp_kind == "ring" and _accepts(layout, cp_kind="ulysses"):
            yield "--cp-kind ulysses"
    elif group == "pp":
        if not plan.overlap_p2p:
            yield "--overlap-p2p"
        if plan.layers_per_stage is None and plan.virtual_stages == 1 and _accepts(layout, pp=plan.pp // 2, dp=None):
            yield f"--pp {plan.pp // 2}"
    elif group == "host copy":
        yield "a smaller --offload-activations"


def recomputed_flops(layout: Layout, step: LoweredStep) -> float:
    """FLOPs of the whole job's step that run a second time, counted as model FLOPs are."""
    if layout.plan.recompute == "none":
        return 0.0
    total = sum(count * float(segment.graph.flops[again].sum()) for count, segment, again in _recomputed(step))
    return total * layout.cluster.n_gpus / step.schedule.stages


def _recomputed_ns(layout: Layout, step: LoweredStep) -> int:
    """Mean nanoseconds per rank that kernels run a second time."""
    if layout.plan.recompute == "none":
        return 0
    total = sum(
        count * int((segment.end_ns - segment.start_ns)[again].sum()) for count, segment, again in _recomputed(step)
    )
    return round(total / step.schedule.stages)


def _recomputed(step: LoweredStep) -> Iterator[tuple[int, Segment, NDArray[np.bool_]]]:
    """Each pass with how often all ranks run it and which of its ops are kernels of a recomputation."""
    schedule = step.schedule
    counts = np.bincount(step.segment_of[schedule.stage_of, schedule.kind], minlength=len(step.segments))
    for count, segment in zip(counts.tolist(), step.segments, strict=True):
        graph = segment.graph
        again = np.array([label.startswith("recompute ") for label in graph.labels], bool)
        # The host's launches carry the same labels, and run ahead.
        yield count, segment, again[graph.label] & (graph.kind == OpKind.COMPUTE)
