"""Plans read from files and mappings, and held against what they may say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.files.document import read_mapping
from windtunnel.physics.model.adapters import MODULES, TARGETS, check_targets
from windtunnel.questions import read_part
from windtunnel.questions.asked.parts.plan import Framework, Plan, Precision
from windtunnel.questions.fields import fields_of

__all__ = ["PARAMETER_FORMATS", "PEAK_DTYPE", "RECOMPUTE_PARTS", "Framework", "Plan", "Precision", "read_plan"]

PARAMETER_FORMATS = ("fp8", "fp8-current", "mxfp8")  # in which recipes keep parameters: none in 4 bits
PEAK_DTYPE = {
    "fp8": "fp8",
    "fp8-current": "fp8",
    **{name: name for name in ("mxfp8", "nvfp4", "mxfp4")},
}  # others: itself
RECOMPUTE_PARTS = (
    *("attention", "core_attention", "mla_up_proj", "mlp", "moe", "shared_experts"),
    *("norms", "activation", "moe_activation", "ops"),
)
FIELDS = tuple(field.path for field in fields_of(Plan))
PLAN_FILE = "a plan is lines of `field: value`, see docs/plan.md"


def read_plan(spec: Plan | str | Path | Mapping[str, object]) -> Plan:
    """A Plan from a mapping or a YAML file. Raises SpecError on a wrong field, InputFileError on a wrong file."""
    where = None
    if isinstance(spec, Plan):
        spec = spec.stated()
    if isinstance(spec, str | Path):
        where, spec = str(spec), read_mapping(spec, PLAN_FILE)
    if not isinstance(spec, Mapping):
        raise SpecError("plan", spec, "give a mapping of its fields, or the path of a YAML file")
    for name in spec:
        if name not in FIELDS:
            raise UnknownNameError("plan field", str(name), FIELDS, remedy=f"(in {where})" if where else None)
    plan = read_part(Plan, spec, where)
    _check_recompute(plan.recompute, where)
    if not check_targets(plan.lora_targets):
        remedy = f"use {', '.join(TARGETS)}, or some of {', '.join(MODULES)} with commas"
        raise SpecError("lora_targets", plan.lora_targets, remedy, where)
    return plan


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
