"""Steps of a diffusion transformer: each works on all patches and the text anew, and keeps nothing for the next.

A request is one image: a prompt of one token, which is its first step, and as many tokens of output as it has steps.
Guidance is a second pass of every step, beside the first in one batch (classifier-free guidance, arXiv 2207.12598). The
text encoders and the decoder of the latent image are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.studies.serving.step_time.layers import Layers

MOST = 1 << 20


@dataclass(frozen=True, eq=False)
class Denoising(Layers):
    """As `Layers`, where a token of the request is a step of its image."""

    def dense(self, tokens: float) -> float:
        """Steps of so many images, all tokens of each."""
        return Layers.dense(self, tokens * self._tokens)

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
        """Attention of `chunk` steps of one image: as many products as causal ones behind half as many tokens more."""
        n = self.model.step_tokens
        return chunk * self.model.step_passes * Layers.prefill(self, n, n // 2)

    @property
    def _tokens(self) -> float:
        return float(self.model.step_tokens * self.model.step_passes)
