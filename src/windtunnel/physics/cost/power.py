"""Power of a GPU by what it does, as shares of its rated power.

    nothing runs but what waits for a link, another rank or the host    waiting
    a kernel runs                                                        busy + memory x bandwidth + matrix x rate

`bandwidth` and `rate` are shares of the data sheet's HBM bandwidth and of its dense rate in the format: with rated
power they are joules per byte and per FLOP. At most 1: there the clock falls, which measured kernel times already hold.
Constants and their source: `calibration/power.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from windtunnel.physics.cost.calibration import read_calibration
from windtunnel.physics.cost.roofline import by_generation, memory_efficiency
from windtunnel.physics.hardware.gpu import Gpu

MATRIX = ("gemm", "attention")  # parts of a step that compute
MOVED = ("memory-bound", "optimizer")  # and those that go through HBM


@dataclass(frozen=True, slots=True)
class Draw:
    """Shares of rated power, and the log half-width of the band."""

    waiting: float
    busy: float
    memory: float
    matrix: float
    band: float

    def running(self, bandwidth: float, rate: float) -> float:
        """While kernels run: so much of the bandwidth and of the matrix units' rate is used on average."""
        return min(1.0, self.busy + self.memory * bandwidth + self.matrix * rate)


def draw_of(gpu: Gpu) -> Draw:
    """What is known of its generation, else the mean of those that are known."""
    generation = by_generation(read_calibration("power.yaml")["generations"], gpu.generation)
    return Draw(**{name: float(generation[name]) for name in Draw.__slots__})


def step_watts(gpu: Gpu, dtype: str, parts_ns: Mapping[str, int], flops: float) -> float:
    """Mean power of one GPU over a step of these parts, in which it executes `flops`."""
    draw, total = draw_of(gpu), sum(parts_ns.values())
    if not total:
        return 0.0
    computes, moves = (sum(parts_ns.get(name, 0) for name in names) for names in (MATRIX, MOVED))
    rate = flops / (computes / 1e9 * gpu.peak_flops(dtype)) if computes else 0.0
    share = (
        computes * draw.running(0.0, rate)
        + moves * draw.running(memory_efficiency(gpu)[0], 0.0)
        + (total - computes - moves) * draw.waiting
    )
    return gpu.tdp_w * share / total


def least_joules(gpu: Gpu, seconds: float, at_peak_s: float) -> float:
    """What one GPU takes at least in a step of `seconds` or more whose FLOPs take `at_peak_s` at its peak.

    All that runs draws as much as waiting or more, and products more the longer they take for the same FLOPs (`busy` is
    not below `waiting`): so they take least at the peak, with waiting in the rest of the step.
    """
    draw = draw_of(gpu)
    return gpu.tdp_w * (draw.waiting * seconds + (draw.running(0.0, 1.0) - draw.waiting) * at_peak_s)


def watts_band(gpu: Gpu, watts: float) -> tuple[float, float]:
    """p5 and p95 of a predicted power; no more than what the GPU is rated for."""
    width = exp(draw_of(gpu).band)
    return watts / width, max(watts, min(gpu.tdp_w, watts * width))
