"""A framework's own file as plan fields, and a plan as such a file: which reader and which writer takes it.

`.toml` is torchtitan's, `.json` DeepSpeed's, `.py` a recipe (`file.py:name`) or a script of Hugging Face's Trainer;
YAML is the Trainer's where it has that one's batch, Accelerate's, Primus' or GPT-NeoX's by their own keys, else a plan;
a shell script or a list of arguments (`.sh`, `.args`, `.txt`) is the Trainer's, Megatron-Core's, or starts a recipe
of Megatron-Bridge; a log (`.log`,
`.out`, `.txt`) is of the job whose arguments Megatron-LM printed into it. Reads are bounded (`files/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.files.bytes import MIB, read_text
from windtunnel.files.document import read_mapping
from windtunnel.physics.step.result import Result
from windtunnel.questions.asked.parts.plan import OpenPlan, open_plan
from windtunnel.studies.training.launch import accelerate, deepspeed, nanotron, neox, primus, torchtitan
from windtunnel.studies.training.launch.job_file import Native
from windtunnel.studies.training.launch.megatron import log as megatron_log
from windtunnel.studies.training.launch.megatron import reading as megatron_reading
from windtunnel.studies.training.launch.megatron import writing as megatron
from windtunnel.studies.training.launch.recipes import launch_line
from windtunnel.studies.training.launch.recipes import reading as recipes
from windtunnel.studies.training.launch.trainer import reading as trainer

PLAN = "give the path of a plan, see docs/plan.md"
ARGUMENTS_BYTES_MOST = 256 << 10  # shlex takes them letter by letter
LOG_BYTES_MOST = 512 * MIB
LOGS = (".log", ".out", ".txt")
ARGUMENTS = (".sh", ".bash", ".slurm", ".sbatch", ".args", ".txt", ".py", ".log", ".out")
ALLOCATOR = re.compile(r"(?m)^[^#\n]*PYTORCH_(?:CUDA_)?ALLOC_CONF\W[^#\n]*?expandable_segments: *(True|False)")
SUFFIXES = (".toml", ".json", *ARGUMENTS)
FORMATS = ("megatron", "torchtitan", "deepspeed", "accelerate")
FILES = {
    "megatron": "megatron.args", "torchtitan": "torchtitan.toml", "deepspeed": "deepspeed.json",
    "accelerate": "accelerate.yaml", "nanotron": "nanotron.yaml",
}  # fmt: skip
OF_FRAMEWORK = {
    "torchtitan": "torchtitan", "fsdp": "accelerate", "pytorch": "accelerate", "deepspeed": "deepspeed",
    "nanotron": "nanotron",
}  # fmt: skip


def is_native(path: str | Path) -> bool:
    """Whether a file is a framework's own; of YAML Accelerate's and the Trainer's. InputFileError where unreadable."""
    suffix = Path(recipes.split(str(path))[0]).suffix.lower()
    if suffix == ".json":  # a plan may be written in JSON, which is YAML too
        return not _is_plan(read_mapping(path, PLAN))
    if suffix in (".yaml", ".yml"):
        return _reader_of(read_mapping(path, PLAN)) is not None or trainer.settings_of(path) is not None
    return suffix in SUFFIXES


def _reader_of(document: Mapping[str, object]) -> Callable[[Mapping[str, object], int, str], Native] | None:
    """Which framework's YAML a mapping is; the Trainer's is told by its path."""
    readers = ((accelerate.is_accelerate, accelerate.read), (primus.is_primus, primus.read), (neox.is_neox, neox.read))
    return next((read for is_own, read in readers if is_own(document)), None)


def _is_plan(document: Mapping[str, object]) -> bool:
    from windtunnel.studies.training.plan import FIELDS

    return bool(document) and set(document) <= set(FIELDS)


def read_native(path: str | Path, n_gpus: int) -> Native:
    """Plan fields of a framework's own file, for a job of so many GPUs. Raises InputFileError or SpecError."""
    file, recipe = recipes.split(str(path))
    suffix, where = Path(file).suffix.lower(), str(path)
    if suffix == ".py":
        is_recipe = recipe or recipes.framework_of(file)
        if is_recipe:
            return recipes.read(file, recipe, n_gpus)
        return _with_segments(trainer.read(path, n_gpus), read_text(path, PLAN))
    if suffix in (".yaml", ".yml"):
        stated = read_mapping(path, PLAN)
        if trainer.settings_of(path) is not None:  # axolotl's has `fsdp_config` as Accelerate's does
            return trainer.read(path, n_gpus)
        reader = _reader_of(stated)
        if reader is None:
            raise InputFileError(where, "is YAML of no framework that is known here", PLAN)
        return reader(stated, n_gpus, where)
    if suffix == ".toml":
        return torchtitan.read(read_mapping(path, PLAN), n_gpus, where)
    if suffix == ".json":
        return deepspeed.read(read_mapping(path, PLAN), n_gpus, where)
    if suffix in LOGS:
        printed = megatron_log.arguments_of(read_text(path, PLAN, LOG_BYTES_MOST).splitlines())
        if printed:
            return megatron_log.read(printed, n_gpus, where)
        if suffix != ".txt":
            remedy = "name the launch file or the model, and give the log with --log"
            raise InputFileError(where, "is a log without the arguments that Megatron-LM prints", remedy)
    text = read_text(path, PLAN, ARGUMENTS_BYTES_MOST)
    if launch_line.is_launch_line(text):
        native = launch_line.read(text, n_gpus, where)
    else:
        of_trainer = trainer.settings_of(path) is not None
        native = trainer.read(path, n_gpus) if of_trainer else megatron_reading.read(text, n_gpus, where)
    return _with_segments(native, text)


def _with_segments(native: Native, text: str) -> Native:
    """A job, and whether its script says that the allocator's segments grow."""
    grows = ALLOCATOR.search(text)
    return replace(native, fields={**native.fields, "expandable_segments": grows[1] == "True"}) if grows else native


# ----------------------------------------------------------------------------------------------------------- writing


def plan_text(kind: str, plan: OpenPlan, dp: int, n_gpus: int, model: str) -> tuple[str, tuple[str, ...]]:
    """The text of a format, and the plan fields that it has no option for. Raises UnknownNameError."""
    if kind == "torchtitan":
        return torchtitan.write(plan, dp, model)
    if kind == "accelerate":
        return accelerate.write(plan, dp, n_gpus)
    writers = {"megatron": megatron.write, "deepspeed": deepspeed.write, "nanotron": nanotron.write}
    if kind not in writers:
        raise UnknownNameError("launch format", kind, FORMATS)
    return writers[kind](plan, dp)


def launch_flags(kind: str, plan: Mapping[str, object], n_gpus: int, model: str) -> tuple[str, str, tuple[str, ...]]:
    """(file name, text, plan fields that the format has no option for) of a plan, whatever its framework.

    `plan`: fields of a `Plan`; what is left open is as the framework of the format has it. Raises UnknownNameError.
    """
    fixed = open_plan(**plan)
    dp = max(1, n_gpus // ((fixed.tp or 1) * (fixed.pp or 1) * (fixed.cp or 1)))
    text, left = plan_text(kind, fixed, dp, n_gpus, model)
    return FILES[kind], text, left


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
