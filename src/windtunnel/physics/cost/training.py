"""What a training run adds to the price of kernels measured alone, as few physical constants.

    sustained   a GPU that computes for hours runs at the clock its power limit allows; tables are timed in short
                bursts. Large GEMMs level off at a share of the dense peak; attention and memory-bound kernels take
                a factor
    launch      the host thread issues kernels one by one; a CUDA graph issues them for it
    slowdown    how much longer an op takes per unit of time that another class of op runs beside it on the GPU
    release     what frameworks did otherwise then
    jitter      relative standard deviation of one rank's step; a collective waits for the slowest of its members

The numbers live in `calibration/training.yaml`, each with what it was fitted on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.errors import SpecError
from windtunnel.physics.cost.calibration import read_calibration

if TYPE_CHECKING:
    from windtunnel.physics.hardware.calibration import Calibration

# Interference classes of `engine.replay.Slowdown`: 0 is neither slowed nor slows.
MATH, TRAFFIC, SCALE_UP, SCALE_OUT = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Sustained:
    """What a kernel reaches in training, by kind."""

    gemm: Mapping[str, float]  # dtype -> share of the dense peak that power sustains
    attention: float  # time in training over time alone
    attention_triton: float  # the first-generation Triton kernel over the GPU's best
    attention_flash2: float  # FlashAttention-2 over the GPU's best
    memory: float
    dispatch: float  # expert all-to-all inside a scale-up domain, over NCCL's of the same bytes; never below 1
    dispatch_across: float  # across domains: many peers share few channels, and arrivals are handed on inside the node
    # What replicas gather and reduce inside a scale-up domain, over the collective alone: it shares compute units with
    # the passes that it runs beside, where the GPU has no engine for it.
    shared: float
    p2p: float  # send-receive across nodes over one stream's full rate: NCCL gives a peer few channels
    # Of the bf16 peak that FlashAttention-2 reaches forward, alone, by size of head; without: not known.
    flash2_share: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingCosts:
    """The constants of one GPU generation."""

    sustained: Sustained
    launch_s: Mapping[str, float]  # one kernel from Python, by framework: modules, hooks and autograd included
    # Of a kernel in the backward pass over one in the forward pass, by framework: where backward passes are nodes of
    # autograd's engine, in C++, and not modules or functions in Python. A recomputed forward pass is a forward pass.
    backward_launch: Mapping[str, float]
    collective_launch_s: Mapping[str, float]  # one collective through torch.distributed, by framework
    # Host work between two steps that nothing overlaps (logging, schedules, barriers), by framework; it grows with the
    # depth of the barriers, so it is given per doubling of the number of GPUs.
    step_per_doubling_s: Mapping[str, float]
    # Of a tensor-parallel collective, by framework: streams wait for each other by events, and ranks whose Python
    # threads issue it one by one do not arrive together.
    exchange_s: Mapping[str, float]
    # Of its host, for each member of the group, by framework and by what crosses scale-up domains: `pp`, the messages
    # of a pipeline; `tp`, the group itself.
    late_member_s: Mapping[str, Mapping[str, float]]
    # Of its host for each exchange where DTensor runs eagerly; what it dispatches between two is in it.
    dtensor_s: float
    # Where the host reads from the GPU, by framework: the GPU is idle until what follows is launched.
    read_s: Mapping[str, float]
    # Of an adapter's products in the backward pass, for each token: their inner dimension is all tokens, on few SMs.
    adapter_token_s: float
    graphed_step_share: float  # of the host's work between steps, where the step is one graph
    replicas_of_nic: float  # of the NICs' rate, for what replicas of experts exchange across racks
    graph_launch_s: float  # one node of a CUDA graph
    choices_across: float  # all-to-all of every choice across nodes, over its bytes on the wire
    gathered: float  # rows gathered or scattered by index over rows in their order, where kernels of their own do that
    compute_by_scale_up: float
    compute_by_scale_out: float
    comm_by_compute: float
    hidden_partly: float  # of an expert all-to-all that a framework overlaps, across domains or without a CUDA graph
    jitter: float
    measured: bool  # whether training runs on such a GPU informed them
    # Whether `uncertainty` is what training runs on such a GPU missed by: it holds what its timed kernels leave open.
    from_runs: bool
    uncertainty: dict[str, float]  # relative standard deviation by part of a step
    compiled_launch_s: float | None = None  # one kernel from torch.compile's code; None: not known
    compiled_call_s: float = 0.0  # one call of a compiled graph: guards, autograd's wrapper

    def slowdown_factors(self) -> tuple[tuple[float, ...], ...]:
        """Square table for `Slowdown`: extra time of the row's class beside the column's."""
        up, out, comm = self.compute_by_scale_up, self.compute_by_scale_out, self.comm_by_compute
        return (
            (0.0, 0.0, 0.0, 0.0, 0.0),
            (0.0, 0.0, 0.0, up, out),
            (0.0, 0.0, 0.0, up, out),
            (0.0, comm, comm, 0.0, 0.0),
            (0.0, comm, comm, 0.0, 0.0),
        )

    def straggling(self, ranks: int) -> float:
        """Expected excess of the slowest of `ranks` over the mean, in parts of a step: sigma sqrt(2 ln n)."""
        return self.jitter * math.sqrt(2.0 * math.log(ranks)) if ranks > 1 else 0.0


def training_document() -> dict[str, Any]:
    """The calibration file as it stands; `validation/fit.py` tries other numbers in it."""
    return read_calibration("training.yaml")


@dataclass(frozen=True, slots=True)
class Software:
    """Habits of a software release, where they are not today's."""

    # Whether expert dispatch sends a token once to each rank that has experts for it (DeepEP, HybridEP); None: as the
    # framework does.
    deduplicates: bool | None = None
    # Whether Megatron-Core multiplies scores in behind experts' activation also where dispatch sends each choice.
    weighs_in_experts: bool = True
    experts_impl: Literal["", "grouped", "streams", "sequential"] = ""  # how experts are launched; "": as the framework
    masked_dispatch: bool = False  # whether tokens are brought to their experts' places by a product with a mask
    overlap_p2p: bool = True  # whether interleaved pipeline sends really hide behind compute
    overlap_gradients: bool = True  # whether gradients and parameters are exchanged beside computation
    gradient_dtype: str = ""  # of bf16 parameters; "": as the framework has it
    fused_mla: bool = True  # whether rotary embedding and concatenation of latent attention are one kernel
    fp8_gather: bool = True  # whether fp8 parameters are gathered in fp8
    gathers_heads: bool = False  # whether tensor-parallel ranks gather all heads for norms of queries and keys
    chained_norms: bool = False  # whether RMSNorm was a chain of kernels where it is one now
    fused_optimizer: bool | None = None  # whether one kernel updates parameters; None: as the framework has it
    chained_activation: bool = True  # whether experts' activation with bias and clamp is a chain of kernels
    # Whether experts' own kernels fetch rows from other ranks, in their order, quantise and weigh them, and write them
    # back there: no kernel sorts, casts or weighs rows, and the exchange runs beside the products.
    fused_exchange: bool = False
    # How often the host reads from the GPU in each pass over a layer: lengths of packed sequences, rows of each
    # adapter, tokens of each expert; and where experts have adapters.
    layer_reads: float = 0.0
    adapter_reads: float = 0.0
    expert_reads: float = 1.0
    adapted_expert_reads: float = 1.0
    flash4_reads: float = 0.0  # what launching FlashAttention-4 from Python takes on Blackwell, in such reads
    loss: str = ""  # cross-entropy by Megatron's own code, "eager" or "compiled"; "": TransformerEngine's kernel


