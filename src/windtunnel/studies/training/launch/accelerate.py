"""Accelerate's YAML (`accelerate config`, 1.10 to 1.12) for a plan, and back: FSDP, DeepSpeed, or plain replicas.

It states how the job is sharded and its format. Batch and sequence length are the script's, and stay open.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.questions.asked.parts.plan import OpenPlan
from windtunnel.studies.training.launch import deepspeed
from windtunnel.studies.training.launch.job_file import NO_EFFECT, PLAIN, Native, Options, with_comment, with_left_out

MARKS = ("distributed_type", "fsdp_config", "deepspeed_config", "compute_environment", "num_processes")
FORMATS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
SHARDED = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
BY_NUMBER = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")  # 1 to 5
USUAL = {
    **PLAIN, "ep": 1, "pp": 1, "virtual_stages": 1, "schedule": "1f1b", "overlap_grad_reduce": True, "cp_kind": "ring",
    "overlap_param_gather": True, "overlap_tp": False, "optimizer": "adam", "sequence_parallel": False,
    "gradient_dtype": "bf16", "experts_impl": "grouped",
}  # fmt: skip
WRITTEN = {
    "framework", "tp", "cp", "dp", "zero_stage", "shard_group", "precision", "recompute", "offload_optimizer",
    "compile", "release", "etp", "lora_targets",
}  # fmt: skip


def is_accelerate(document: Mapping[str, object]) -> bool:
    """Whether a YAML mapping is Accelerate's."""
    return any(name in document for name in MARKS)


