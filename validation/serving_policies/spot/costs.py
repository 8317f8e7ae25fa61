"""What one-shot generation costs on small machines: latency of a batch by layout, and what a layout holds.

    token     weights / (tensor x bandwidth) + layers x 2 sums over tensor ranks;   a token passes all stages in turn
    prompt    2 x parameters x batch x prompt / (tensor x FLOP/s) + layers x 2 x activations / PCIe, where tensor > 1
    batch     prompt + output tokens;   throughput = data x batch / latency

Batches are static, as in SpotServe's engine (FasterTransformer): a batch runs until its longest answer ends. A layout
fits where weights and the cache of a full batch leave room on every GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spot.reconfigure import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One spot instance. The defaults are AWS g4dn.12xlarge: four T4 behind PCIe 3, 50 Gb/s (AWS and NVIDIA sheets)."""

    gpus: int = 4
    memory_bytes: float = 16e9 * 0.9  # of a GPU, less context and buffers
    bandwidth_bytes_per_s: float = 320e9 * 0.75  # of a GPU's memory, as kernels reach it
    flops_per_s: float = 8.1e12 * 0.6  # of a GPU in 4-byte arithmetic
    pcie_bytes_per_s: float = 10e9
    sum_s: float = 60e-6  # start-up of a sum over ranks inside a machine; over the network `far_sum_s`
    far_sum_s: float = 200e-6
    network_bytes_per_s: float = 6.25e9 * 0.8
    storage_bytes_per_s: float = 1e9  # a network volume (gp3's most)
    launch_s: float = 30.0  # process, CUDA contexts, communicators, before any weight


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotModel:
    """A model as it is served: 4-byte weights and cache."""

    name: str
    parameters: float
    layers: int
    hidden: int
    prompt: int = 512
    output: int = 128

    @property
    def weight_bytes(self) -> float:
        """Of the whole model."""
        return 4.0 * self.parameters

    @property
    def kv_token_bytes(self) -> float:
        """Cache of one token, all layers."""
        return 8.0 * self.layers * self.hidden

    def token_s(self, machine: Machine, tensor: int, batch: int) -> float:
        """One decode step of a batch."""
        read = self.weight_bytes + batch * (self.prompt + self.output / 2) * self.kv_token_bytes
        return read / (tensor * machine.bandwidth_bytes_per_s) + self._sums_s(machine, tensor, batch)

    def prompt_s(self, machine: Machine, tensor: int, batch: int) -> float:
        """The prompts of a batch."""
        tokens = batch * self.prompt
        return 2.0 * self.parameters * tokens / (tensor * machine.flops_per_s) + self._sums_s(machine, tensor, tokens)

    def _sums_s(self, machine: Machine, tensor: int, tokens: int) -> float:
        if tensor == 1:
            return 0.0
        near = tensor <= machine.gpus
        rate = machine.pcie_bytes_per_s if near else machine.network_bytes_per_s / machine.gpus
        moved = 2.0 * 4.0 * tokens * self.hidden * (tensor - 1) / tensor
        return 2 * self.layers * ((machine.sum_s if near else machine.far_sum_s) + moved / rate)

    def latency_s(self, machine: Machine, tensor: int, batch: int) -> float:
        """From a batch's start to its end; stages of a pipeline follow each other."""
        return self.prompt_s(machine, tensor, batch) + self.output * self.token_s(machine, tensor, batch)


def choices_of(model: SpotModel, machine: Machine, most_gpus: int, most_batch: int = 8) -> Iterator[Choice]:
    """Layouts (data, pipeline, tensor) with batches of 1, 2, 4, ... that fit `most_gpus`."""
    for tensor in (1, 2, 4, 8):
        for pipeline in range(1, most_gpus // tensor + 1):
            if model.layers < pipeline:
                break
            batch = 1
            while batch <= most_batch:
                cache = batch * (model.prompt + model.output) * model.kv_token_bytes
                if (model.weight_bytes + cache) / (pipeline * tensor) <= machine.memory_bytes:
                    latency = model.latency_s(machine, tensor, batch)
                    for data in range(1, most_gpus // (tensor * pipeline) + 1):
                        yield Choice((data, pipeline, tensor), batch, data * batch / latency, latency)
                batch *= 2
