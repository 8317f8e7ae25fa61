"""What frameworks have: Megatron-Core arguments (core 0.14), torchtitan job configs (2026-05), PyTorch FSDP and
Accelerate, nanotron, plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from windtunnel.physics.cost.training import before, software

ON_OFF, HABIT = (True, False), (None,)


@dataclass(frozen=True, slots=True)
class Features:
    """What a framework has. A field that is not open follows its habit."""

    cp_kinds: tuple[str, ...] = ()  # empty: no context parallelism
    tensor: bool = True
    experts: bool = True
    schedules: tuple[str, ...] = ("1f1b",)
    interleaves: bool = True
    uneven: bool = False  # takes any number of layers for each stage
    sequence_parallel: tuple[bool | None, ...] = HABIT
    compile: tuple[bool | None, ...] = HABIT
    zero: tuple[int, ...] = (0, 1)
    zero_alone: tuple[int, ...] = ()  # only without a pipeline
    zero_in_pipelines: tuple[int, ...] | None = None  # in place of `zero`
    accumulates: bool = True  # gradients of several micro-batches without a pipeline
    folds: bool = True  # experts may be cut over other ranks than the rest: etp 1, ep over tp and cp
    hsdp: bool = False
    selective: tuple[str, ...] = ()
    selective_dense: tuple[str, ...] = ()
    selective_moe: tuple[str, ...] = ()
    some_layers: bool = True  # recomputes only some layers in full
    overlap_tp: tuple[bool | None, ...] = HABIT
    overlap_tp_compiled: bool = False  # that one only where layers are compiled
    overlap_replicas: tuple[bool | None, ...] = HABIT
    overlap_p2p: tuple[bool | None, ...] = HABIT
    overlap_ep: tuple[bool | None, ...] = HABIT
    cuda_graphs: tuple[bool | None, ...] = HABIT

    def sharding(self, *, pipelined: bool) -> tuple[int, ...]:
        """ZeRO stages that may be tried."""
        if not pipelined:
            return self.zero + self.zero_alone
        return self.zero if self.zero_in_pipelines is None else self.zero_in_pipelines

    def parts(self, *, mixture: bool) -> tuple[str, ...]:
        """What may be recomputed by name."""
        return (*self.selective, *(self.selective_moe if mixture else self.selective_dense))


FEATURES: dict[str, Features] = {
    "megatron": Features(
        cp_kinds=("ring", "ulysses"),
        zero=(0, 1),
        zero_alone=(2, 3),  # Megatron-FSDP
        uneven=True,  # --pipeline-model-parallel-layout
        selective=("selective:core_attention", "selective:norms"),
        selective_dense=("selective:mlp",),  # `mlp` of `recompute_modules` is the dense one's; `moe` is dispatch too
        selective_moe=("selective:moe_activation", "selective:moe_activation,norms"),
        overlap_tp=ON_OFF,
        overlap_ep=ON_OFF,
        cuda_graphs=(True, False),
    ),
    "torchtitan": Features(
        cp_kinds=("ring",),
        schedules=("1f1b", "gpipe", "zb-v", "dualpipe-v"),
        compile=ON_OFF,
        zero=(2, 3),
        hsdp=True,
        selective=("selective:ops",),
        overlap_tp=ON_OFF,
        overlap_tp_compiled=True,  # its check: "Async TP requires --training.compile"
    ),
    "fsdp": Features(
        tensor=False,
        experts=False,
        schedules=("1f1b", "gpipe"),
        compile=ON_OFF,
        zero=(2, 3),
        hsdp=True,
    ),
    "nanotron": Features(
        schedules=("1f1b", "gpipe"),
        interleaves=False,
        sequence_parallel=ON_OFF,
        selective=("selective:core_attention",),
        some_layers=False,
    ),
    "megatron-deepspeed": Features(interleaves=False),
    "deepspeed": Features(tensor=False, experts=False, interleaves=False, zero=(1, 2, 3), some_layers=False),
    "internevo": Features(interleaves=False, some_layers=False),
    "colossalai": Features(zero=(0, 1, 2), some_layers=False),
    "maxtext": Features(zero=(3,), interleaves=False, some_layers=False),
    "pytorch": Features(tensor=False, experts=False, schedules=("1f1b", "gpipe"), compile=ON_OFF),
}


@lru_cache(maxsize=64)
def features_of(framework: str, release: str | None, muon: bool = False, mxfp8: bool = False) -> Features:
    """What a release has; None: today's. `muon`: beside that optimizer, which Megatron-FSDP refuses. `mxfp8`: in that
    format, whose parameters it shards from 2026-01 on (Megatron-LM pull request 2239).

    Megatron-Core before 0.13 (2025-07; `fused_mla` in `cost/calibration/training.yaml` tells them) recomputes layers
    or core attention, not modules by name (`--recompute-modules`), and shards optimizer state only: Megatron-FSDP came
    later. Before 0.10 (its changelog: MoE Parallel Folding; NeMo 24.09 has 0.9) experts are cut by tp as all else is,
    and over data-parallel ranks only. torchtitan before 2025-02 (pull request 822) has no option for when parameters
    are sharded again: behind every pass without a pipeline, never with one. llm-foundry before 2024-02 (pull request
    951) recomputes all blocks or none.
    """
    has = FEATURES[framework]
    if framework == "torchtitan" and before(release, "torchtitan-25.02"):
        has = replace(has, zero=(3,), zero_in_pipelines=(2,))
    if framework == "torchtitan":
        return replace(has, accumulates=not before(release, "torchtitan-25.06"))
    if framework == "fsdp" and before(release, "llm-foundry-24.02"):
        return replace(has, some_layers=False)
    if framework == "megatron" and not software(release).fused_mla:
        folds = not (before(release, "nemo-24.12") or before(release, "megatron-25.02"))
        return replace(
            has, zero_alone=(), selective=("selective:core_attention",), selective_dense=(), selective_moe=(),
            folds=folds,
        )  # fmt: skip
    refused = muon or (mxfp8 and before(release, "bridge-26.02"))
    return replace(has, zero_alone=()) if framework == "megatron" and refused else has
