"""torchtitan's job config (`torchtitan/config/job_config.py`, 2025-09 to 2026-05) for a plan, and back.

Older names that are read as well: `[float8]`, `[training] batch_size`, `compile` and the degrees of 2024, which stood
in `[training]` and `[experimental]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windtunnel.errors import SpecError
from windtunnel.questions.asked.parts.plan import OpenPlan
from windtunnel.studies.training.launch.job_file import NO_EFFECT, PLAIN, Native, Options, with_comment, with_left_out
from windtunnel.studies.training.schedules import equal_groups

SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
CONVERTERS = {"fp8-current": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
OLDER_CONVERTERS = {"float8": "fp8-current", "mx": "mxfp8"}
CHUNKS = 2  # of a schedule with several stages a rank, where the config does not say
NAMES = {
    "llama3": "llama-3.1",
    "llama3_ft": "llama-3.1",
    "llama4": "llama-4",
    "qwen3": "qwen3",
    "deepseek_v3": "deepseek",
}
FLAVOURS = {"deepseek-671b": "deepseek-v3", "deepseek-16b": "deepseek-v2-lite", "llama-4-17bx16e": "llama-4-scout",
            "llama-4-17bx128e": "llama-4-maverick", "qwen3-30b-a3b": "qwen3-30b-a3b"}  # fmt: skip
USUAL = {
    **PLAIN, "framework": "torchtitan", "gradient_dtype": "fp32", "overlap_grad_reduce": True, "cp_kind": "ring",
    "overlap_param_gather": True, "optimizer": "adam", "sequence_parallel": True,
    "experts_impl": "grouped",
}  # fmt: skip
WRITTEN = {
    "framework", "tp", "pp", "cp", "ep", "etp", "dp", "virtual_stages", "schedule", "zero_stage", "shard_group",
    "global_batch", "micro_batch", "seq_len", "precision", "fp8_parameters", "recompute", "overlap_tp", "compile",
    "offload_optimizer", "release", "lora_targets",
}  # fmt: skip


def write(plan: OpenPlan, dp: int, model: str) -> tuple[str, tuple[str, ...]]:
    """The TOML, and the plan fields that it has no key for."""
    left = left_out(plan, dp)
    pp, tp, cp = plan.pp or 1, plan.tp or 1, plan.cp or 1
    zero, group = plan.zero_stage, plan.shard_group or dp * cp
    zero = 3 if zero is None else zero
    shard = max(1, group // cp) if zero >= 2 else 1
    micro = plan.micro_batch or 1
    local = plan.global_batch // dp if pp > 1 else micro  # a pipeline takes all its micro-batches at once
    lines = [f"# {model}: global batch {plan.global_batch}"]
    converter = CONVERTERS.get(plan.precision or "bf16")
    if converter:
        lines += ["[model]", f'converters = ["{converter}"]', ""]
    lines += [
        "[training]",
        f"local_batch_size = {local}",
        f"global_batch_size = {plan.global_batch}",
        f"seq_len = {plan.seq_len}",
    ]
    if plan.precision == "fp32":
        lines.append('mixed_precision_param = "float32"')
    if plan.offload_optimizer == 1.0:
        lines.append("enable_cpu_offload = true")
    lines += [
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {max(1, dp // shard)}",
        f"data_parallel_shard_degree = {shard}",
        f'fsdp_reshard_after_forward = "{"always" if zero == 3 else "never"}"',
        f"tensor_parallel_degree = {tp}",
        f"enable_async_tensor_parallel = {_toml(bool(plan.overlap_tp) and tp > 1)}",
        f"pipeline_parallel_degree = {pp}",
        f"context_parallel_degree = {cp}",
        f"expert_parallel_degree = {plan.ep or 1}",
    ]
    if plan.etp is not None:
        lines.append(f"expert_tensor_parallel_degree = {plan.etp}")
    if pp > 1:
        name = plan.schedule or ("interleaved" if (plan.virtual_stages or 1) > 1 else "1f1b")
        lines.append(f'pipeline_parallel_schedule = "{SCHEDULES.get(name, "1F1B")}"')
        lines.append(f"pipeline_parallel_microbatch_size = {micro}")
    kind, _, detail = str(plan.recompute or "none").partition(":")
    mode = "selective" if detail == "ops" else kind if not detail else "none"
    lines += ["", "[activation_checkpoint]", f'mode = "{mode}"']
    if mode == "selective":
        lines.append('selective_ac_option = "op"')
    lines += ["", "[compile]", f"enable = {_toml(bool(plan.compile))}"]
    if converter == CONVERTERS["fp8-current"]:
        lines += ["", "[quantize.linear.float8]"]
        lines.append(f"enable_fsdp_float8_all_gather = {_toml(bool(plan.fp8_parameters))}")
    return with_comment(lines, left)


def left_out(plan: OpenPlan, dp: int) -> list[str]:
    """Plan fields that have no key, or no such value."""
    usual: dict[str, object] = dict(USUAL)
    if (plan.tp or 1) == 1:
        usual |= {name: getattr(plan, name) for name in ("sequence_parallel", "overlap_tp_backward")}
    if (plan.cp or 1) == 1:
        usual["cp_kind"] = plan.cp_kind
    usual["micro_batch_group"] = equal_groups(plan.pp or 1, plan.global_batch // (plan.micro_batch or 1) // dp)
    left = with_left_out(plan, WRITTEN, usual)
    precision, recompute = plan.precision or "bf16", plan.recompute or "none"
    if precision not in (*CONVERTERS, "bf16", "fp32"):
        left.append(f"precision {precision}")
    if plan.fp8_parameters and precision != "fp8-current":
        left.append("fp8_parameters on")
    if recompute not in ("none", "full", "selective:ops"):
        left.append(f"recompute {recompute}")
    zero = plan.zero_stage
    if zero == 1 or (zero == 0 and (plan.cp or 1) > 1):  # context-parallel ranks share parameters
        left.append(f"zero_stage {zero}")
    schedule, chunks = plan.schedule, plan.virtual_stages or 1
    if (plan.pp or 1) > 1:
        if schedule is not None and schedule not in SCHEDULES:
            left.append(f"schedule {schedule}")
        if chunks not in (1, CHUNKS):
            left.append(f"virtual_stages {chunks}")
    if plan.offload_optimizer not in (None, 0.0, 1.0):
        left.append(f"offload_optimizer {plan.offload_optimizer}")
    group, cp = plan.shard_group, plan.cp or 1
    if group and (group % cp or (dp * cp) % group):
        left.append(f"shard_group {group}")
    return left


def read(document: Mapping[str, object], n_gpus: int, where: str) -> Native:
    """The job that a config states. Raises SpecError on a value that cannot be."""
    options = Options.of(document, where)
    options.ignore(*NO_EFFECT["torchtitan"])
    old = "training." if options.leaves.get("training.tensor_parallel_degree") is not None else "parallelism."
    tp = options.count(f"{old}tensor_parallel_degree", 1)
    pp = options.count(
        "parallelism.pipeline_parallel_degree", options.count("experimental.pipeline_parallel_degree", 1)
    )
    cp = options.count("parallelism.context_parallel_degree", options.count("experimental.context_parallel_degree", 1))
    dp = max(1, n_gpus // (tp * pp * cp))
    fields: dict[str, object] = {"framework": "torchtitan", "tp": tp, "pp": pp, "cp": cp}
    fields["ep"] = options.count("parallelism.expert_parallel_degree", 1)
    etp = options.whole("parallelism.expert_tensor_parallel_degree")
    if etp is not None:
        fields["etp"] = etp
    fields |= _shards(options, old, dp, cp)
    if tp > 1:
        fields["overlap_tp"] = options.flag(
            "parallelism.enable_async_tensor_parallel", options.flag("experimental.enable_async_tensor_parallel")
        )
    else:
        options.take("parallelism.enable_async_tensor_parallel")
        options.take("experimental.enable_async_tensor_parallel")
    local = options.count("training.local_batch_size", options.count("training.batch_size", 8))
    whole = options.take("training.global_batch_size", -1)
    fields["global_batch"] = whole if isinstance(whole, int) and whole > 0 else local * dp
    fields["seq_len"] = options.count("training.seq_len", 2048)
    fields["micro_batch"] = local
    fields |= _pipeline(options, pp)
    fields |= _precision(options)
    fields["compile"] = options.flag("compile.enable", options.flag("training.compile"))
    if options.flag("training.enable_cpu_offload"):
        fields["offload_optimizer"] = 1.0
    name, flavour = options.take("model.name"), options.take("model.flavor")
    model = _model(str(name), str(flavour)) if name and flavour else None
    virtual = fields.get("virtual_stages")
    fields["recompute"] = _recompute(options, model, pp * (virtual if isinstance(virtual, int) else 1))
    unknown = options.unknown() if model or not flavour else (*options.unknown(), f"model {name} of flavor {flavour}")
    return Native("torchtitan", fields, model, unknown, where)


def _shards(options: Options, old: str, dp: int, cp: int) -> dict[str, object]:
    replicas = options.count(f"{old}data_parallel_replicate_degree", 1)
    older = options.take("training.data_parallel_degree")
    shard = options.take(f"{old}data_parallel_shard_degree", older if older is not None else -1)
    reshard = options.take("parallelism.fsdp_reshard_after_forward", "default")
    if not isinstance(shard, int) or isinstance(shard, bool) or shard == 0 or shard < -1:
        raise SpecError("data_parallel_shard_degree", shard, "give a whole number, or -1 for the rest", options.where)
    if shard == -1:
        shard = max(1, dp // replicas)
    if shard * replicas != dp:
        raise SpecError(
            "data_parallel_shard_degree", shard,
            f"x replicate {replicas} is not the {dp} data-parallel ranks of this cluster", options.where,
        )  # fmt: skip
    if shard * cp == 1:
        return {"zero_stage": 0}
    fields: dict[str, object] = {"zero_stage": 2 if reshard == "never" else 3}
    if replicas > 1:
        fields["shard_group"] = shard * cp
    return fields


def _pipeline(options: Options, pp: int) -> dict[str, object]:
    name = options.take(
        "parallelism.pipeline_parallel_schedule", options.take("experimental.pipeline_parallel_schedule")
    )
    micro = options.whole("parallelism.pipeline_parallel_microbatch_size")
    if pp == 1:
        return {}
    fields: dict[str, object] = {"micro_batch": micro or 1}
    schedules = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
    schedule = schedules.get(str(name or "1F1B").lower())
    if schedule is None:
        options.left.add("parallelism.pipeline_parallel_schedule")
        return fields
    fields["schedule"] = schedule
    if schedule == "interleaved":
        fields["virtual_stages"] = CHUNKS
    return fields


def _precision(options: Options) -> dict[str, object]:
    param = options.take("training.mixed_precision_param", "bfloat16")
    fields: dict[str, object] = {"precision": "fp32" if param == "float32" else "bf16"}
    names = options.take("model.converters", [])
    precisions = {theirs: ours for ours, theirs in CONVERTERS.items()} | OLDER_CONVERTERS
    for name in names if isinstance(names, list) else [names]:
        if str(name) in precisions:
            fields["precision"] = precisions[str(name)]
        else:
            options.left.add("model.converters")
    older = options.flag("float8.enable_float8_linear")
    gathered = options.flag(
        "quantize.linear.float8.enable_fsdp_float8_all_gather", options.flag("float8.enable_fsdp_float8_all_gather")
    )
    for name in (
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
        "quantize.linear.float8.recipe_name",
    ):
        if str(options.leaves.get(name, "")).lower() in ("", "true", "false", "tensorwise", "rowwise"):
            options.take(name)  # the scale's own kernels are a few parts in a thousand
    options.take("float8.precompute_float8_dynamic_scale_for_fsdp")
    if older:
        fields["precision"] = "fp8-current"
    if fields["precision"] == "fp8-current":
        fields["fp8_parameters"] = gathered
    return fields


def _recompute(options: Options, model: str | None, stages: int) -> str:
    mode = options.take("activation_checkpoint.mode", "selective")
    option = str(options.take("activation_checkpoint.selective_ac_option", "2"))
    if mode in ("none", "full"):
        return str(mode)
    if mode != "selective":
        raise SpecError("activation_checkpoint.mode", mode, "use selective, full or none", options.where)
    if option == "op":
        return "selective:ops"
    if option == "1":
        return "full"
    if model is not None and option.isdecimal() and int(option) > 1:  # every n-th layer; which of them matters little
        from windtunnel.physics.model import load_model

        layers = load_model(model).n_layers // stages // int(option)
        return f"full:{layers}" if layers else "none"
    options.left.add("activation_checkpoint.selective_ac_option")
    options.leaves.setdefault("activation_checkpoint.selective_ac_option", option)
    return "none"


def _model(name: str, flavour: str) -> str | None:
    """The catalogue's name of `[model] name` and `flavor`; None where it has none of them."""
    from windtunnel.physics.model import catalogue_names

    wanted = f"{NAMES.get(name.lower(), name.lower())}-{flavour.lower()}"
    wanted = FLAVOURS.get(wanted, wanted)
    if wanted in catalogue_names():
        return wanted
    return next(
        (
            catalogue_name
            for catalogue_name in catalogue_names()
            if re.sub(r"[-_.]", "", catalogue_name) == re.sub(r"[-_.]", "", wanted)
        ),
        None,
    )


def _toml(value: bool) -> str:
    return "true" if value else "false"
