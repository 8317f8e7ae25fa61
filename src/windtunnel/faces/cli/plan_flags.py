"""Every field of a `Plan` as a flag. A test holds the two against each other; pydantic stays out of `--help`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from windtunnel.errors import SpecError

LAYOUT = Group("Layout", sort_key=1)
BATCH = Group("Batch", sort_key=2)
NUMBERS = Group("Precision and optimizer", sort_key=3)
MEMORY = Group("Memory savings", sort_key=4)
OVERLAP = Group("Overlap and launch", sort_key=5)


Changes = Annotated[
    tuple[str, ...],
    Parameter(name="--set", negative="", help="Change one number, e.g. cluster.nic=800Gb/s or model.layers=64."),
]


def _flag(group: Group, text: str, *names: str) -> Parameter:
    return Parameter(group=group, help=text, name=names or None, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """What is given here overrides the plan file; what is given nowhere follows the framework's habit."""

    framework: Annotated[
        Literal[
            "megatron",
            "torchtitan",
            "fsdp",
            "nanotron",
            "pytorch",
            "megatron-deepspeed",
            "deepspeed",
            "internevo",
            "colossalai",
            "maxtext",
        ]
        | None,
        _flag(LAYOUT, "Whose habits fill what the plan leaves open (megatron)."),
    ] = None
    release: Annotated[str | None, _flag(LAYOUT, "Software release, a calibration key, e.g. mlperf-v4.1.")] = None
    tp: Annotated[int | None, _flag(LAYOUT, "Tensor-parallel degree (1).")] = None
    pp: Annotated[int | None, _flag(LAYOUT, "Pipeline stages (1).")] = None
    cp: Annotated[int | None, _flag(LAYOUT, "Context-parallel degree (1).")] = None
    ep: Annotated[int | None, _flag(LAYOUT, "Expert-parallel degree (1).")] = None
    etp: Annotated[int | None, _flag(LAYOUT, "Tensor-parallel degree inside experts.")] = None
    dp: Annotated[int | None, _flag(LAYOUT, "Data-parallel degree (GPUs / (tp pp cp)).")] = None
    virtual_stages: Annotated[
        int | None, _flag(LAYOUT, "Model chunks per pipeline rank, interleaved (1).", "--virtual-stages", "--vpp")
    ] = None
    micro_batch_group: Annotated[
        int | None, _flag(LAYOUT, "Micro-batches through one model chunk before the next, interleaved (pp).")
    ] = None
    layers_per_stage: Annotated[
        str | None, _flag(LAYOUT, "Layers of each virtual stage in model order, e.g. 7,8,8,7.")
    ] = None
    account_for_embedding: Annotated[bool | None, _flag(LAYOUT, "First and last stage hold one layer less each.")] = (
        None
    )
    schedule: Annotated[str | None, _flag(LAYOUT, "gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe or dualpipe-v.")] = (
        None
    )
    sequence_parallel: Annotated[bool | None, _flag(LAYOUT, "Shard norms and residuals over tp.")] = None
    cp_kind: Annotated[Literal["ring", "ulysses"] | None, _flag(LAYOUT, "How context parallelism works (ring).")] = None
    zero_stage: Annotated[
        int | None,
        _flag(LAYOUT, "Sharded over data-parallel ranks: 0 nothing, 1 optimizer, 2 + gradients, 3 + parameters."),
    ] = None
    shard_group: Annotated[int | None, _flag(LAYOUT, "Ranks that share one full copy (HSDP).")] = None

    global_batch: Annotated[int | None, _flag(BATCH, "Sequences per optimizer step; required.")] = None
    micro_batch: Annotated[int | None, _flag(BATCH, "Sequences per forward pass and replica (1).")] = None
    seq_len: Annotated[int | None, _flag(BATCH, "Tokens per sequence; required.", "--seq-len", "--seq")] = None

    precision: Annotated[
        Literal["fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4"] | None,
        _flag(NUMBERS, "Format of the linear layers' GEMMs (bf16)."),
    ] = None
    fp8_activation_input: Annotated[bool | None, _flag(MEMORY, "Keep the input of the activation function in fp8.")] = (
        None
    )
    fp8_parameters: Annotated[bool | None, _flag(NUMBERS, "Keep and gather parameters in the GEMM format.")] = None
    gradient_dtype: Annotated[
        Literal["fp32", "bf16"] | None, _flag(NUMBERS, "Gradient accumulation and reduction format.")
    ] = None
    optimizer: Annotated[Literal["adam", "sgd", "muon"] | None, _flag(NUMBERS, "Optimizer (adam).")] = None
    optimizer_dtype: Annotated[
        Literal["fp32", "bf16"] | None, _flag(NUMBERS, "Format of the optimizer's moments (fp32).")
    ] = None

    lora_rank: Annotated[
        int | None, _flag(NUMBERS, "Rank of low-rank adapters beside frozen weights; 0 trains all weights (0).")
    ] = None
    lora_targets: Annotated[
        Literal["qkv", "attention", "all"] | None,
        _flag(NUMBERS, "Linear layers with an adapter: qkv, attention or all (all)."),
    ] = None

    recompute: Annotated[str | None, _flag(MEMORY, "none, full, full:N layers or selective:PART[,PART] (none).")] = None
    offload_activations: Annotated[int | None, _flag(MEMORY, "Layers whose activations go to the host (0).")] = None
    offload_optimizer: Annotated[
        float | None, _flag(MEMORY, "Share of optimizer state and update on the host (0).")
    ] = None
    attention_impl: Annotated[
        Literal["flash", "flash2", "triton", "unfused"] | None,
        _flag(MEMORY, "Attention kernel (flash, the GPU's best)."),
    ] = None

    bucket_parameters: Annotated[int | None, _flag(OVERLAP, "Parameters in one gradient or parameter message.")] = None
    overlap_grad_reduce: Annotated[bool | None, _flag(OVERLAP, "Gradient reduction under the backward pass.")] = None
    overlap_param_gather: Annotated[bool | None, _flag(OVERLAP, "Parameter gather under the forward pass.")] = None
    overlap_tp: Annotated[bool | None, _flag(OVERLAP, "TP collectives split and overlapped with their GEMMs.")] = None
    overlap_tp_backward: Annotated[
        bool | None, _flag(OVERLAP, "Backward TP collectives beside the GEMM that does not need them.")
    ] = None
    overlap_p2p: Annotated[bool | None, _flag(OVERLAP, "Pipeline sends under computation.")] = None
    overlap_ep: Annotated[bool | None, _flag(OVERLAP, "Expert all-to-all under another micro-batch.")] = None
    cuda_graphs: Annotated[bool | None, _flag(OVERLAP, "Kernels launched as graphs.")] = None
    compile: Annotated[bool | None, _flag(OVERLAP, "torch.compile or equivalent fusion.")] = None

    def given(self) -> dict[str, Any]:
        """The fields that stand on the command line, as `Plan` takes them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields = {name: value for name, value in fields.items() if value is not None}
        if "layers_per_stage" in fields:
            fields["layers_per_stage"] = _counts(fields["layers_per_stage"])
        return fields


SWITCHES = frozenset(
    "--" + field.name.replace("_", "-") for field in dataclasses.fields(PlanFlags) if "bool" in str(field.type)
)
WHOLE = frozenset(
    {"--samples", "--seed", "--seq", "--vpp"}
    | {"--" + field.name.replace("_", "-") for field in dataclasses.fields(PlanFlags) if "int |" in str(field.type)}
)
_ON, _OFF = ("on", "true", "yes"), ("off", "false", "no")


def switches_spelled_out(arguments: Sequence[str]) -> list[str]:
    """`--overlap-tp on` and `--overlap-tp=off` as `--overlap-tp` and `--no-overlap-tp`, as results print them."""
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in SWITCHES:
            spelled.append(name + equals + value)
            continue
        if not equals and rest and rest[0].lower() in _ON + _OFF:
            value = rest.pop(0)
        if value.lower() in _OFF:
            spelled.append("--no-" + name.removeprefix("--"))
        else:
            spelled.append(name if value.lower() in ("", *_ON) else f"{name}={value}")
    return spelled


def check_whole_numbers(arguments: Sequence[str]) -> None:
    """Refuse `--tp 1.5`, which would be rounded. Raises SpecError."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for flag, value in pairwise(words):
        if flag in WHOLE and re.fullmatch(r"[+-]?\d*\.\d*", value):
            raise SpecError(flag, value, "give a whole number")


def _counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise SpecError("--layers-per-stage", text, "give counts with commas between them, e.g. 7,8,8,7")
    return tuple(int(part) for part in parts)
