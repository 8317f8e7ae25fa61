"""Launch flags of the named framework for a plan: Megatron-Core arguments, a torchtitan TOML, an Accelerate config.

Names are those of Megatron-Core 0.14 (`megatron/training/arguments.py`), torchtitan's job config (2026-05) and
Accelerate 1.x with FSDP2. What a plan says and the framework has no flag for stands in a comment, so nothing is dropped
silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MEGATRON_RECOMPUTE = {
    "core_attention": "core_attn",
    "attention": "core_attn",
    "mlp": "mlp",
    "norms": "layernorm",
    "moe_activation": "moe_act",
}
TORCHTITAN_SCHEDULE = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}


def launch_files(plan: Mapping[str, Any], n_gpus: int, model: str) -> dict[str, str]:
    """File name -> text, for the plan's framework."""
    framework = plan.get("framework", "megatron")
    degrees = plan.get("tp", 1) * plan.get("pp", 1) * plan.get("cp", 1)
    dp = n_gpus // degrees
    if framework == "torchtitan":
        return {"torchtitan.toml": _toml(plan, dp, model)}
    if framework in ("fsdp", "pytorch"):
        return {"accelerate.yaml": _accelerate(plan, n_gpus)}
    if framework == "nanotron":
        return {"nanotron.yaml": _nanotron(plan, dp)}
    return {"megatron.args": " \\\n  ".join(_megatron(plan, dp)) + "\n"}


def _megatron(plan: Mapping[str, Any], dp: int) -> Iterator[str]:
    tp, pp, cp = (plan.get(name, 1) for name in ("tp", "pp", "cp"))
    yield f"--tensor-model-parallel-size {tp}"
    yield f"--pipeline-model-parallel-size {pp}"
    yield f"--context-parallel-size {cp}"
    if cp > 1:
        yield f"--cp-comm-type {'a2a' if plan.get('cp_kind') == 'ulysses' else 'p2p'}"
    if plan.get("virtual_stages", 1) > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {plan['virtual_stages']}"
    if plan.get("layers_per_stage"):
        yield "--pipeline-model-parallel-layout " + "|".join("t" * count for count in plan["layers_per_stage"])
    if plan.get("ep", 1) > 1:
        yield f"--expert-model-parallel-size {plan['ep']}"
    if plan.get("etp") is not None:
        yield f"--expert-tensor-parallel-size {plan['etp']}"
    if tp > 1 and plan.get("sequence_parallel") is not False:
        yield "--sequence-parallel"
    yield f"--micro-batch-size {plan.get('micro_batch', 1)}"
    yield f"--global-batch-size {plan['global_batch']}"
    yield f"--seq-length {plan['seq_len']}"
    zero = plan.get("zero_stage", 1)
    if zero == 1:
        yield "--use-distributed-optimizer"
    elif zero:
        yield "--use-megatron-fsdp"
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[zero]
        yield f"--data-parallel-sharding-strategy {strategy}"
    if dp * cp > 1 and plan.get("overlap_grad_reduce") is not False:
        yield "--overlap-grad-reduce"
        if zero and plan.get("overlap_param_gather") is not False:
            yield "--overlap-param-gather"
    if tp > 1 and plan.get("overlap_tp") is not False:
        yield "--tp-comm-overlap"
    if plan.get("overlap_ep"):
        yield "--overlap-moe-expert-parallel-comm"
    yield from _megatron_recompute(plan.get("recompute", "none"))
    if plan.get("offload_optimizer"):
        yield f"--optimizer-cpu-offload --optimizer-offload-fraction {plan['offload_optimizer']:g}"
    if plan.get("offload_activations"):
        yield f"--cpu-offloading --cpu-offloading-num-layers {plan['offload_activations']}"
    if plan.get("cuda_graphs"):
        yield "--enable-cuda-graph"
    precision = plan.get("precision", "bf16")
    yield "--bf16" if precision not in ("fp16", "fp32") else "--fp16" if precision == "fp16" else "# fp32: no flag"
    if precision.startswith(("fp8", "mxfp8")):
        recipe = {"fp8": "delayed", "fp8-current": "tensorwise", "mxfp8": "mxfp8"}[precision]
        yield f"--fp8-format hybrid --fp8-recipe {recipe}"


def _megatron_recompute(text: str) -> Iterator[str]:
    kind, _, detail = text.partition(":")
    if kind == "full":
        method = f"block --recompute-num-layers {detail}" if detail else "uniform --recompute-num-layers 1"
        yield f"--recompute-granularity full --recompute-method {method}"
    elif kind == "selective":
        parts = detail.split(",")
        modules = dict.fromkeys(MEGATRON_RECOMPUTE[part] for part in parts if part in MEGATRON_RECOMPUTE)
        if modules:
            yield "--recompute-granularity selective --recompute-modules " + " ".join(modules)
        if "activation" in parts:
            yield "--recompute-activation-function"


