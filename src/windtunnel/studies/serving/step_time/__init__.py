"""How long one iteration of an engine takes: prices of a deployment's kernels, folded into fast tables."""

from __future__ import annotations

from windtunnel.studies.serving.step_time.times import TICKS_PER_NS, StepTimes

__all__ = ["TICKS_PER_NS", "StepTimes"]
