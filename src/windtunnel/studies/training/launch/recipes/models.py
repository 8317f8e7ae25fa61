"""Classes of models of NeMo 2, Megatron-Bridge and xtuner v1 by the catalogue's names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from windtunnel.physics.model.catalogue import catalogued
from windtunnel.studies.training.launch.recipes.python_values import CallResult

NAMED = {
    "GptOss21BA3P6Config": "gpt-oss-20b", "GptOss117BA5P8Config": "gpt-oss-120b", "GPTOSSConfig20B": "gpt-oss-20b",
    "GPTOSSConfig120B": "gpt-oss-120b", "Llama4Experts16Config": "llama-4-scout", "GPTConfig175B": "gpt3-175b",
    "Llama4Experts128Config": "llama-4-maverick", "MistralNeMoConfig12B": "mistral-nemo-12b",
    "Phi3ConfigMini": "phi-3-mini", "DeepSeekV3Config": "deepseek-v3", "DeepSeekV2Config": "deepseek-v2",
    "DeepSeekV2LiteConfig": "deepseek-v2-lite",
}  # fmt: skip
FAMILIES = {
    "Llama2": "llama-2", "Llama3": "llama-3", "Llama31": "llama-3.1", "Llama32": "llama-3.2", "Qwen2": "qwen2",
    "Qwen25": "qwen2.5", "Qwen3": "qwen3", "Qwen3Dense": "qwen3", "Qwen3MoE": "qwen3", "Qwen2Dense": "qwen2",
    "Mistral": "mistral", "Mixtral": "mixtral", "Gemma": "gemma", "Gemma2": "gemma-2", "Nemotron4": "nemotron-4",
    "NemotronH": "nemotron-h", "Starcoder": "starcoder", "Starcoder2": "starcoder2",
}  # fmt: skip
SIZED = re.compile(r"(?:Config)?((?:\d+x)?\d+(?:P\d+)?[BM])(?:_?A(\d+)B?)?(?:Config)?")


def of_class(kind: str) -> str:
    """The catalogue's name of a class such as `Llama31Config70B` or `Qwen3MoE30BA3Config`; empty where it has none."""
    if kind in NAMED:
        return NAMED[kind]
    for family, name in FAMILIES.items():
        match = SIZED.fullmatch(kind.removeprefix(family)) if kind.startswith(family) else None
        if match is not None:
            size, active = match.groups()
            word = f"{int(size[:-1]) / 1000:g}b" if size.endswith("M") else size.replace("P", ".").lower()
            return catalogued(f"{name}-{word}" + (f"-a{active}b" if active else ""))
    return ""


def model_name(parts: Mapping[str, object]) -> str:
    """The catalogue's name of the model of a recipe; empty where it is not known."""
    part = parts.get("model")
    while isinstance(part, CallResult):
        first = part.args[0] if part.args else part.values.get("path", part.values.get("hf_path"))
        if isinstance(first, str):
            return catalogued(first)
        if not isinstance(first, CallResult):
            return of_class(part.kind)
        part = first
    return ""
