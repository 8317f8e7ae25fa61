"""A framework's own file as plan fields: which reader takes it, and what none of them understood.

`.toml` is torchtitan's, `.json` DeepSpeed's; YAML is Accelerate's where it has `distributed_type`, else a plan; a shell
script or a list of arguments (`.sh`, `.args`, `.txt`) is Megatron-Core's. Reads are bounded (`files/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel.files.bytes import read_text
from windtunnel.files.document import read_mapping
from windtunnel.studies.training.launch import accelerate, deepspeed, megatron_reading, torchtitan
from windtunnel.studies.training.launch.found import Native

PLAN = "give the path of a plan, see docs/plan.md"
ARGUMENTS_BYTES_MOST = 256 << 10  # shlex takes them letter by letter
ARGUMENTS = (".sh", ".bash", ".slurm", ".sbatch", ".args", ".txt")
SUFFIXES = (".toml", ".json", *ARGUMENTS)


def is_native(path: str | Path) -> bool:
    """Whether a file is a framework's own; YAML only if it is Accelerate's. InputFileError where it cannot be read."""
    suffix = Path(path).suffix.lower()
    if suffix == ".json":  # a plan may be written in JSON, which is YAML too
        return not _is_plan(read_mapping(path, PLAN))
    return suffix in SUFFIXES or (suffix in (".yaml", ".yml") and accelerate.is_accelerate(read_mapping(path, PLAN)))


def _is_plan(document: Mapping[str, object]) -> bool:
    from windtunnel.studies.training.plan import FIELDS

    return bool(document) and set(document) <= set(FIELDS)


def read_native(path: str | Path, n_gpus: int) -> Native:
    """Plan fields of a framework's own file, for a job of so many GPUs. Raises InputFileError or SpecError."""
    suffix, where = Path(path).suffix.lower(), str(path)
    if suffix in (".yaml", ".yml"):
        return accelerate.read(read_mapping(path, PLAN), n_gpus, where)
    if suffix == ".toml":
        return torchtitan.read(read_mapping(path, PLAN), n_gpus, where)
    if suffix == ".json":
        return deepspeed.read(read_mapping(path, PLAN), n_gpus, where)
    return megatron_reading.read(read_text(path, PLAN, ARGUMENTS_BYTES_MOST), n_gpus, where)
