"""Reads a Hugging Face `config.json` into a Model, and refuses what it does not understand.

Each `model_type` has one file in `types/` (`type_files.py`), and `grammar.py` reads a config by it. The fields that it
asks for decide shapes; any other must be known to change none (`config_fields.py`), or it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.physics.model.architecture import Model, checked
from windtunnel.physics.model.limits import showable
from windtunnel.physics.model.reading.config_fields import Fields
from windtunnel.physics.model.reading.config_file import config_of
from windtunnel.physics.model.reading.derived import ADD_A_MODEL, INSTALL, derivable, derived
from windtunnel.physics.model.reading.grammar import read_type
from windtunnel.physics.model.reading.type_files import type_names


def _name_of(config: Mapping[str, object], path: Path) -> str:
    """What a `config.json` calls its model; else the folder, which the hub's cache names `models--ORG--NAME`."""
    path_or_name = config.get("_name_or_path")
    if isinstance(path_or_name, str) and path_or_name.isprintable() and path_or_name.strip("./ "):
        return path_or_name.rstrip("/").rpartition("/")[2]
    cached = [part for part in path.resolve().parts if part.startswith("models--")]
    return cached[-1].rpartition("--")[2] if cached else path.resolve().parent.name


def read_config(source: str | Path | Mapping[str, object], name: str | None = None) -> Model:
    """The model that a `config.json` describes, called `name`, as it calls itself, or after its folder.

    `source`: path of the file, of the folder that holds it, or the mapping itself. Raises InputFileError for a file
    that is missing or no JSON object, SpecError for an unknown `model_type` and for any field at fault.
    """
    where = None
    if not isinstance(source, Mapping):
        source, path = config_of(Path(source))
        where = str(path)
        name = name or (_name_of(source, path) if path.name == "config.json" else path.stem)
    kind = source.get("model_type", source.get("_class_name"))  # the second is diffusers'
    if not isinstance(kind, str):
        raise SpecError("model_type", showable(kind), f"give the architecture, such as llama: {ADD_A_MODEL}", where)
    if kind not in type_names():
        if derivable():
            return checked(replace(derived(source, where), name=name or kind[:80]), where)
        # No nearest name: a neighbour by spelling (deepseek_v3 for deepseek_v32) is another architecture.
        remedy = f"this architecture cannot be read without transformers: {INSTALL}; or write its file: {ADD_A_MODEL}"
        raise SpecError("model_type", kind[:80], remedy, where)
    fields = Fields(source, where)
    model = read_type(kind, fields)
    notes = model.notes + fields.close()
    return checked(replace(model, name=name or kind, notes=notes), where)
