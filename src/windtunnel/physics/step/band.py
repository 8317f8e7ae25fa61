"""The band of a step: how far from the predicted time published runs of such steps were, part by part.

`--jitter` has a band besides: the 5th and 95th percentile of sampled steps (`step/disturbances/effect.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.physics.cost.price import Z95

SLOWER = 1.15  # the upper half of the band over the lower


def band_of(
    breakdown_ns: Mapping[str, int], spread: float, uncertainty: Mapping[str, float], *, experts: bool
) -> tuple[float, float]:
    """Relative p5 and p95 of the step.

    Parts err independently of each other, each by the standard deviation that published runs showed (`uncertainty` in
    the calibration) or by its kernels' own band where that is wider. What is missing makes runs slower rather than
    faster. `spread`: (p95 - p5) / time of all kernels.
    """
    kernels = spread / 2 / Z95
    variance, total = uncertainty["software"] ** 2, max(1, sum(breakdown_ns.values()))
    for name, nanoseconds in breakdown_ns.items():
        key = "exposed" if name.startswith("exposed") else "gemm_moe" if name == "gemm" and experts else name
        sigma = uncertainty.get(key, uncertainty["other"])
        if name in ("gemm", "attention", "memory-bound"):
            sigma = max(sigma, kernels)
        variance += (nanoseconds / total * sigma) ** 2
    z = Z95 * variance**0.5
    return 1.0 / (1.0 + z), 1.0 + SLOWER * z
