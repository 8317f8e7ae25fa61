"""A plan by the names of Hugging Face's Trainer, as one file of it spells them; the inverse of `trainer.py`.

A name that the file has is used again: axolotl's `micro_batch_size`, FSDP's strategy where that says how it shards.
What stands in a DeepSpeed file, or has no name that the reader knows, is left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.questions.asked.parts.plan import OpenPlan
from windtunnel.studies.training.launch.job_file import with_left_out
from windtunnel.studies.training.launch.trainer.reading import BATCH, DEGREES, LENGTH, Settings

STRATEGIES = {2: "shard_grad_op", 3: "full_shard"}
WRITTEN = {"micro_batch", "global_batch", "recompute", "compile", "zero_stage", "dp", "framework", "release", "seq_len"}


def write(plan: OpenPlan, dp: int, settings: Settings) -> tuple[dict[str, object], tuple[str, ...]]:
    """Names and values (None: to be left out), and the plan fields that the file has no name for.

    `settings`: what the file says now, as `trainer.settings_of` gives it. `dp`: the data-parallel degree.
    """
    degrees = {field: name for field, names in DEGREES.items() for name in names if settings.get(name) is not None}
    left = with_left_out(plan, WRITTEN | set(degrees), dict.fromkeys(DEGREES, 1))
    micro = plan.micro_batch or 1
    values: dict[str, object] = {name: getattr(plan, field) or 1 for field, name in degrees.items()}
    values[_first_set(settings, BATCH, "micro_batch_size" if "base_model" in settings else BATCH[0])] = micro
    if "global_batch_size" in settings:
        values["global_batch_size"] = plan.global_batch
    else:
        values["gradient_accumulation_steps"] = max(1, plan.global_batch // (micro * dp))
    length = _first_set(settings, LENGTH, "")
    if length:
        values[length] = plan.seq_len
    elif plan.seq_len is not None:
        left.append(f"seq_len {plan.seq_len}")
    if plan.recompute in (None, "none", "full"):
        values |= _recomputation(settings, plan.recompute == "full")
    else:
        left.append(f"recompute {plan.recompute}")
    if "deepspeed" in settings or "deepspeed_config_file" in settings:
        left.append(f"compile {plan.compile}")
    else:
        values["torch_compile"] = True if plan.compile else None
    sharded = _sharding(settings, plan)
    if sharded is None:
        left.append(f"zero_stage {plan.zero_stage}")
    return {**values, **(sharded or {})}, tuple(left)


def _first_set(settings: Settings, names: tuple[str, ...], otherwise: str) -> str:
    return next((name for name in names if settings.get(name) is not None), otherwise)


def _recomputation(settings: Settings, is_full: bool) -> dict[str, object]:
    """LLaMA-Factory recomputes unless that is disabled; FSDP may do it in place of the Trainer."""
    inner, own = settings.get("fsdp_config"), settings.get("gradient_checkpointing")
    also = {"gradient_checkpointing": own if is_full else None}
    if isinstance(inner, Mapping) and "activation_checkpointing" in inner:
        return {**also, "fsdp_config.activation_checkpointing": is_full}
    if "finetuning_type" in settings or "cutoff_len" in settings:
        return {**also, "disable_gradient_checkpointing": None if is_full else True}
    return {"gradient_checkpointing": True if is_full else None}


def _sharding(settings: Settings, plan: OpenPlan) -> dict[str, object] | None:
    """How FSDP shards; None where the file cannot say this stage."""
    stage, fsdp, inner = plan.zero_stage or 0, settings.get("fsdp"), settings.get("fsdp_config")
    if isinstance(inner, Mapping) and stage in STRATEGIES:
        for name in ("sharding_strategy", "fsdp_sharding_strategy"):
            if str(inner.get(name)).lower() in STRATEGIES.values():
                return {f"fsdp_config.{name}": STRATEGIES[stage].upper()}
        for name in ("reshard_after_forward", "fsdp_reshard_after_forward"):
            if isinstance(inner.get(name), bool):
                return {f"fsdp_config.{name}": stage == 3}
    if isinstance(fsdp, str) and fsdp and not inner and stage in STRATEGIES:
        words = [STRATEGIES[stage] if word in STRATEGIES.values() else word for word in fsdp.split()]
        return {"fsdp": " ".join(words)} if STRATEGIES[stage] in words else None
    if fsdp or inner or {"deepspeed", "deepspeed_config_file", "base_model"} & set(settings) or plan.frozen_dtype:
        return None  # a wrapped quantised model and axolotl's need more than one name
    if stage in STRATEGIES:
        return {"fsdp": f"{STRATEGIES[stage]} auto_wrap"}
    return {"fsdp": None} if stage == 0 else None