def write(plan: OpenPlan, dp: int, n_gpus: int) -> tuple[str, tuple[str, ...]]:
    """The YAML, and the plan fields that it has no key for."""
    plain = plan.framework == "pytorch"
    tp, cp = plan.tp or 1, plan.cp or 1
    zero = plan.zero_stage
    zero = (0 if plain else 3) if zero is None else zero
    precision, recompute = plan.precision or "bf16", plan.recompute or "none"
    usual: dict[str, object] = {**USUAL, "framework": plan.framework}
    if plan.framework == "pytorch":
        usual["experts_impl"] = "sequential"
    if zero < 2:
        usual |= {name: getattr(plan, name) for name in ("overlap_grad_reduce", "overlap_param_gather")}
    left = with_left_out(plan, WRITTEN, usual)
    formats = {ours: theirs for theirs, ours in FORMATS.items()}
    if precision not in formats:
        left.append(f"precision {precision}")
    if recompute not in (("none", "full") if zero >= 2 else ("none",)):
        left.append(f"recompute {recompute}")
    if zero == 1:
        left.append("zero_stage 1")
    offload = plan.offload_optimizer or 0.0
    if offload not in ((0.0, 1.0) if zero >= 2 else (0.0,)):
        left.append(f"offload_optimizer {offload:g}")
    micro = plan.micro_batch or 1
    group = (plan.shard_group if zero >= 2 else None) or dp * cp
    if group % cp or (dp * cp) % group:
        left.append(f"shard_group {group}")
        group = dp * cp
    lines = [
        f"distributed_type: {'FSDP' if zero >= 2 else 'MULTI_GPU'}",
        f"num_processes: {n_gpus}",
        f"mixed_precision: '{formats.get(precision, 'bf16')}'",
    ]
    if plan.compile:
        lines += ["dynamo_config:", "  dynamo_backend: INDUCTOR"]
    if zero >= 2:
        lines += [
            "fsdp_config:",
            "  fsdp_version: 2",
            f"  fsdp_reshard_after_forward: {'true' if zero == 3 else 'false'}",
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            f"  fsdp_activation_checkpointing: {'true' if recompute == 'full' else 'false'}",
            f"  fsdp_offload_params: {'true' if offload == 1.0 else 'false'}",
        ]
    if tp > 1 or cp > 1 or group < dp * cp:
        lines += [
            "parallelism_config:",
            f"  parallelism_config_dp_replicate_size: {max(1, dp * cp // group)}",
            f"  parallelism_config_dp_shard_size: {max(1, group // cp)}",
            f"  parallelism_config_tp_size: {tp}",
            f"  parallelism_config_cp_size: {cp}",
        ]
    steps = max(1, plan.global_batch // (micro * dp))
    lines.append(f"# of the script: per-device batch {micro}, gradient accumulation {steps}, sequence {plan.seq_len}")
    left = [word for word in left if not word.startswith(("micro_batch ", "global_batch ", "seq_len "))]
    return with_comment(lines, left)


def read(document: Mapping[str, object], n_gpus: int, where: str) -> Native:
    """The job that a config states, without batch and sequence length. Raises SpecError."""
    options = Options.of(document, where)
    kind = str(options.take("distributed_type", "NO")).upper()
    options.ignore(*NO_EFFECT["Accelerate"])
    processes = options.take("num_processes", n_gpus)
    if processes != n_gpus:
        contradiction = f"num_processes {processes} (of a job on {n_gpus:,} GPUs)"
        options.leaves[contradiction] = processes
        options.left.add(contradiction)
    precision = str(options.take("mixed_precision", "no")).lower()
    fields: dict[str, object] = {"precision": FORMATS.get(precision if precision != "false" else "no", "bf16")}
    if precision not in (*FORMATS, "false"):
        options.left.add("mixed_precision")
    backend = str(options.take("dynamo_config.dynamo_backend", "NO")).upper()
    if backend not in ("NO", ""):
        fields["compile"] = True
        if backend != "INDUCTOR":
            options.left.add("dynamo_config.dynamo_backend")
    if kind == "DEEPSPEED":
        return _deepspeed(options, fields, n_gpus, where)
    prefix = "parallelism_config.parallelism_config_"
    tp, cp = options.count(f"{prefix}tp_size", 1), options.count(f"{prefix}cp_size", 1)
    replicas, shard = options.count(f"{prefix}dp_replicate_size", 1), options.whole(f"{prefix}dp_shard_size")
    fields |= {"tp": tp, "cp": cp}
    if kind != "FSDP":
        framework = "pytorch" if tp == cp == 1 and fields["precision"] != "fp8" else "fsdp"
        return Native(framework, {**fields, "framework": framework, "zero_stage": 0}, None, options.unknown(), where)
    fields |= {"framework": "fsdp", "zero_stage": _stage(options)}
    if replicas > 1 and shard is not None:
        fields["shard_group"] = shard * cp
    fields["recompute"] = "full" if options.flag("fsdp_config.fsdp_activation_checkpointing") else "none"
    if options.flag("fsdp_config.fsdp_offload_params"):
        fields["offload_optimizer"] = 1.0
    return Native("fsdp", fields, None, options.unknown(), where)


def _stage(options: Options) -> int:
    """ZeRO stage of FSDP: of version 2 by resharding, of version 1 by its sharding strategy."""
    strategy = options.take("fsdp_config.fsdp_sharding_strategy")
    reshard = options.take("fsdp_config.fsdp_reshard_after_forward")
    name = str(reshard if isinstance(reshard, str) else strategy or "").upper()
    if name.isdecimal() and 1 <= int(name) <= len(BY_NUMBER):
        name = BY_NUMBER[int(name) - 1]
    if name in SHARDED:
        if name.startswith("HYBRID"):  # replicas of what size is not said here
            options.left.add("fsdp_config.fsdp_sharding_strategy")
        return SHARDED[name]
    return 2 if reshard is False or name == "FALSE" else 3


def _deepspeed(options: Options, fields: dict[str, object], n_gpus: int, where: str) -> Native:
    """Accelerate's own keys for DeepSpeed, as its JSON has them."""
    prefix = "deepspeed_config."
    zero: dict[str, object] = {"stage": options.count(f"{prefix}zero_stage", 2, least=0)}
    for name in ("optimizer", "param"):
        device = options.take(f"{prefix}offload_{name}_device", "none")
        if device not in (None, "none"):
            zero[f"offload_{name}"] = {"device": device}
    steps = options.whole(f"{prefix}gradient_accumulation_steps")
    document: dict[str, object] = {"zero_optimization": zero}
    if fields["precision"] in ("bf16", "fp16"):
        document[fields["precision"]] = {"enabled": True}
    inner = deepspeed.read(document, n_gpus, where)
    unknown = [*options.unknown(), *inner.unknown]
    if steps is not None and steps > 1:
        unknown.append(f"gradient_accumulation_steps {steps} (give --micro-batch and --global-batch)")
    rest = {name: value for name, value in fields.items() if name != "precision"}
    return Native("deepspeed", {**inner.fields, **rest}, None, tuple(unknown), where)
