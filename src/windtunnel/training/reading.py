"""What a replayed step says to a person: what limits it. Changes are tried before they are said (`planning`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import OpKind
from windtunnel.result import Limit
from windtunnel.step.result_of import PLAIN
from windtunnel.training.layout import Layout
from windtunnel.training.lowering.pass_builder import Segment
from windtunnel.training.lowering.step import LoweredStep
from windtunnel.training.pricing import Pricer

WORTH_NAMING = 0.02  # of the step
LIMITS_MOST = 5
RECOMPUTATION = "recomputation"


def unmeasured_of(layout: Layout, pricer: Pricer) -> Iterator[str]:
    """What no published run stands behind, so that the band is wider."""
    gpu, habits = layout.cluster.gpu, layout.habits
    if not pricer.training.measured:
        yield f"no training run on a GPU of generation {gpu.generation} informed the constants: the band is wider"
    if not habits.measured:
        yield f"no run with {habits.title} informed the constants: its habits are as documented, the band is wider"


def limits_of(layout: Layout, breakdown_ns: Mapping[str, int], total_ns: int, step: LoweredStep) -> tuple[Limit, ...]:
    """The largest parts of the step: overheads of the layout first, then the work itself."""
    parts = dict(breakdown_ns)
    again = _recomputed_ns(layout, step)
    if again:
        parts[RECOMPUTATION] = min(again, total_ns)  # inside the work's categories, so named beside them
    named = [(name, value) for name, value in parts.items() if value >= WORTH_NAMING * total_ns]
    ordered = sorted(named, key=lambda item: (item[0] in PLAIN, -item[1], item[0]))
    return tuple(Limit(name, value / total_ns, (total_ns - value) / 1e9) for name, value in ordered[:LIMITS_MOST])


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
