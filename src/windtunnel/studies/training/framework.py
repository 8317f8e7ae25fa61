"""Habits of training frameworks: what a plan means where it does not say.

Sources: Megatron-Core argument defaults and NeMo / Megatron-Bridge performance recipes (2024-2026), torchtitan
`train_configs`, PyTorch FSDP documentation and MosaicML Composer, nanotron's benchmark script of the Ultra-Scale
Playbook (2025); Megatron-DeepSpeed and DeepSpeed (`runtime/config.py`, `runtime/pipe/engine.py`, 2022-2025),
InternEvo's and ColossalAI's documentation (2024), MaxText's `base.yml` (2025); PyTorch 2.13 itself for "pytorch": a
script of one process per rank, eager, foreach AdamW, nothing sharded, overlapped or clipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from windtunnel.errors import LayoutError, SpecError
from windtunnel.files.document import own_document
from windtunnel.questions.asked.parts.plan import ExpertsImpl
from windtunnel.studies.training.plan import Framework, Plan

PURE: dict[str, Literal["fp32", "bf16"]] = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}  # precision -> its width


@dataclass(frozen=True, slots=True)
class Habits:
    """Defaults of one framework. Booleans about overlap hold where the degree in question is above one."""

    title: str
    zero_stage: int
    gradient_dtype: Literal["fp32", "bf16"]
    parameter_dtype: Literal["fp32", "bf16"]  # of the copy that forward reads before casting (FSDP keeps fp32 shards)
    message_parameters: float  # of one gradient or parameter collective, outside FSDP
    sequence_parallel: bool = False
    overlap_grad_reduce: bool = False  # of whole gradients (ZeRO-0)
    overlap_sharded_reduce: bool = False  # of gradients whose optimizer is sharded
    message_per_replica: float = 0.0  # and at least so many for each data-parallel rank
    scatters_sends: bool = False  # a send between stages carries 1/tp of the activation, gathered again on arrival
    overlap_param_gather: bool = False
    overlap_tp: bool = False
    overlap_tp_backward: bool = False  # the backward's collectives run beside the GEMM that does not need them
    overlap_p2p_interleaved: bool = False  # sends overlap compute when the schedule is interleaved
    # Recomputation runs the whole block; otherwise it stops at the last tensor that is needed.
    reentrant_recompute: bool = False
    compile: bool = False
    fused_optimizer: bool = False
    expert_tensor_parallel: bool = False  # experts keep the tensor-parallel degree unless told otherwise
    fused_projections: bool = True  # queries, keys and values in one GEMM, gate and up in one
    fused_norms: bool = False  # RMSNorm is PyTorch's, one kernel (as of 2.13), also where nothing is compiled
    # Parameters, gradients and moments in the plan's precision, no master copy; autograd makes the gradients anew in
    # every step.
    pure_precision: bool = False
    clips_gradients: bool = True  # by their norm over all ranks
    # ZeRO stages at which a pipeline gathers shards and reduces gradients once in a step (`pipelined_shards.py`): FSDP2
    # in torch.distributed.pipelining; and ZeRO-2 beside others, as Llama 3's trainer has it (arXiv 2407.21783, 3.3.2).
    pipeline_shares_once: tuple[int, ...] = ()
    equal_groups: bool = False  # interleaving cuts the micro-batches into equal groups; elsewhere each has pp of them
    copies_exchanges: bool = False  # DTensor copies what it cuts or joins along the second dimension
    overlaps_one_product: bool = False  # `overlap_tp` finds a reduce-scatter behind one product, not behind a sum
    sums_norms_apart: bool = False  # over tensor-parallel ranks, one collective for each gradient
    # The product of a weight's gradient is a tensor, which a kernel of its own adds to the fp32 buffer (nanotron,
    # `optim/gradient_accumulator.py`); elsewhere the product does that itself.
    adds_gradients: bool = False
    # Ranks are late at tensor-parallel collectives while a pipeline sends across nodes (`late_member_s`).
    late_beside_pipeline: bool = False
    # Of one gradient collective where nothing is sharded, if that is another matter; 0: as above.
    message_whole_parameters: float = 0.0
    # A rank's share of the vocabulary is padded to a multiple of this.
    vocabulary_unit: int = 1
    overlaps_muon: bool = True  # gradients and parameters too where Muon updates them
    # fp8 parameters: kept and gathered in the GEMMs' format only, as NVIDIA's recipes have them (Megatron-Bridge,
    # `training/mixed_precision.py`: `fp8_param_gather`; none in 4 bits).
    own_low_precision: bool = False
    deduplicates: bool = True  # a token goes once to each rank that has experts for it, not once for each choice
    weighs_in_fp32: bool = False  # experts' rows by their scores (torchtitan, `moe.py`)
    routes_whole: bool = False  # experts' inputs are gathered over tp before the router (torchtitan, `parallelize.py`)
    # Products of a GPU's experts: TransformerEngine's GroupedLinear calls cuBLAS for each, on four streams
    # (`multi_stream_cublas_gemm`); torchtitan, Transformers 5 (`get_correct_experts_implementation`) and DeepSpeed's
    # AutoEP (`use_grouped_mm`) call torch._grouped_mm, MaxText megablox (`base.yml`): a kernel for all.
    experts_impl: ExpertsImpl = "streams"
    # Held against no published run of its own, so that its band is wider (`unmeasured` in calibration/training.yaml).
    measured: bool = True


_DOCUMENT = own_document(Path(__file__).with_name("frameworks.yaml").read_text("utf-8"))


def _habits(name: str) -> Habits:
    own = dict(_DOCUMENT[name])
    like = own.pop("like", None)
    if "pipeline_shares_once" in own:
        own["pipeline_shares_once"] = tuple(own["pipeline_shares_once"])
    return replace(_habits(like), **own) if like else Habits(**own)


HABITS: dict[Framework, Habits] = {name: _habits(name) for name in get_args(Framework)}


def check_plain(plan: Plan) -> None:
    """Refuse what a script without any framework does not do. Raises LayoutError or SpecError."""
    for name in ("tp", "cp", "ep"):
        if getattr(plan, name) > 1:
            raise LayoutError(
                f"{name} = {getattr(plan, name)} with framework pytorch: plain PyTorch keeps every layer whole",
                f"use {name} 1, or another framework",
            )
    if (plan.zero_stage or 0) > 1:
        raise LayoutError(
            f"zero_stage {plan.zero_stage} with framework pytorch: plain PyTorch shards no gradients or parameters",
            "use zero_stage 0 or 1, or framework fsdp",
        )
    if plan.precision not in PURE:
        raise SpecError("precision", plan.precision, f"plain PyTorch trains in one precision; use {', '.join(PURE)}")
    if plan.recompute_parts:
        raise SpecError("recompute", plan.recompute, "plain PyTorch checkpoints whole layers; use none, full or full:N")
    if plan.attention_impl == "unfused":
        raise SpecError("attention_impl", plan.attention_impl, "plain PyTorch has one fused call; use flash")
    if plan.experts_impl not in (None, "sequential"):
        raise SpecError("experts_impl", plan.experts_impl, "plain PyTorch runs experts in a loop; use sequential")
