"""nanotron's YAML for a plan (`nanotron/config/config.py`, 2025)."""

from __future__ import annotations

from windtunnel.questions.asked.parts.plan import OpenPlan
from windtunnel.studies.training.launch.job_file import PLAIN, with_comment, with_left_out

ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
USUAL = {
    **PLAIN, "framework": "nanotron", "overlap_tp_backward": True, "overlap_param_gather": False, "overlap_tp": False,
    "gradient_dtype": "fp32", "precision": "bf16", "compile": False, "optimizer": "adam", "offload_optimizer": 0.0,
    "cp_kind": "ring", "virtual_stages": 1, "experts_impl": "streams",
}  # fmt: skip
WRITTEN = {
    "tp", "pp", "cp", "ep", "dp", "micro_batch", "global_batch", "seq_len", "sequence_parallel", "schedule",
    "recompute", "zero_stage", "release", "lora_targets",
}  # fmt: skip


def write(plan: OpenPlan, dp: int) -> tuple[str, tuple[str, ...]]:
    """The sections that a plan decides, and the plan fields that have no key."""
    tp, pp, cp, ep, micro = plan.tp or 1, plan.pp or 1, plan.cp or 1, plan.ep or 1, plan.micro_batch or 1
    zero = 1 if plan.zero_stage is None else plan.zero_stage
    schedule, recompute = plan.schedule or "1f1b", plan.recompute or "none"
    left = with_left_out(plan, WRITTEN, {**USUAL, "etp": tp, "overlap_grad_reduce": zero == 0})
    if zero > 1:
        left.append(f"zero_stage {zero}")
    if schedule not in ENGINES:
        left.append(f"schedule {schedule}")
    if recompute not in ("none", "full"):
        left.append(f"recompute {recompute}")
    lines = [
        "parallelism:",
        f"  dp: {dp}",
        f"  tp: {tp}",
        f"  pp: {pp}",
        *([f"  context_parallel_size: {cp}"] if cp > 1 else []),
        *([f"  expert_parallel_size: {ep}"] if ep > 1 else []),
        f"  pp_engine: {ENGINES.get(schedule, 'afab')}",
        f"  tp_mode: {'REDUCE_SCATTER' if plan.sequence_parallel is not False else 'ALL_REDUCE'}",
        f"  recompute_layer: {'true' if recompute == 'full' else 'false'}",
        "optimizer:",
        f"  zero_stage: {min(zero, 1)}",
        "tokens:",
        f"  micro_batch_size: {micro}",
        f"  batch_accumulation_per_replica: {plan.global_batch // (micro * dp)}",
        f"  sequence_length: {plan.seq_len}",
    ]
    return with_comment(lines, left)
