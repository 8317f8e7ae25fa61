"""What can be said about each technique (`--technique offload:window=15,host_threads=12`): pricing and twins share it.

What is None is auto: chosen by formula or by simulated gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About
from windtunnel.questions.fields import fields_of
from windtunnel.questions.typed import check
from windtunnel.studies.techniques import constants

PIECES = (1, 2, 4, 8)
Shape = Literal["constant", "inverse", "exponential"]


class Parameters:
    """Base of a technique's parameters: each is of its type and within its limits."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            value = getattr(self, field.path)
            if value is None:
                continue
            check({field.path: value}, **{field.path: field.type})
            try:
                field.about.within_limits(value)
            except ValueError as error:
                raise SpecError(field.path, value, str(error)) from None


@dataclass(frozen=True, slots=True)
class PartitionPlan(Parameters):
    """Partitioned collectives (`centauri:pieces=4,group=true`)."""

    group: Annotated[bool | None, About("reduce inside nodes, across them and gather, as three collectives")] = None
    pieces: Annotated[int | None, About("chunks of an all-to-all and the experts between")] = None
    late_weights: Annotated[
        bool | None, About("weight gradients fill the time that collectives leave (layer tier)")
    ] = None
    overlap: Annotated[bool, About("every overlap of the plan on where that is faster (model tier)")] = True

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        if self.pieces not in (None, *PIECES):
            raise SpecError("pieces", self.pieces, f"give one of {', '.join(map(str, PIECES))}")


@dataclass(frozen=True, slots=True)
class LinaPlan(Parameters):
    """Lina (`lina:micro_op=30MB,packing=2`)."""

    priority: Annotated[bool, About("an all-to-all goes before gradients' all-reduce")] = True
    micro_op: Annotated[
        int, About("bytes of one micro-operation; 0: collectives stay whole", least=0, unit="bytes")
    ] = 30_000_000
    pipeline: Annotated[bool, About("experts compute on each piece of an all-to-all that has arrived")] = True
    packing: Annotated[
        int | None,
        About("times as many experts on a device; auto: until compute hides the all-to-all", least=1),
    ] = None


@dataclass(frozen=True, slots=True)
class SparsePlan(Parameters):
    """Sparse gradients (`sparse_gradients:ratio=0.01,chunk=1024`)."""

    ratio: Annotated[float, About("share of the chunks that is sent")] = 0.05
    chunk: Annotated[int, About("elements that are chosen together; 1: single elements", least=1)] = 1024
    rule: Annotated[Literal["topk", "threshold"], About("how chunks are chosen")] = "topk"
    threshold: Annotated[
        float | None, About("a fixed threshold of a chunk's mean magnitude; auto: steered to the ratio")
    ] = None
    momentum: Annotated[float, About("momentum correction, that of the optimizer", least=0, most=1)] = 0.0
    warmup: Annotated[int, About("steps at first whose gradients are sent whole", least=0)] = 0

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        if not 0.0 < self.ratio <= 1.0:
            raise SpecError("ratio", self.ratio, "give a number above 0, at most 1")


@dataclass(frozen=True, slots=True)
class OffloadPlan(Parameters):
    """A working window of layers (`offload:window=15,host_threads=12`)."""

    window: Annotated[int | None, About("layers on the device at a time; auto: by formula", least=1)] = None
    device_memory: Annotated[int | None, About("budget of device memory (the GPU's)", least=1, unit="bytes")] = None
    host_threads: Annotated[int, About("hardware threads of the host that update one GPU's layers", least=1)] = (
        constants.HOST_THREADS_PER_GPU
    )
    updaters: Annotated[int, About("layers that are updated at once; they share the threads", least=1)] = 1
    optimizer: Annotated[Literal["eager", "fused"], About("kernels of the host's optimizer")] = "eager"
    host_memory: Annotated[
        int | None, About("host memory for one GPU's layers (the node's / its GPUs)", least=1, unit="bytes")
    ] = None
    nvme: Annotated[bool, About("what host memory does not hold lies on an NVMe drive")] = False


@dataclass(frozen=True, slots=True)
class LocalPlan(Parameters):
    """Local SGD with a learning rate that decays over rounds and local steps.

    The learning rate of local step k in round r is eta0 phi(r) psi(k), each 1, 1 / (1 + rate t) or (1 - rate)^t.
    """

    local_steps: Annotated[int, About("optimizer steps between two averages of the weights", least=1)] = 16
    rounds: Annotated[Shape, About("decay over rounds, phi")] = "exponential"
    round_rate: Annotated[float, About("its rate, at most 1 if exponential", least=0)] = 0.05
    steps: Annotated[Shape, About("decay over local steps, psi")] = "exponential"
    step_rate: Annotated[float, About("its rate, at most 1 if exponential", least=0)] = 0.1

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        for name, shape, rate in (
            ("round_rate", self.rounds, self.round_rate),
            ("step_rate", self.steps, self.step_rate),
        ):
            if shape == "exponential" and rate > 1.0:
                raise SpecError(name, rate, "give 0 to 1: an exponential decay would turn learning rates negative")

    def factor(self, round_number: int, local_step: int) -> float:
        """The factor phi(r) psi(k) of the learning rate."""
        return decay(self.rounds, self.round_rate, round_number) * decay(self.steps, self.step_rate, local_step)


def decay(shape: str, rate: float, at: int) -> float:
    """1, 1 / (1 + rate t) or (1 - rate)^t."""
    if shape == "inverse":
        return 1.0 / (1.0 + rate * at)
    return float((1.0 - rate) ** at) if shape == "exponential" else 1.0