def software(release: str | None) -> Software:
    """Habits of a release such as `nemo-24.11`.

    A release that was not fitted is taken as the next one of its name that was; later than all of those, as current.
    """
    if release is None:
        return Software()
    releases = training_document()["releases"]
    name, version = _release_parts(release)
    later = [other for other in releases if _release_parts(other)[0] == name and _release_parts(other)[1] >= version]
    return Software(**releases[min(later, key=_release_parts)]) if later else Software()


def before(release: str | None, other: str) -> bool:
    """Whether a release is of the same name as another one and earlier."""
    return (
        release is not None
        and _release_parts(release)[0] == _release_parts(other)[0]
        and _release_parts(release)[1] < _release_parts(other)[1]
    )


def release_name(release: str | None) -> str:
    """`nemo` of `nemo-24.11`; nothing of none."""
    return "" if release is None else _release_parts(release)[0]


def _release_parts(release: str) -> tuple[str, tuple[int, ...]]:
    """`nemo-24.11` as ("nemo", (24, 11)); a year is the short form of itself."""
    name, _, version = release.rpartition("-")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version))
    return name, tuple(number - 2000 if 2000 <= number < 2100 else number for number in numbers)


@lru_cache
def training_costs(generation: str) -> TrainingCosts:
    """Constants of a GPU generation; one that no run informed takes those that the file names. Raises SpecError."""
    data = training_document()
    host = data["host"]
    generations, others = data["generations"], data["other_generations"]
    if generation not in generations and generation not in others:
        remedy = "name it in cost/calibration/training.yaml: under generations, or under other_generations"
        raise SpecError("generation", generation, f"{remedy} by the one whose constants it takes")
    return TrainingCosts(
        sustained=Sustained(
            **{"shared": 1.0} | generations[generation if generation in generations else others[generation]]
        ),
        measured=generation in generations or others[generation] != "default",
        from_runs=generation in generations or others[generation] != "default",
        adapter_token_s=_by_generation(data["adapter_token_s"], generation),
        replicas_of_nic=_by_generation(data["replicas_of_nic"], generation),
        choices_across=data["choices_across"],
        gathered=data["gathered"],
        jitter=data["jitter"],
        uncertainty=data["uncertainty"],
        **host
        | {name: _by_framework(host[name], host["launch_s"]) for name in ("backward_launch", "collective_launch_s")}
        | data["slowdown"]
        | {"compute_by_scale_up": _by_generation(data["slowdown"]["compute_by_scale_up"], generation)},
    )


