"""What the rules of spot serving ask of a model and of its machines; a model of the catalogue, priced as `serve` does.

    prompt    one step of a whole batch of prompts, all stages of a pipeline in turn
    token     one decode step at the mean context, prompt + output / 2; a token passes all stages in turn
    batch     prompt + output tokens;   throughput = data x batch / latency

Batches are static, as in SpotServe's engine (FasterTransformer): a batch runs until its longest answer ends. A layout
fits where weights, activations and the cache of a full batch leave room on every GPU, by the same count as `serve`.
The hand-over of activations between stages is not counted, nor do stages work on several batches at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.build import Engine, engine_of, kv_format
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.kv.capacity import kv_bytes_per_token, memory_of, weight_bytes
from windtunnel.studies.serving.spot.reconfigure import Choice
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

NETWORK_SHARE = 0.8  # of a NIC's rate that long sends reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One spot instance, as far as moving and loading weights sees it. The defaults are AWS g4dn.12xlarge's."""

    gpus: int = 4
    network_bytes_per_s: float = 6.25e9 * NETWORK_SHARE
    storage_bytes_per_s: float = 1e9  # a network volume (gp3's most, AWS's sheet)
    launch_s: float = 30.0  # process, CUDA contexts, communicators, before any weight


class SpotModel(Protocol):
    """A model at one length of prompts and answers."""

    @property
    def layers(self) -> int:
        """Of the whole model."""

    @property
    def output(self) -> int:
        """Tokens of an answer."""

    @property
    def prompt(self) -> int:
        """Tokens of a prompt."""

    @property
    def weight_bytes(self) -> float:
        """Of the whole model."""

    @property
    def kv_token_bytes(self) -> float:
        """Cache of one token, all layers."""

    @property
    def tensors(self) -> tuple[int, ...]:
        """Tensor-parallel sizes that there are."""

    def prompt_s(self, pipeline: int, tensor: int, batch: int) -> float:
        """The prompts of a batch."""

    def token_s(self, pipeline: int, tensor: int, batch: int) -> float:
        """One decode step of a batch."""

    def fits(self, pipeline: int, tensor: int, batch: int) -> bool:
        """Whether every GPU has room for its part of the weights and of a full batch's cache."""


def latency_s(model: SpotModel, pipeline: int, tensor: int, batch: int) -> float:
    """From a batch's start to its end; stages of a pipeline follow each other."""
    return model.prompt_s(pipeline, tensor, batch) + model.output * model.token_s(pipeline, tensor, batch)


def choices_of(model: SpotModel, most_gpus: int, most_batch: int = 8) -> Iterator[Choice]:
    """Layouts (data, pipeline, tensor) with batches of 1, 2, 4, ... that fit `most_gpus`."""
    for tensor in model.tensors:
        for pipeline in range(1, most_gpus // tensor + 1):
            if model.layers < pipeline:
                break
            batch = 1
            while batch <= most_batch:
                if model.fits(pipeline, tensor, batch):
                    latency = latency_s(model, pipeline, tensor, batch)
                    for data in range(1, most_gpus // (tensor * pipeline) + 1):
                        yield Choice((data, pipeline, tensor), batch, data * batch / latency, latency)
                batch *= 2


@dataclass(frozen=True, eq=False)
class CatalogueModel:
    """A model of the catalogue on GPUs of a cluster: step times and memory of `serve`, whatever its parallel sizes."""

    model: Model
    cluster: Cluster
    deployment: Deployment  # number formats and engine; its sizes are chosen by the policies
    prompt: int
    output: int
    _engines: dict[int, Engine] = field(default_factory=dict, repr=False)
    _rooms: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> int:
        """Of the whole model."""
        return self.model.n_layers

    @cached_property
    def weight_bytes(self) -> float:
        """Of the whole model."""
        return weight_bytes(self.model, replace(self.deployment, tp=1, pp=1))

    @cached_property
    def kv_token_bytes(self) -> float:
        """Cache of one token, all layers."""
        return kv_bytes_per_token(self.model, replace(self.deployment, tp=1, pp=1), self._kv)

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Powers of two inside a machine that heads can be split by."""
        most = min(self.cluster.gpus_per_node, *(layer.attention.heads for layer in self.model.layers))
        return tuple(1 << place for place in range(most.bit_length()))

    @cached_property
    def _kv(self) -> str:
        return kv_format(self.deployment, load_engine(self.deployment.engine), self.cluster)

    def engine(self, tensor: int) -> Engine:
        """The whole model on `tensor` GPUs."""
        if tensor not in self._engines:
            self._engines[tensor] = engine_of(self.model, self.cluster, replace(self.deployment, tp=tensor, pp=1))
        return self._engines[tensor]

    def prompt_s(self, pipeline: int, tensor: int, batch: int) -> float:
        """The prompts of a batch, one step, on whatever number of stages."""
        return self.engine(tensor).times.mixed(0, 0, [(self.prompt, 0)] * batch, batch) / TICKS_PER_S

    def token_s(self, pipeline: int, tensor: int, batch: int) -> float:
        """One decode step of a batch at its mean context, on whatever number of stages."""
        context = batch * (self.prompt + self.output // 2)
        return self.engine(tensor).times.decode(batch).at(context) / TICKS_PER_S

    def fits(self, pipeline: int, tensor: int, batch: int) -> bool:
        """By the count of `kv.capacity`."""
        key = pipeline, tensor
        if key not in self._rooms:
            layout = replace(self.deployment, tp=tensor, pp=pipeline)
            profile = load_engine(self.deployment.engine).on(self.cluster.gpu)
            self._rooms[key] = memory_of(self.model, layout, profile, self.cluster, self._kv).tokens
        return batch * (self.prompt + self.output) <= self._rooms[key]
