"""A plan as the files that a framework is launched with."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.step.result import Result
from windtunnel.questions.asked.plan import open_plan
from windtunnel.studies.training.launch import accelerate, deepspeed, megatron, nanotron, torchtitan

FORMATS = ("megatron", "torchtitan", "deepspeed", "accelerate")
OF_FRAMEWORK = {
    "torchtitan": "torchtitan",
    "fsdp": "accelerate",
    "pytorch": "accelerate",
    "deepspeed": "deepspeed",
    "nanotron": "nanotron",
}


def launch_flags(kind: str, plan: Mapping[str, object], n_gpus: int, model: str) -> tuple[str, str, tuple[str, ...]]:
    """(file name, text, plan fields that the format has no option for) of a plan, whatever its framework.

    `plan`: fields of a `Plan`; what is left open is as the framework of the format has it. Raises UnknownNameError.
    """
    fixed = open_plan(**plan)
    dp = max(1, n_gpus // ((fixed.tp or 1) * (fixed.pp or 1) * (fixed.cp or 1)))
    if kind == "megatron":
        return "megatron.args", *megatron.write(fixed, dp)
    if kind == "torchtitan":
        return "torchtitan.toml", *torchtitan.write(fixed, dp, model)
    if kind == "deepspeed":
        return "deepspeed.json", *deepspeed.write(fixed, dp)
    if kind == "accelerate":
        return "accelerate.yaml", *accelerate.write(fixed, dp, n_gpus)
    if kind == "nanotron":
        return "nanotron.yaml", *nanotron.write(fixed, dp)
    raise UnknownNameError("launch format", kind, FORMATS)


def launch_files(plan: Mapping[str, object], n_gpus: int, model: str) -> dict[str, str]:
    """File name -> text, for the plan's own framework."""
    kind = OF_FRAMEWORK.get(str(plan.get("framework")), "megatron")
    name, text, _ = launch_flags(kind, plan, n_gpus, model)
    return {name: text}


def launch_of(kind: str, result: Result) -> dict[str, str]:
    """File name -> text: the plan of a prediction as a framework is launched with it.

    Raises SpecError for a captured script, which has its own flags.
    """
    if not result.spec.get("plan"):
        raise SpecError("launch", kind, "a captured script has its own flags: name a run of a model instead")
    plan = dict(result.spec["plan"])
    if not any(layer["feed_forward"]["kind"] == "moe" for layer in result.spec["model"]["layers"]):
        plan["etp"] = None
    elif kind == "megatron" and plan["framework"] == "megatron":
        plan["experts_impl"] = plan["experts_impl"] or "streams"
    name, text, _ = launch_flags(kind, plan, result.n_gpus, result.spec["model"]["name"])
    return {name: text}
