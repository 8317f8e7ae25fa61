"""DeepSpeed's JSON (deepspeed.ai/docs/config-json, 0.16 to 0.18) for a plan, and back.

It states batch, ZeRO, formats and degrees; neither sequence length nor model, which the training script has. MiCS's
`mics_shard_size` is a shard group; `sequence_parallel_size` is Ulysses; `pipeline.stages` those of a PipelineModule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from windtunnel.errors import SpecError
from windtunnel.questions.asked.parts.plan import OpenPlan
from windtunnel.studies.training.launch.job_file import NO_EFFECT, PLAIN, Native, Options, with_left_out

BUCKET = 500_000_000  # `reduce_bucket_size`
DTYPES = {"fp32": "fp32", "bf16": "bf16", "float32": "fp32", "bfloat16": "bf16"}
USUAL = {
    **PLAIN, "framework": "deepspeed", "ep": 1, "virtual_stages": 1, "schedule": "1f1b", "overlap_param_gather": True,
    "overlap_tp": False, "compile": False, "recompute": "none", "sequence_parallel": False, "cp_kind": "ulysses",
    "experts_impl": "grouped",
}  # fmt: skip
WRITTEN = {
    "framework", "tp", "pp", "cp", "dp", "global_batch", "micro_batch", "zero_stage", "shard_group", "precision",
    "gradient_dtype", "overlap_grad_reduce", "bucket_parameters", "offload_optimizer", "optimizer", "release", "etp",
    "lora_targets",
}  # fmt: skip


def write(plan: OpenPlan, dp: int) -> tuple[str, tuple[str, ...]]:
    """The JSON, and the plan fields that it has no key for."""
    usual: dict[str, object] = dict(USUAL)
    pp, tp, cp = plan.pp or 1, plan.tp or 1, plan.cp or 1
    if cp == 1:
        usual["cp_kind"] = plan.cp_kind
    written = set(WRITTEN)
    if pp > 1 and plan.recompute == "full":
        written.add("recompute")
    left = with_left_out(plan, written, usual)
    zero, micro = plan.zero_stage, plan.micro_batch or 1
    zero = 3 if zero is None else zero
    precision = plan.precision or "bf16"
    if precision not in ("bf16", "fp16", "fp32"):
        left.append(f"precision {precision}")
    overlap = plan.overlap_grad_reduce
    sharding: dict[str, object] = {
        "stage": zero,
        "overlap_comm": True if overlap is None else overlap,
        "reduce_bucket_size": plan.bucket_parameters or BUCKET,
    }
    if plan.shard_group and zero:
        sharding["mics_shard_size"] = plan.shard_group
    if plan.offload_optimizer:
        sharding["offload_optimizer"] = {"device": "cpu", "ratio": plan.offload_optimizer}
    document: dict[str, object] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": max(1, plan.global_batch // (micro * dp)),
        "zero_optimization": sharding,
        "bf16": {"enabled": precision not in ("fp16", "fp32")},
        "fp16": {"enabled": precision == "fp16"},
    }
    if plan.gradient_dtype:
        document["data_types"] = {"grad_accum_dtype": plan.gradient_dtype}
    if tp > 1:
        document["tensor_parallel"] = {"autotp_size": tp}
    if cp > 1:
        document["sequence_parallel_size"] = cp
    if pp > 1:
        each = {"activation_checkpoint_interval": 1} if plan.recompute == "full" else {}
        document["pipeline"] = {"stages": pp, **each}
    if plan.optimizer not in (None, "adam"):
        document["optimizer"] = {"type": str(plan.optimizer).upper() if plan.optimizer == "sgd" else "Muon"}
    return json.dumps(document, indent=2) + "\n", tuple(left)


def read(document: Mapping[str, object], n_gpus: int, where: str) -> Native:
    """The job that a config states. Values of "auto" are the script's: named, and left open. Raises SpecError."""
    options = Options.of(document, where)
    open_values = {name for name, value in options.leaves.items() if value == "auto"}
    options.leaves = {name: value for name, value in options.leaves.items() if name not in open_values}
    options.ignore(*NO_EFFECT["DeepSpeed"])
    tp, cp = options.count("tensor_parallel.autotp_size", 1), options.count("sequence_parallel_size", 1)
    pp = options.count("pipeline.stages", 1)
    options.take("tensor_parallel.tp_size")
    dp = max(1, n_gpus // (tp * pp * cp))
    fields: dict[str, object] = {"framework": "deepspeed", "tp": tp, "pp": pp, "cp": cp}
    if cp > 1:
        fields["cp_kind"] = "ulysses"
    fields |= _batch(options, dp)
    if options.take("pipeline.activation_checkpoint_interval"):
        fields["recompute"] = "full"
    fields |= _zero(options)
    half, brain = options.flag("fp16.enabled"), options.flag("bf16.enabled", options.flag("bfloat16.enabled"))
    if half or brain or not open_values & {"fp16.enabled", "bf16.enabled"}:
        fields["precision"] = "bf16" if brain else "fp16" if half else "fp32"
    accumulated = options.take("data_types.grad_accum_dtype")
    if accumulated in DTYPES:
        fields["gradient_dtype"] = DTYPES[accumulated]
    elif accumulated is not None:
        options.left.add("data_types.grad_accum_dtype")
    kind = str(options.take("optimizer.type", "adam")).lower()
    optimizers = {"adam": "adam", "adamw": "adam", "fusedadam": "adam", "sgd": "sgd", "muon": "muon"}
    if kind in optimizers:
        fields["optimizer"] = optimizers[kind]
    else:
        options.left.add("optimizer.type")
    automatic = [f'{name} ("auto": the script says)' for name in document_order(document, open_values)]
    return Native("deepspeed", fields, None, (*options.unknown(), *automatic), where)


def document_order(document: Mapping[str, object], names: set[str]) -> list[str]:
    """Names of leaves in the order of the file, but for those that change no step."""
    return [
        name
        for name in Options.of(document, "").leaves
        if name in names and not name.startswith(NO_EFFECT["DeepSpeed"])
    ]


def _batch(options: Options, dp: int) -> dict[str, object]:
    whole, micro = options.whole("train_batch_size"), options.whole("train_micro_batch_size_per_gpu")
    steps = options.whole("gradient_accumulation_steps")
    fields: dict[str, object] = {}
    if micro is None and whole is not None:
        micro = whole // (dp * (steps or 1))
    if whole is None and micro is not None:
        whole = micro * dp * (steps or 1)
    if whole is not None and micro is not None:
        if steps is not None and micro * steps * dp != whole:
            raise SpecError(
                "train_batch_size", whole,
                f"is not train_micro_batch_size_per_gpu {micro} x gradient_accumulation_steps {steps} x {dp} ranks",
                options.where,
            )  # fmt: skip
        fields |= {"global_batch": whole, "micro_batch": max(1, micro)}
    return fields


def _zero(options: Options) -> dict[str, object]:
    stage = options.count("zero_optimization.stage", 0, least=0)
    fields: dict[str, object] = {"zero_stage": stage}
    fields["overlap_grad_reduce"] = options.flag("zero_optimization.overlap_comm", stage == 3)
    bucket = options.count("zero_optimization.reduce_bucket_size", BUCKET)
    if bucket != BUCKET:
        fields["bucket_parameters"] = bucket
    for name in ("stage3_prefetch_bucket_size", "allgather_bucket_size"):
        options.take(f"zero_optimization.{name}")  # parameters come in messages of layers
    shard = options.take("zero_optimization.mics_shard_size", -1)
    if isinstance(shard, int) and shard > 0:
        fields["shard_group"] = shard
    device = options.take("zero_optimization.offload_optimizer.device", "none")
    share = options.take("zero_optimization.offload_optimizer.ratio", 1.0)
    if device == "cpu":
        if not isinstance(share, int | float):
            raise SpecError("zero_optimization.offload_optimizer.ratio", share, "give a number", options.where)
        fields["offload_optimizer"] = float(share)
    elif device not in ("none", None):
        options.left.add("zero_optimization.offload_optimizer.device")
    if options.leaves.get("zero_optimization.offload_param.device") in ("none", None):
        options.take("zero_optimization.offload_param.device")
    return fields
