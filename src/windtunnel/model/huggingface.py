"""Reads a Hugging Face `config.json` into a Model, and refuses what it does not understand.

Each `model_type` has one short function in `readers_rotary` or `readers_gpt`: the fields it asks for are the ones that
decide shapes. Any other field must be known to change none (`config_fields.IRRELEVANT`), or it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.model import readers_gpt, readers_recent, readers_rotary
from windtunnel.model.architecture import Model, checked
from windtunnel.model.config_fields import Fields
from windtunnel.model.config_file import read_json
from windtunnel.model.limits import showable

READERS: Mapping[str, Callable[[Fields], Model]] = MappingProxyType(
    {
        "bloom": readers_gpt.bloom,
        "deepseek_v2": readers_rotary.deepseek,
        "deepseek_v3": readers_rotary.deepseek,
        "gemma2": readers_recent.gemma2,
        "gemma3": readers_recent.gemma3,
        "gemma3_text": readers_recent.gemma3_text,
        "glm4_moe": readers_recent.glm4_moe,
        "gpt2": readers_gpt.gpt2,
        "gpt_neox": readers_gpt.gpt_neox,
        "gpt_oss": readers_rotary.gpt_oss,
        "grok-1": readers_rotary.grok,
        "kimi_k2": readers_rotary.deepseek,
        "llama": readers_rotary.llama,
        "llama4": readers_rotary.llama4,
        "llama4_text": readers_rotary.llama4_text,
        "mistral": readers_rotary.mistral,
        "mixtral": readers_rotary.mixtral,
        "mpt": readers_gpt.mpt,
        "nemotron": readers_rotary.nemotron,
        "phi3": readers_recent.phi3,
        "qwen2": readers_rotary.qwen2,
        "qwen2_moe": readers_rotary.qwen2_moe,
        "qwen3": readers_rotary.qwen3,
        "qwen3_moe": readers_rotary.qwen3_moe,
    }
)


def read_config(source: str | Path | Mapping[str, Any], name: str | None = None) -> Model:
    """The model that a `config.json` describes, called `name` or after its file or folder.

    `source`: path of the file, of the folder that holds it, or the mapping itself. Raises InputFileError for a file
    that is missing or no JSON object, UnknownNameError for a `model_type` not in READERS, SpecError for any field at
    fault.
    """
    where = None
    if not isinstance(source, Mapping):
        source, path = read_json(Path(source))
        where = str(path)
        name = name or (path.resolve().parent.name if path.name == "config.json" else path.stem)
    kind = source.get("model_type")
    if not isinstance(kind, str):
        raise SpecError("model_type", showable(kind), f"give the architecture, one of {', '.join(READERS)}", where)
    if kind not in READERS:
        raise UnknownNameError("model_type", kind, READERS, "Its config.json cannot be read.")
    fields = Fields(source, where)
    model = READERS[kind](fields)
    fields.close()
    return checked(replace(model, name=name or kind), where)