def _by_generation(entry: Mapping[str, float], generation: str) -> float:
    return entry.get(generation, entry["default"])


def _by_framework(values: Mapping[str, float], frameworks: Iterable[str]) -> dict[str, float]:
    return {name: values.get(name, values["default"]) for name in frameworks}


# What of a step's parts stays unknown on a device whose own operations were measured: an estimate, not fitted. Its
# software is its own. Waiting and whatever has no kernel of its own is as unknown as elsewhere.
_CALIBRATED_UNCERTAINTY: Mapping[str, float] = {
    "gemm": 0.03,
    "gemm_moe": 0.08,
    "attention": 0.04,
    "memory-bound": 0.08,
    "optimizer": 0.10,
    "host": 0.30,
    "host_moe": 0.30,
    "software": 0.03,
}


def calibrated_training_costs(generation: str, calibration: Calibration) -> TrainingCosts:
    """Constants of a device that was measured itself.

    Its kernels were timed as they run, so every sustained factor is 1. Launches are its host's own; a slowdown by a
    concurrent copy stands for that by a transfer where none by transfers was measured. Where it was measured how much a
    GEMM loses to a kernel that holds 16 SMs (as NCCL's rings do inside a node) or 8 (across nodes), that is taken.
    """
    base, host, overlap = training_costs(generation), calibration.host, calibration.overlap
    copying = overlap.get("compute_by_copy")
    eager = host.get("launch_eager_s")
    by_up = overlap.get("gemm_by_sms_16", base.compute_by_scale_up if copying is None else copying)
    by_out = overlap.get("gemm_by_sms_8", base.compute_by_scale_out if copying is None else copying)
    return replace(
        base,
        measured=True,
        from_runs=False,
        sustained=Sustained({}, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        launch_s=base.launch_s if eager is None else {**dict.fromkeys(base.launch_s, eager), "pytorch": eager},
        graph_launch_s=host.get("launch_graph_s", base.graph_launch_s),
        compiled_launch_s=host.get("launch_compiled_s"),
        compute_by_scale_up=overlap.get("compute_by_scale_up", by_up),
        compute_by_scale_out=overlap.get("compute_by_scale_out", by_out),
        comm_by_compute=overlap.get("comm_by_compute", overlap.get("copy_by_compute", base.comm_by_compute)),
        uncertainty={**base.uncertainty, **_CALIBRATED_UNCERTAINTY},
    )
