"""nanotron's YAML for a plan (`nanotron/config/config.py`, 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def write(plan: Mapping[str, Any], dp: int) -> str:
    """The sections that a plan decides."""
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
