"""Megatron-Core arguments for a plan; names of `megatron/training/arguments.py`, core 0.14 to 0.16.

What a plan says and Megatron-Core has no argument for stands in a comment, so nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.physics.cost.training import software
from windtunnel.questions.asked.parts.plan import OpenPlan
from windtunnel.studies.training.launch.job_file import with_left_out

MODULES = {
    "core_attention": "core_attn",
    "mla_up_proj": "mla_up_proj",
    "mlp": "mlp",
    "moe": "moe",
    "shared_experts": "shared_experts",
    "norms": "layernorm",
    "moe_activation": "moe_act",
}
RECIPES = {"fp8": "delayed", "fp8-current": "tensorwise", "mxfp8": "mxfp8"}
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
PARTS_LEFT_OUT = ("attention", "activation", "ops")
# Always as Megatron-Core has it, whatever is asked.
USUAL = {
    "framework": "megatron", "overlap_tp_backward": True, "attention_impl": "flash", "offload_activations": 0,
    "fp8_activation_input": False, "lora_rank": 0, "lora_adapters": 1, "task": "train", "schedule": "1f1b",
}  # fmt: skip
WRITTEN = {
    "framework", "tp", "pp", "cp", "cp_kind", "virtual_stages", "layers_per_stage", "account_for_embedding", "ep",
    "micro_batch_group", "etp", "dp", "sequence_parallel", "micro_batch", "global_batch", "seq_len", "zero_stage",
    "shard_group",
    "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p", "overlap_ep", "recompute",
    "offload_optimizer", "gradient_dtype", "precision", "fp8_parameters", "cuda_graphs", "compile", "optimizer",
    "optimizer_dtype", "bucket_parameters", "release", "lora_targets", "dispatcher", "experts_impl",
}  # fmt: skip


def hides_exchange(pp: int, virtual_stages: int, recompute: str) -> bool:
    """Whether Megatron-Core hides the experts' exchange beside such a pipeline and recomputation.

    `transformer_config.py` asserts several pieces of the model on each rank of a pipeline, and no layer in full.
    """
    return (pp == 1 or virtual_stages > 1) and not recompute.startswith("full")


def interleaves(pp: int, overlap_p2p: bool | None) -> bool:
    """Whether Megatron-Core interleaves a pipeline of so many stages.

    `validate_args` refuses two whose sends are not overlapped: several would be in one batch between the same ranks.
    """
    return pp > 2 or overlap_p2p is not False


def write(plan: OpenPlan, dp: int) -> tuple[str, tuple[str, ...]]:
    """The arguments, one or two a line, and the plan fields that have none."""
    left = left_out(plan, dp)
    lines = list(_arguments(plan, dp))
    text = " \\\n  ".join(lines) + "\n"
    if left:
        text += f"# no argument for: {'; '.join(left)}\n"
    return text, tuple(left)


def left_out(plan: OpenPlan, dp: int) -> list[str]:
    """Plan fields that have no argument."""
    usual: dict[str, object] = dict(USUAL)
    if (plan.tp or 1) == 1:
        usual["overlap_tp_backward"] = plan.overlap_tp_backward
    if plan.schedule == "interleaved":
        usual["schedule"] = "interleaved"
    written = set(WRITTEN)
    if plan.attention_impl == "unfused":
        written.add("attention_impl")
    left = with_left_out(plan, written, usual)
    if plan.precision == "fp32" and plan.gradient_dtype == "bf16":
        left.append("gradient_dtype bf16")
    if plan.overlap_ep and not _hides_exchange(plan):
        left.append("overlap_ep with full recomputation, or with a pipeline of one piece a rank")
    if plan.cuda_graphs and str(plan.recompute).startswith("full"):
        left.append("cuda_graphs with full recomputation")
    if _batches_sends(plan):
        left.append("overlap_p2p off with interleaving over two stages")
    if _short_group(plan, dp):
        left.append(f"micro_batch_group {plan.micro_batch_group}: one group is smaller than the {plan.pp} stages")
    left += _not_with_muon(plan)
    kind, _, detail = str(plan.recompute or "none").partition(":")
    parts = [part for part in detail.split(",") if part in PARTS_LEFT_OUT] if kind == "selective" else []
    return left + ([f"recompute of {', '.join(parts)}"] if parts else [])


def _hides_exchange(plan: OpenPlan) -> bool:
    return hides_exchange(plan.pp or 1, plan.virtual_stages or 1, str(plan.recompute or "none"))


def _batches_sends(plan: OpenPlan) -> bool:
    """Whether the plan is of an interleaved pipeline that is refused."""
    several = (plan.virtual_stages or 1) > 1
    return several and not interleaves(plan.pp or 1, plan.overlap_p2p)


def _short_group(plan: OpenPlan, dp: int) -> bool:
    """Whether a group of micro-batches is smaller than the pipeline, which `schedules.py` of Megatron-Core refuses."""
    group = plan.micro_batch_group
    if not group:
        return False
    last = plan.global_batch // (plan.micro_batch or 1) // dp % group
    return bool(group < (plan.pp or 1) or 0 < last < (plan.pp or 1))


def _not_with_muon(plan: OpenPlan) -> list[str]:
    """What `validate_args` refuses beside Muon: its own optimizer shards (`dist_muon`), and nothing is overlapped."""
    if plan.optimizer != "muon":
        return []
    left = [f"{name} with muon" for name in ("overlap_grad_reduce", "overlap_param_gather") if getattr(plan, name)]
    if (plan.zero_stage or 0) > 1:
        left.append(f"zero_stage {plan.zero_stage} with muon")
    left += [f"{name} with muon" for name in ("shard_group", "offload_optimizer") if getattr(plan, name)]
    return left + (["optimizer_dtype bf16 with muon"] if plan.optimizer_dtype == "bf16" else [])


def _arguments(plan: OpenPlan, dp: int) -> Iterator[str]:
    tp, pp, cp = plan.tp or 1, plan.pp or 1, plan.cp or 1
    yield f"--tensor-model-parallel-size {tp}"
    yield f"--pipeline-model-parallel-size {pp}"
    yield f"--context-parallel-size {cp}"
    if cp > 1:
        yield f"--cp-comm-type {'a2a' if plan.cp_kind == 'ulysses' else 'p2p'}"
    chunks = plan.virtual_stages or 1
    layers = plan.layers_per_stage
    if layers and chunks == 1 and pp > 2 and len(set(layers[1:-1])) == 1:  # any release since core 0.6 takes these
        yield f"--num-layers {sum(layers)}"
        yield f"--decoder-first-pipeline-num-layers {layers[0]} --decoder-last-pipeline-num-layers {layers[-1]}"
    elif layers:
        yield f"--pipeline-model-parallel-layout {_layout(layers)}"
    elif chunks > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {chunks}"
    if chunks > 1 and plan.micro_batch_group and not _short_group(plan, dp):
        yield f"--microbatch-group-size-per-virtual-pipeline-stage {plan.micro_batch_group}"
    if plan.account_for_embedding:
        yield "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    if (plan.ep or 1) > 1:
        yield f"--expert-model-parallel-size {plan.ep}"
        if plan.dispatcher in ("deepep", "hybridep", "ncclep"):
            yield f"--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {plan.dispatcher}"
        else:  # Megatron's default gathers every token on every rank
            copies = plan.dispatcher == "alltoall" or software(plan.release).deduplicates is False
            yield f"--moe-token-dispatcher-type {'alltoall' if copies else 'flex'}"
    experts = plan.experts_impl or ("streams" if (plan.ep or 1) > 1 else "sequential")
    if experts != "sequential":  # its default
        yield "--moe-grouped-gemm" + (" --moe-use-grouped-tensor" if experts == "grouped" else "")
    if plan.etp is not None:
        yield f"--expert-tensor-parallel-size {plan.etp}"
    if tp > 1 and plan.sequence_parallel is not False:
        yield "--sequence-parallel"
    yield f"--micro-batch-size {plan.micro_batch or 1}"
    yield f"--global-batch-size {plan.global_batch}"
    yield f"--seq-length {plan.seq_len}"
    yield from _data_parallel(plan, dp * cp)
    if tp > 1 and plan.overlap_tp is not False:
        yield "--tp-comm-overlap"
    if chunks > 1 and plan.overlap_p2p is False and not _batches_sends(plan):
        yield "--no-overlap-p2p-communication"
    if plan.overlap_ep and _hides_exchange(plan):
        yield "--overlap-moe-expert-parallel-comm"
    yield from _recomputation(plan.recompute or "none")
    if plan.offload_optimizer and plan.optimizer != "muon":
        yield f"--optimizer-cpu-offload --optimizer-offload-fraction {plan.offload_optimizer!r}"
    if plan.cuda_graphs and not str(plan.recompute).startswith("full"):
        yield "--cuda-graph-impl local"
    if plan.compile is False:
        yield "--transformer-impl local"
    if plan.attention_impl == "unfused":
        yield "--attention-backend unfused"
    yield from _formats(plan)


def _layout(layers: tuple[int, ...]) -> str:
    stages = [f"t*{count}" if count else "" for count in layers]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
    return '"' + "|".join(stages) + '"'


def _data_parallel(plan: OpenPlan, ranks: int) -> Iterator[str]:
    zero = plan.zero_stage
    zero = 1 if zero is None else zero
    if plan.bucket_parameters:
        yield f"--ddp-bucket-size {plan.bucket_parameters}"
    if plan.optimizer == "muon":  # shards by an optimizer of its own, and overlaps nothing
        return
    if zero:
        yield "--use-distributed-optimizer"
    if zero in STRATEGIES:
        yield f"--use-megatron-fsdp --data-parallel-sharding-strategy {STRATEGIES[zero]} --ckpt-format fsdp_dtensor"
    group = plan.shard_group
    if zero and group and group < ranks:
        yield f"--num-distributed-optimizer-instances {ranks // group}"
    if plan.overlap_grad_reduce is not False:
        yield "--overlap-grad-reduce"
    if zero and plan.overlap_param_gather is not False:
        yield "--overlap-param-gather"


def _recomputation(text: str) -> Iterator[str]:
    kind, _, detail = text.partition(":")
    if kind == "full":
        method = f"block --recompute-num-layers {detail}" if detail else "uniform --recompute-num-layers 1"
        yield f"--recompute-granularity full --recompute-method {method}"
    elif kind == "selective":
        modules = [MODULES[part] for part in sorted(set(detail.split(","))) if part in MODULES]
        if modules:
            yield "--recompute-granularity selective --recompute-modules " + " ".join(modules)


def _formats(plan: OpenPlan) -> Iterator[str]:
    precision, gradients = plan.precision or "bf16", plan.gradient_dtype or "bf16"
    if precision == "fp16":
        yield "--fp16"
    elif precision != "fp32":
        yield "--bf16"
    if precision in RECIPES:
        yield f"--fp8-format hybrid --fp8-recipe {RECIPES[precision]}"
    elif precision == "nvfp4":
        yield "--fp4-format e2m1"
    if plan.fp8_parameters:
        yield "--fp8-param-gather" + (" --reuse-grad-buf-for-mxfp8-param-ag" if precision == "mxfp8" else "")
    if gradients == "fp32" and precision != "fp32":
        yield "--accumulate-allreduce-grads-in-fp32"
    elif precision not in ("fp16", "fp32"):  # those reduce in the format that they have
        yield "--grad-reduce-in-bf16"
    optimizer = plan.optimizer or "adam"
    if optimizer == "muon":
        yield f"--optimizer {'muon' if plan.zero_stage == 0 else 'dist_muon'}"
        return
    if optimizer != "adam":
        yield f"--optimizer {optimizer}"
    if plan.optimizer_dtype == "bf16":
        yield "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    elif plan.offload_optimizer:  # which is refused without
        yield "--use-precision-aware-optimizer"