def _toml(plan: Mapping[str, Any], dp: int, model: str) -> str:
    zero, group = plan.get("zero_stage", 3), plan.get("shard_group")
    pp, tp, cp = (plan.get(name, 1) for name in ("pp", "tp", "cp"))
    shard = (group or dp * cp) // cp if (group or dp * cp) >= cp else 1
    lines = [
        f"# {model}: global batch {plan['global_batch']}",
        "[training]",
        f"local_batch_size = {plan.get('micro_batch', 1) * _local(plan, dp)}",
        f"global_batch_size = {plan['global_batch']}",
        f"seq_len = {plan['seq_len']}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {max(1, dp // max(1, shard))}",
        f"data_parallel_shard_degree = {shard}",
        f'fsdp_reshard_after_forward = "{"always" if zero == 3 else "never"}"',
        f"tensor_parallel_degree = {tp}",
        f"enable_async_tensor_parallel = {'true' if plan.get('overlap_tp') else 'false'}",
        f"pipeline_parallel_degree = {pp}",
        f"context_parallel_degree = {cp}",
        f"expert_parallel_degree = {plan.get('ep', 1)}",
    ]
    if plan.get("etp") is not None:
        lines.append(f"expert_tensor_parallel_degree = {plan['etp']}")
    if pp > 1:
        name = TORCHTITAN_SCHEDULE.get(plan.get("schedule") or "1f1b", "1F1B")
        lines.append(f'pipeline_parallel_schedule = "{name}"')
        lines.append(f"pipeline_parallel_microbatch_size = {plan.get('micro_batch', 1)}")
    kind, _, detail = plan.get("recompute", "none").partition(":")
    mode = {"none": "none", "full": "full", "selective": "selective"}[kind]
    lines += ["", "[activation_checkpoint]", f'mode = "{mode}"']
    if kind == "selective":
        lines.append(f'selective_ac_option = "{"op" if detail == "ops" else detail}"')
    elif detail:
        lines.append(f"# the first {detail} layers of each stage only; torchtitan takes every n-th")
    lines += ["", "[compile]", f"enable = {'true' if plan.get('compile') else 'false'}"]
    return "\n".join(lines) + "\n"


def _local(plan: Mapping[str, Any], dp: int) -> int:
    """Micro-batches that one torchtitan batch is cut into: with a pipeline all, else gradients are accumulated."""
    return int(plan["global_batch"]) // (dp * int(plan.get("micro_batch", 1))) if plan.get("pp", 1) > 1 else 1


def _accelerate(plan: Mapping[str, Any], n_gpus: int) -> str:
    zero = plan.get("zero_stage", 3 if plan.get("framework") == "fsdp" else 0)
    micro = plan.get("micro_batch", 1)
    steps = plan["global_batch"] // (micro * n_gpus)
    lines = [f"num_processes: {n_gpus}", f"mixed_precision: {plan.get('precision', 'bf16')}"]
    lines += [f"# per-device batch {micro}, gradient accumulation {max(1, steps)}"]
    if zero < 2:
        return "\n".join(["distributed_type: MULTI_GPU", *lines]) + "\n"
    recompute = plan.get("recompute", "none") != "none"
    lines += [
        "distributed_type: FSDP",
        "fsdp_config:",
        "  fsdp_version: 2",
        f"  fsdp_reshard_after_forward: {'true' if zero == 3 else 'false'}",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        f"  fsdp_activation_checkpointing: {'true' if recompute else 'false'}",
        f"  fsdp_offload_params: {'true' if plan.get('offload_optimizer') else 'false'}",
    ]
    if plan.get("shard_group"):
        lines.append(f"  # HSDP: shards over {plan['shard_group']} ranks, replicas of that")
    return "\n".join(lines) + "\n"


def _nanotron(plan: Mapping[str, Any], dp: int) -> str:
    engine = "1f1b" if (plan.get("schedule") or "1f1b") == "1f1b" else "afab"
    micro = plan.get("micro_batch", 1)
    lines = [
        "parallelism:",
        f"  dp: {dp}",
        f"  tp: {plan.get('tp', 1)}",
        f"  pp: {plan.get('pp', 1)}",
        f"  pp_engine: {engine}",
        f"  tp_mode: {'REDUCE_SCATTER' if plan.get('sequence_parallel') is not False else 'ALL_REDUCE'}",
        f"  recompute_layer: {'true' if plan.get('recompute', 'none') == 'full' else 'false'}",
        "optimizer:",
        f"  zero_stage: {plan.get('zero_stage', 1)}",
        "tokens:",
        f"  micro_batch_size: {micro}",
        f"  batch_accumulation_per_replica: {plan['global_batch'] // (micro * dp)}",
        f"  sequence_length: {plan['seq_len']}",
    ]
    return "\n".join(lines) + "\n"
