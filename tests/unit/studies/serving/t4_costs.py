"""Prices of one-shot generation that a test can work out by hand: machines of four T4 behind PCIe 3.

    token     weights / (tensor x bandwidth) + layers x 2 sums over tensor ranks;   a token passes all stages in turn
    prompt    2 x parameters x batch x prompt / (tensor x FLOP/s) + layers x 2 x activations / PCIe, where tensor > 1

4-byte weights and arithmetic, as FasterTransformer ran there. A layout fits where weights and the cache of a full batch
leave room on every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class T4:
    """One GPU of AWS g4dn.12xlarge and what joins it to others (AWS and NVIDIA sheets)."""

    per_machine: int = 4
    memory_bytes: float = 16e9 * 0.9  # less context and buffers
    bandwidth_bytes_per_s: float = 320e9 * 0.75  # of its memory, as kernels reach it
    flops_per_s: float = 8.1e12 * 0.6  # in 4-byte arithmetic
    pcie_bytes_per_s: float = 10e9
    sum_s: float = 60e-6  # start-up of a sum over ranks inside a machine; over the network `far_sum_s`
    far_sum_s: float = 200e-6
    network_bytes_per_s: float = 6.25e9 * 0.8  # of a machine


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotModel:
    """A model as it is served: 4-byte weights and cache."""

    name: str
    parameters: float
    layers: int
    hidden: int
    prompt: int = 512
    output: int = 128
    gpu: T4 = T4()
    tensors: tuple[int, ...] = (1, 2, 4, 8)

    @property
    def weight_bytes(self) -> float:
        """Of the whole model."""
        return 4.0 * self.parameters

    @property
    def kv_token_bytes(self) -> float:
        """Cache of one token, all layers."""
        return 8.0 * self.layers * self.hidden

    def token_s(self, pipeline: int, tensor: int, batch: int) -> float:
        """One decode step of a batch."""
        read = self.weight_bytes + batch * (self.prompt + self.output / 2) * self.kv_token_bytes
        return read / (tensor * self.gpu.bandwidth_bytes_per_s) + self._sums_s(tensor, batch)

    def prompt_s(self, pipeline: int, tensor: int, batch: int) -> float:
        """The prompts of a batch."""
        tokens = batch * self.prompt
        return 2.0 * self.parameters * tokens / (tensor * self.gpu.flops_per_s) + self._sums_s(tensor, tokens)

    def _sums_s(self, tensor: int, tokens: int) -> float:
        if tensor == 1:
            return 0.0
        near = tensor <= self.gpu.per_machine
        rate = self.gpu.pcie_bytes_per_s if near else self.gpu.network_bytes_per_s / self.gpu.per_machine
        moved = 2.0 * 4.0 * tokens * self.hidden * (tensor - 1) / tensor
        return 2 * self.layers * ((self.gpu.sum_s if near else self.gpu.far_sum_s) + moved / rate)

    def fits(self, pipeline: int, tensor: int, batch: int) -> bool:
        """Whether a stage's part of the weights and of the cache goes into a GPU."""
        cache = batch * (self.prompt + self.output) * self.kv_token_bytes
        return (self.weight_bytes + cache) / (pipeline * tensor) <= self.gpu.memory_bytes
