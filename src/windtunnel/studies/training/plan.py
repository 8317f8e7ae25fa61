"""Plan: how a model is laid out on a cluster and trained, as the user says it.

Every field left at None follows the habit of the named framework (`training/framework.py`); `resolve` in
`training/layout.py` fills them in, says so, and refuses what cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from windtunnel.errors import SpecError, UnknownNameError, remedy_of
from windtunnel.input_file import read_mapping as mapping_of

Framework = Literal[
    "megatron", "torchtitan", "fsdp", "nanotron", "pytorch",
    "megatron-deepspeed", "deepspeed", "internevo", "colossalai", "maxtext",
]  # fmt: skip
Precision = Literal["fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4"]
PARAMETER_FORMATS = ("fp8", "fp8-current", "mxfp8")  # in which recipes keep parameters: none in 4 bits
PEAK_DTYPE = {"fp8": "fp8", "fp8-current": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}  # of a precision; others: itself
Degree = Annotated[int, Field(ge=1, le=1_000_000)]
RECOMPUTE_PARTS = ("attention", "core_attention", "mla_up_proj", "mlp", "norms", "activation", "moe_activation", "ops")


class Plan(BaseModel):
    """What the user says of a run. Field names are the command line's flags with `_` for `-`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    framework: Framework = "megatron"
    release: str | None = Field(default=None, description="software release, e.g. 'nemo-24.09'; a calibration key")

    tp: Degree = Field(default=1, description="tensor-parallel degree")
    pp: Degree = Field(default=1, description="pipeline stages")
    cp: Degree = Field(default=1, description="context-parallel degree")
    ep: Degree = Field(default=1, description="expert-parallel degree")
    etp: Degree | None = Field(default=None, description="tensor-parallel degree inside experts (default: tp)")
    dp: Degree | None = Field(default=None, description="data-parallel degree (default: GPUs / (tp pp cp))")
    virtual_stages: Degree = Field(default=1, description="model chunks per pipeline rank (interleaving)")
    micro_batch_group: Degree | None = Field(
        default=None, description="micro-batches that go through one model chunk before the next (interleaving)"
    )
    layers_per_stage: tuple[int, ...] | None = Field(
        default=None, description="layers of each virtual stage, in model order"
    )
    account_for_embedding: bool | None = Field(
        default=None, description="first and last stage hold one layer less each"
    )
    schedule: str | None = Field(
        default=None, description="gpipe | 1f1b | interleaved | zb-h1 | zb-v | dualpipe | dualpipe-v"
    )

    sequence_parallel: bool | None = Field(default=None, description="shard norms and residuals over tp")
    cp_kind: Literal["ring", "ulysses"] = "ring"
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = Field(
        default=None, description="0 none, 1 optimizer, 2 + gradients, 3 + parameters sharded over data-parallel ranks"
    )
    shard_group: Degree | None = Field(
        default=None, description="ranks that share one full copy (HSDP); default: dp x cp"
    )

    global_batch: Degree = Field(description="sequences per optimizer step")
    micro_batch: Degree = Field(default=1, description="sequences per forward pass and data-parallel replica")
    seq_len: Annotated[int, Field(ge=1, le=2**27)] = Field(description="tokens per sequence")

    precision: Precision = Field(default="bf16", description="format of the linear layers' GEMMs")
    fp8_activation_input: bool = Field(
        default=False, description="keep the input of the activation function in fp8 for the backward pass"
    )
    fp8_parameters: bool | None = Field(
        default=None, description="keep and gather parameters in the GEMM format (Megatron-Core's recipes do in fp8)"
    )
    gradient_dtype: Literal["fp32", "bf16"] | None = Field(
        default=None, description="format of accumulation and reduction"
    )
    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    optimizer_dtype: Literal["fp32", "bf16"] = Field(default="fp32", description="format of the optimizer's moments")

    lora_rank: Annotated[int, Field(ge=0, le=65_536)] = Field(
        default=0, description="rank of low-rank adapters beside frozen weights (LoRA); 0: all weights are trained"
    )
    lora_targets: Literal["qkv", "attention", "all"] = Field(
        default="all",
        description="which linear layers have an adapter: queries, keys and values, all of attention, all",
    )

    recompute: str = Field(default="none", description="none | full | full:N layers | selective:PART[,PART]")
    offload_activations: Annotated[int, Field(ge=0)] = Field(
        default=0, description="layers whose activations go to the host"
    )
    offload_optimizer: Annotated[float, Field(ge=0.0, le=1.0, strict=False)] = Field(
        default=0.0, description="share of the optimizer state and update on the host"
    )
    attention_impl: Literal["flash", "flash2", "triton", "unfused"] = Field(
        default="flash",
        description="flash (the GPU's best), flash2 (FlashAttention-2), triton (its forerunner), or unfused",
    )

    bucket_parameters: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        default=None, description="parameters in one gradient or parameter message"
    )
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_tp: bool | None = Field(default=None, description="split TP collectives and GEMMs so that they overlap")
    overlap_tp_backward: bool | None = Field(
        default=None, description="backward TP collectives run beside the GEMM that does not need them"
    )
    overlap_p2p: bool | None = None
    overlap_ep: bool | None = Field(
        default=None, description="hide expert all-to-all behind another micro-batch's compute"
    )
    cuda_graphs: bool | None = None
    compile: bool | None = Field(default=None, description="torch.compile or equivalent fusion of element-wise ops")

    @property
    def recompute_parts(self) -> frozenset[str]:
        """Named parts of selective recomputation; empty for none and full."""
        kind, _, parts = self.recompute.partition(":")
        named = frozenset(parts.split(",")) if kind == "selective" else frozenset()
        return named | {"mla_up_proj"} if "attention" in named else named

    @property
    def recompute_layers(self) -> int | None:
        """Layers per virtual stage that are recomputed in full; None means all, 0 none."""
        kind, _, count = self.recompute.partition(":")
        if kind != "full":
            return 0
        return int(count) if count else None


