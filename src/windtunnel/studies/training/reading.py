"""What a replayed step says to a person: what limits it. Changes are tried before they are said (`planning`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph import OpKind
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.pass_builder import Segment
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer

RECOMPUTATION = "recomputation"


def unmeasured_of(layout: Layout, pricer: Pricer) -> Iterator[str]:
    """What no published run stands behind, so that the band is wider."""
    gpu, habits = layout.cluster.gpu, layout.habits
    if not pricer.training.measured:
        yield f"no training run on a GPU of generation {gpu.generation} informed the constants: the band is wider"
    if not habits.measured:
        yield f"no run with {habits.title} informed the constants: its habits are as documented, the band is wider"


def parts_of(layout: Layout, breakdown_ns: Mapping[str, int], total_ns: int, step: LoweredStep) -> dict[str, int]:
    """Parts of the step that may limit it: those of its breakdown, and recomputation, which is inside the work's."""
    again = _recomputed_ns(layout, step)
    return {**breakdown_ns, RECOMPUTATION: min(again, total_ns)} if again else dict(breakdown_ns)


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
    for count, segment in zip(step.runs().tolist(), step.segments, strict=True):
        graph = segment.graph
        again = np.array([label.startswith("recompute ") for label in graph.labels], bool)
        # The host's launches carry the same labels, and run ahead.
        yield count, segment, again[graph.label] & (graph.kind == OpKind.COMPUTE)
