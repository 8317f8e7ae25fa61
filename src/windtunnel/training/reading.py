"""What a replayed step says to a person: limits, fixes, an excerpt of the timeline, and how to run it again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windtunnel.engine import Timeline
from windtunnel.result import Interval, Limit, StageMemory
from windtunnel.training.framework import HABITS
from windtunnel.training.layout import Layout
from windtunnel.training.lower import STREAMS, Step
from windtunnel.training.plan import Plan

EXCERPT_OPS = 1200  # per result: enough to draw, small enough to keep
WORTH_NAMING = 0.02  # of the step

ADVICE = {
    "pipeline bubble": "more micro-batches per step, more virtual stages, or a zero-bubble schedule",
    "exposed tp": "a smaller tp, sequence parallelism, or overlap_tp",
    "exposed dp": "overlap_grad_reduce and overlap_param_gather, a larger batch per replica, or HSDP",
    "exposed ep": "overlap_ep, or experts spread over fewer nodes",
    "exposed cp": "a smaller cp, or cp inside one NVLink domain",
    "exposed pp": "overlap_p2p with interleaving, or fewer stages",
    "memory-bound": "fused kernels (compile), or fewer quantisation passes",
    "attention": "shorter sequences, or more context parallelism does not help its FLOPs: only a faster kernel does",
    "gemm": "lower precision, or larger shapes per GPU (less tp, larger micro-batch)",
    "host": "cuda_graphs, or larger micro-batches",
    "optimizer": "a higher zero_stage or more data parallelism shards it further",
    "slowed by overlap": "collectives that use fewer SMs (NVLS, copy engines), or less overlap",
    "waiting for the slowest rank": "fewer ranks, or removal of slow nodes",
}


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


def limits_of(layout: Layout, breakdown_ns: Mapping[str, int], total_ns: int) -> tuple[Limit, ...]:
    """The largest parts of the step and what would shrink them."""
    limits = []
    for name, value in sorted(breakdown_ns.items(), key=lambda item: -item[1]):
        advice = next((text for key, text in ADVICE.items() if name.startswith(key)), None)
        if advice and value >= WORTH_NAMING * total_ns:
            limits.append(Limit(name, value / total_ns, advice, (total_ns - value) / 1e9))
    return tuple(limits[:5])


def fixes_for(layout: Layout, fullest: StageMemory) -> tuple[str, ...]:
    """The cheapest ways to make a job fit, cheapest first."""
    plan, parts = layout.plan, fullest.categories
    fixes = []
    if parts["activations"] > 0.3 * sum(parts.values()):
        if plan.micro_batch > 1:
            fixes.append(f"micro_batch {plan.micro_batch // 2}: halves activations, no recomputation")
        if plan.recompute == "none":
            fixes.append("recompute selective:activation,norms, then full: about 2 % and 30 % more compute")
        if plan.cp == 1:
            fixes.append("cp 2: halves activations per GPU")
    if parts["optimizer"] > 0.2 * sum(parts.values()) and (plan.zero_stage or 0) < 1 and layout.dp > 1:
        fixes.append("zero_stage 1: shards the optimizer over data-parallel ranks at no cost in time")
    if (plan.zero_stage or 0) < 3 and layout.dp * plan.cp > 1:
        fixes.append("zero_stage 3: shards parameters and gradients too, for more gathering")
    if plan.tp < layout.cluster.gpus_in_domain:
        fixes.append(f"tp {plan.tp * 2}: halves parameters and activations per GPU")
    fixes.append(f"pp {plan.pp * 2}: halves parameters per GPU")
    return tuple(fixes[:4])


def excerpt_of(step: Step, timeline: Timeline) -> tuple[Interval, ...]:
    """The first ops of every rank class: enough to see warm-up and steady state."""
    graph = step.graph
    per_rank = max(20, EXCERPT_OPS // graph.n_programs)
    program = graph.program
    found = []
    for rank in range(graph.n_programs):
        own = np.flatnonzero(program == rank)
        order = own[np.argsort(timeline.start_ns[own], kind="stable")][:per_rank]
        for op in order:
            start, end = int(timeline.start_ns[op]), int(timeline.end_ns[op])
            if end > start:
                category = graph.categories[graph.category[op]]
                label = graph.labels[graph.label[op]]
                stream = STREAMS[graph.stream[op] % len(STREAMS)]
                shown = "compute" if category.startswith("segment ") else category
                found.append(Interval(rank, stream, label, shown, start, end))
    return tuple(found)


def reproduce(layout: Layout) -> str:
    """The command line that gives this result again."""
    plan = layout.plan
    plain = Plan(global_batch=plan.global_batch, seq_len=plan.seq_len)
    habits = HABITS[plan.framework]
    words = [f"windtunnel predict {layout.model.name} --cluster {layout.cluster.name}:{layout.cluster.n_gpus}"]
    skip = {"sequence_parallel": habits.sequence_parallel and plan.tp > 1}
    for name, value in plan:
        default = getattr(plain, name)
        if name in ("global_batch", "seq_len") or (value != default and value is not None and name not in skip):
            flag = "--" + name.replace("_", "-")
            words.append(f"{flag} {_shown(value)}")
    return " ".join(words)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value)
