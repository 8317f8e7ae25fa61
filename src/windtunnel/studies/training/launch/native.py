"""A framework's own file as plan fields: which reader takes it, and what none of them understood.

`.toml` is torchtitan's, `.json` DeepSpeed's; YAML is Accelerate's where it has `distributed_type`, else a plan; a shell
script or a list of arguments (`.sh`, `.args`, `.txt`) is Megatron-Core's. Reads are bounded (`input_file.py`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.input_file import read_text
from windtunnel.studies.training.launch import accelerate, deepspeed, megatron_reading, torchtitan
from windtunnel.studies.training.launch.found import Native

ARGUMENTS = (".sh", ".bash", ".slurm", ".sbatch", ".args", ".txt")
SUFFIXES = (".toml", ".json", *ARGUMENTS)


def is_native(path: str | Path) -> bool:
    """Whether a file is a framework's own; YAML only if it is Accelerate's. InputFileError where it cannot be read."""
    suffix = Path(path).suffix.lower()
    if suffix == ".json":  # a plan may be written in JSON, which is YAML too
        return not _is_plan(_yaml(path))
    return suffix in SUFFIXES or (suffix in (".yaml", ".yml") and accelerate.is_accelerate(_yaml(path)))


def _is_plan(document: Mapping[str, Any]) -> bool:
    from windtunnel.studies.training.plan import FIELDS

    return bool(document) and set(document) <= set(FIELDS)


def read_native(path: str | Path, n_gpus: int) -> Native:
    """Plan fields of a framework's own file, for a job of so many GPUs. Raises InputFileError or SpecError."""
    suffix, where = Path(path).suffix.lower(), str(path)
    if suffix in (".yaml", ".yml"):
        return accelerate.read(_yaml(path), n_gpus, where)
    try:
        text = read_text(path)
        if suffix == ".toml":
            return torchtitan.read(tomllib.loads(text), n_gpus, where)
        if suffix == ".json":
            document = json.loads(text)
            if not isinstance(document, dict):
                raise InputFileError(path, "holds no JSON object", "give a DeepSpeed config")
            return deepspeed.read(document, n_gpus, where)
    except OSError as error:
        raise InputFileError(path, error.strerror or "cannot be read", "give the path of a plan") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        kind = suffix.removeprefix(".").upper()
        raise InputFileError(path, f"not {kind} ({' '.join(str(error).split())})", "see docs/plan.md") from None
    return megatron_reading.read(text, n_gpus, where)


def _yaml(path: str | Path) -> Mapping[str, Any]:
    from windtunnel.studies.training.plan import read_mapping

    return read_mapping(Path(path))