def read_plan(spec: Plan | str | Path | Mapping[str, Any]) -> Plan:
    """A Plan from a mapping or a YAML file. Raises SpecError on a wrong field, InputFileError on a wrong file."""
    if isinstance(spec, Plan):
        _check_recompute(spec.recompute, None)
        return spec
    where = None
    if isinstance(spec, str | Path):
        where, spec = str(spec), read_mapping(Path(spec))
    if not isinstance(spec, Mapping):
        raise SpecError("plan", spec, "give a mapping of its fields, or the path of a YAML file")
    try:
        # YAML and the command line know lists, not tuples.
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()
        }
        plan = Plan(**fields)
    except ValidationError as error:
        raise _spec_error(error, where) from None
    except TypeError as error:  # keys that are not strings
        raise SpecError("plan", dict(spec), f"keys must be field names ({error})", where) from None
    _check_recompute(plan.recompute, where)
    return plan


def read_mapping(path: Path) -> Mapping[str, Any]:
    """A YAML file of plan fields. Raises InputFileError."""
    return mapping_of(path, "a plan is lines of `field: value`, see docs/plan.md")


def _spec_error(error: ValidationError, where: str | None) -> SpecError | UnknownNameError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"]) or "plan"
    if first["type"] == "extra_forbidden":
        return UnknownNameError("plan field", name, Plan.model_fields, remedy=f"(in {where})" if where else None)
    if first["type"] == "missing":
        return SpecError(name, None, "the plan needs it", where)
    return SpecError(name, first["input"], remedy_of(first), where)


def _check_recompute(text: str, where: str | None) -> None:
    kind, colon, detail = text.partition(":")
    remedy = f"use none, full, full:N or selective:PART[,PART] with parts {', '.join(RECOMPUTE_PARTS)}"
    if kind == "none" and not colon:
        return
    if kind == "full" and (not colon or (detail.isascii() and detail.isdigit() and 0 < int(detail) < 100_000)):
        return
    if kind == "selective" and detail and set(detail.split(",")) <= set(RECOMPUTE_PARTS):
        return
    raise SpecError("recompute", text, remedy, where)
