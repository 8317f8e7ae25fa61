"""Forward passes without gradients, over the whole batch: log-probs of an old policy and of a reference, evaluation.

fill of the pipeline, then the slowest stage for each further micro-batch; and the softmax over the vocabulary in 32
bits, which training's loss fuses and these passes write out
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel.physics.step.result_of import BUBBLE, ClassTime, sum_to
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.schedules import Kind

SOFTMAX_BYTES = 24  # of each logit: read in 16 bits; written, read twice and reduced in 32
BEFORE = {"train": 0, "dpo": 1, "grpo": 2, "forward": 0}  # such passes over a step's batch, by its task


def forward_ns(layout: Layout, step: LoweredStep) -> int:
    """How long one such pass over a step's batch takes."""
    stages = _stages_ns(layout, step)
    return round(float(stages.sum() + (layout.micro_batches - 1) * stages.max()))


def with_forward_passes(layout: Layout, step: LoweredStep, classes: list[ClassTime]) -> tuple[list[ClassTime], int]:
    """Classes of ranks with what forward passes take of their time, and how long those take.

    Where nothing learns they are all there is.
    """
    alone = layout.plan.task == "forward"
    times = 1 if alone else BEFORE[layout.plan.task]
    if not times:
        return classes, 0
    pass_ns, stages, class_times = forward_ns(layout, step), _stages_ns(layout, step), []
    total = times * pass_ns
    for rank, (own, places) in enumerate(zip(classes, step.schedule.virtual_stage, strict=True)):
        parts = dict.fromkeys(own.spent_ns, 0) if alone else dict(own.spent_ns)
        busy = min(total, round(times * layout.micro_batches * float(stages[rank])))
        split: dict[str, float] = {"memory-bound": _softmax_ns(layout) if rank == len(stages) - 1 else 0.0}
        for place in places:
            for name, ns in step.segments[step.segment_of[place, Kind.FORWARD]].breakdown_ns.items():
                key = "waiting inside a pass" if name == "idle" else name
                split[key] = split.get(key, 0.0) + ns
        shares = sum_to({name: round(ns) for name, ns in split.items()}, busy)
        for name, ns in (*shares.items(), (BUBBLE, total - busy)):
            parts[name] = parts.get(name, 0) + own.ranks * ns
        class_times.append(replace(own, spent_ns={name: ns for name, ns in parts.items() if ns}))
    return class_times, total


def _stages_ns(layout: Layout, step: LoweredStep) -> np.typing.NDArray[np.float64]:
    """Of one micro-batch on each rank of the pipeline."""
    forwards = [step.segments[number].duration_ns for number in step.segment_of[:, Kind.FORWARD]]
    stages = np.array([float(sum(forwards[place] for place in places)) for places in step.schedule.virtual_stage])
    stages[-1] += _softmax_ns(layout)
    return stages


def _softmax_ns(layout: Layout) -> float:
    """Log-softmax over the vocabulary, a micro-batch's logits split over tensor and context parallelism."""
    logits = layout.tokens_per_rank * layout.model.vocab_size / layout.plan.tp
    return 1e9 * SOFTMAX_BYTES * logits / layout.cluster.gpu.memory_bandwidth_bytes_per_s
