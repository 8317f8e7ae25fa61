"""Steps of a diffusion transformer: each works on all patches and the text anew, and keeps nothing for the next.

A request is one image: a prompt of one token, which is its first step, and as many tokens of output as it has steps.
Guidance is a second pass of every step, beside the first in one batch (classifier-free guidance, arXiv 2207.12598). The
text encoders and the decoder of the latent image are left out.

Priced as diffusers and xDiT run it, in eager PyTorch: products at the rate that power sustains for long, attention by
FlashAttention-2 at what it reaches on such GPUs, made longer like other attention in long runs (all as in training:
`physics/cost/calibration/training.yaml`), and every norm, scale, shift, gate, rotation and sum a kernel of its own,
`UNFUSED` times through HBM (diffusers' JointTransformerBlock, AdaLayerNormZero, RMSNorm and `apply_rotary_emb`). Held
against pictures and videos in `validation/diffusion.csv`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.physics.cost.sustained import SMOOTH
from windtunnel.physics.cost.training import Sustained, training_costs
from windtunnel.studies.serving.step_time.layers import TWO_BYTES, Layers

MOST = 1 << 20
# Times that a layer reads and writes all features once: two norms with scale, shift, gate and sum (11), GELU on four
# times the width (4), text and image put together and what comes out of attention (4).
UNFUSED = 19.0
UNFUSED_QK_NORM = 17.0  # queries' and keys' own norm, in single steps of which most are in 32 bits
# Rotary positions of queries and keys, 52 bytes an element: a turned copy, both in 32 bits, products, their sum, back.
UNFUSED_ROTARY = 26.0


@dataclass(frozen=True, eq=False)
class Denoising(Layers):
    """As `Layers`, where a token of the request is a step of its image."""

    def dense(self, tokens: float) -> float:
        """Steps of so many images, all tokens of each."""
        passed, gpu, tp = tokens * self._tokens, self.kernels.gpu, self.deployment.tp
        share = self._sustained.gemm.get(self.deployment.weights, 1.0)
        flops = 2.0 * self.model.matmul_parameters * passed / tp / self.stages
        limit = flops / (share * gpu.kernel_scale.clock * gpu.peak_flops("bf16"))
        seconds = float((Layers.dense(self, passed) ** SMOOTH + limit**SMOOTH) ** (1 / SMOOTH))
        once = 2 * TWO_BYTES * passed * self.model.hidden_size / tp
        for layer, count in self.kinds:
            times = UNFUSED + UNFUSED_QK_NORM * (layer.attention.qk_norm != "none")
            times += UNFUSED_ROTARY * (layer.attention.position == "rope")
            seconds += count * self._sustained.memory * self.kernels.stream_s(times * once)
        return seconds

    def group(self, tokens: float) -> float:
        """Routed experts of so many steps."""
        return Layers.group(self, tokens * self._tokens)

    def decode_surface(self, queries: int = 1) -> Callable[[float, float], float]:
        """Attention of every image over itself, however many steps went before."""
        each = self.prefill(1, 0)
        return lambda sequences, context: sequences * each

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Straight in the number of images."""
        return tuple(float(2**i) for i in range(11)), (1.0, float(MOST))

    def prefill(self, chunk: int, past: int) -> float:
        """Attention of `chunk` steps of one image.

        Where FlashAttention-2's own rate is not known, as many products as causal ones behind half as many tokens more,
        longer than by the GPU's best kernel.
        """
        n, sustained, shares = self.model.step_tokens, self._sustained, self._sustained.flash2_share
        if not shares:
            return chunk * self.model.step_passes * sustained.attention_flash2 * Layers.prefill(self, n, n // 2)
        peak, seconds = self.kernels.gpu.peak_flops("bf16"), 0.0
        for layer, count in self.kinds:
            attention = layer.attention
            share = shares[min(shares, key=lambda size: abs(size - attention.head_dim))]
            seconds += (
                count * 4.0 * n * n * -(-attention.heads // self.deployment.tp) * attention.head_dim / (share * peak)
            )
        return chunk * self.model.step_passes * sustained.attention * seconds

    @property
    def _sustained(self) -> Sustained:
        return training_costs(self.kernels.gpu.generation).sustained

    @property
    def _tokens(self) -> float:
        return float(self.model.step_tokens * self.model.step_passes)
