"""What matrix products take in training: kernels timed in bursts, held to the rate that power sustains.

    time = (burst^8 + limit^8)^(1/8),    limit = FLOPs / (share x clock x dense peak)

a smooth maximum, within 9 % of the larger where the two are equal. The shares are in `calibration/training.yaml`; a
format that none was fitted for runs as its table says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from windtunnel.physics.cost.kernels import KernelCosts
from windtunnel.physics.cost.price import Price
from windtunnel.physics.cost.training import TrainingCosts

# Time of a 16-bit product over the same one with aligned rows, by the largest power of two that divides the length of
# its rows: tensor cores load 16 bytes at once, and shorter loads starve them (NVIDIA, "Matrix Multiplication Background
# User's Guide"). 1: vTrain's output matrix on one node takes 3.4 times as long for its FLOPs at tp 1 (50,257 rows) as
# at tp 2 (25,128), which is the 2.8. 4 and 2 are interpolated between, not measured. Frameworks that pad the vocabulary
# (Megatron, by default) never meet this.
ALIGNED = 8
SHORT_LOADS: Mapping[int, float] = {8: 1.0, 4: 1.2, 2: 1.6, 1: 2.8}
THROTTLED_FLOPS = 1e12  # of one GEMM: half a millisecond and more on anything in the catalogue
SMOOTH = 8


def sustained_gemm(kernels: KernelCosts, training: TrainingCosts, m: int, n: int, k: int, dtype: str) -> Price:
    """One product.

    The longest kernels of the tables were timed on a chip that had begun to throttle, so that a GEMM can look slower
    than its halves in turn. Throttling is what `_level_off` is for; here the halves set the burst rate.
    """
    price = kernels.gemm(m, n, k, dtype)
    for parts in (2, 4):
        if m % parts == 0 and 2.0 * m * n * k / parts > THROTTLED_FLOPS:
            halves = kernels.gemm(m // parts, n, k, dtype).scaled(parts)
            price = min(price, halves, key=lambda candidate: candidate.seconds)
    return _level_off(kernels, training, price, 2.0 * m * n * k, dtype)


def unaligned(n: float, k: float) -> float:
    """Factor on the time of a 16-bit product whose weight is n x k, for rows that loads of 16 bytes do not divide."""
    return SHORT_LOADS[math.gcd(max(1, round(n)), max(1, round(k)), ALIGNED)]


def sustained_grouped_gemm(
    kernels: KernelCosts,
    training: TrainingCosts,
    groups: float,
    m: float,
    n: float,
    k: float,
    dtype: str,
) -> Price:
    """Products of experts, `m` rows each on average, as one kernel for all of them.

    TransformerEngine runs them one by one on four streams, which fill each other's gaps: MooreThreads/SimuMax times its
    grouped products of 40 experts on B200 at 0.40 to 0.50 of the peak in bf16, plain ones of such sizes at 0.45 to 0.51
    (`configs/system/b200_bf16_ceperm.json`).
    """
    price = kernels.grouped_gemm(int(groups), m, max(1, round(n)), max(1, round(k)), dtype)
    level = _level_off(kernels, training, price, 2.0 * groups * m * n * k, dtype)
    return level.fitted(1.0, training.uncertainty["gemm_moe"])


def _level_off(
    kernels: KernelCosts, training: TrainingCosts, price: Price, flops: float, dtype: str
) -> Price:  # fmt: skip
    shares, gpu = training.sustained.gemm, kernels.gpu
    # Both 16-bit formats run on the same units: where one was not fitted, the other's share holds.
    share = shares.get(dtype, shares.get({"fp16": "bf16"}.get(dtype, dtype)))
    if share is None or price.seconds == 0.0 or not gpu.supports(dtype):
        return price
    limit = flops / (share * gpu.kernel_scale.clock * gpu.peak_flops(dtype))
    together = (price.seconds**SMOOTH + limit**SMOOTH) ** (1.0 / SMOOTH)
    return price.fitted(together / price.seconds, training.uncertainty["gemm"])
