"""The shipped models: one file in config.json format each, in `catalogue/`. Adding a model is adding a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.checkpoint import Stored, stored_formats
from windtunnel.physics.model.limits import showable
from windtunnel.physics.model.reading.config_file import config_of
from windtunnel.physics.model.reading.huggingface import read_config
from windtunnel.questions.asked.parts import ModelPart
from windtunnel.questions.reading import plain_part

FOLDER = Path(__file__).parent / "catalogue"
WORD_ENDS = r"[-_](instruct|base|chat|hf|thinking|it|fp8|bf16|int4|config|verl|sft|mixture|\d{4})$"
TUNED_FOR = r"(?<=\db)(-[a-z]+)+$|-(coder|math)(?=-\d)"  # `qwen3-0.6b-reverse-text-sft`, `qwen2.5-coder-7b`

# Names that people use for a model of the catalogue beyond its own, in lower case, without the organisation in front.
ALIASES = {
    "meta-llama-3-8b": "llama-3-8b",
    "meta-llama-3-70b": "llama-3-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "llama-3.3-70b": "llama-3.1-70b",  # the same shape, trained further
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-13b-hf": "llama-2-13b",
    "llama-2-70b-hf": "llama-2-70b",
    "llama-4-scout-17b-16e": "llama-4-scout",
    "llama-4-maverick-17b-128e": "llama-4-maverick",
    "mistral-7b-v0.1": "mistral-7b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "gpt-3": "gpt3-175b",
    "gpt3": "gpt3-175b",
    "gpt-2": "gpt2",
    "gpt-2-xl": "gpt2-xl",
    "bloom": "bloom-176b",
    "nemotron-4-340b-base": "nemotron-4-340b",
    "glm-5.1": "glm-5",  # the same shapes, trained further
    "glm-5.3": "glm-5.2",
    "glm-4.6": "glm-4.5",
    "glm-4.7": "glm-4.5",
    "glm-4.5-355b-a32b": "glm-4.5",
    "glm-4.7-355b-a32b": "glm-4.5",
    "mimo-7b-rl": "mimo-7b",
    "qwen2.5-math-1.5b": "qwen2.5-1.5b",
    "qwen2.5-math-7b": "qwen2.5-7b",
    "kimi-k2.6": "kimi-k2.5",
    "gemma-4-31b-it-nvfp4": "gemma-4-31b",
    "hy3-preview": "hy3",
    "minimax-text-01-hf": "minimax-01",
    "ministral-3-8b-base-2512": "ministral-3-8b",
    "mistral-small-4-119b-2603": "mistral-small-4",
    "nemotron-h-56b-base-8k": "nemotron-h-56b",
    "nemotron-h-8b-base-8k": "nemotron-h-8b",
    "phi-3-medium-4k-instruct": "phi-3-medium",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "stable-diffusion-3.5-large": "sd3.5-large",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
    "minimax-m2.7": "minimax-m2.5",
    "minimax-text-01": "minimax-01",
    # The same shapes, trained further, or longer.
    "codellama-34b-hf": "codellama-34b",
    "stablelm-3b-4e1t": "stablelm-3b",
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
    "vicuna-7b-v1.5": "llama-2-7b",
    "vicuna-13b-v1.5": "llama-2-13b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "qwq-32b": "qwen2.5-32b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "yi-1.5-6b": "yi-6b",
    "yi-1.5-34b": "yi-34b",
    "mistral-nemo": "mistral-nemo-12b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "mistral-small-24b-instruct-2501": "mistral-small-24b",
    "devstral-small-2505": "mistral-small-24b",
    "mistral-large-instruct-2407": "mistral-large-123b",
    "mistral-large-instruct-2411": "mistral-large-123b",
    "ministral-8b-instruct-2410": "ministral-8b",
    "c4ai-command-r-v01": "command-r-35b",
    "tinyllama-1.1b-chat-v1.0": "tinyllama-1.1b",
    "internlm2-5-7b": "internlm2.5-7b",
    "internlm2_5-7b": "internlm2.5-7b",
    "glm-4-9b-chat-hf": "glm-4-9b",
    "olmo-2-1124-7b": "olmo-2-7b",
    "olmoe-1b-7b-0924": "olmoe-1b-7b",
    "solar-10.7b-instruct-v1.0": "solar-10.7b",
    "qwen3.6-27b": "qwen3.5-27b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nemotron-3-super-120b-a12b": "nemotron-3-super",
    "nemotron-3-ultra-550b-a55b": "nemotron-3-ultra",
    "nemotron-3-nano-omni-30b-a3b-reasoning": "nemotron-3-nano-omni",
    "nemotron-3-nano-omni-30b-a3b-reasoning-bf16": "nemotron-3-nano-omni",
    "nvidia-nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nvidia-nemotron-3-nano-30b-a3b-bf16": "nemotron-3-nano",
    "nvidia-nemotron-3-super-120b-a12b-fp8": "nemotron-3-super",
    "nvidia-nemotron-3-ultra-550b-a55b-bf16": "nemotron-3-ultra",
}
TUNED = re.compile(r"-(instruct|it|chat|base|pt|diffusers)$")  # how a checkpoint was trained or kept, not its shape


@lru_cache(maxsize=1)
def catalogue_names() -> tuple[str, ...]:
    """Names of the shipped models, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_model(spec: str | Path | Mapping[str, object]) -> Model:
    """A model by catalogue name, by path of a `config.json` or its folder, or from the mapping itself.

    Names ignore case and an organisation in front: `llama-3.1-405b`, `meta-llama/Llama-3.1-405B`. A name of the
    catalogue wins over a file of that name beside it; write `./name` for the file. Raises the errors of `read_config`,
    and UnknownNameError for a name that is neither.
    """
    if isinstance(spec, Mapping | Path):
        return read_config(spec)
    if not isinstance(spec, str):
        raise SpecError("model", showable(spec), "give a catalogue name, the path of a config.json, or a mapping")
    name = _resolved(spec)
    if name is not None and not ("/" in spec and _exists(spec)):
        return _shipped(name)
    if spec.startswith((".", "/")) or spec.endswith(".json") or _exists(spec):
        return read_config(Path(spec))
    raise UnknownNameError(
        "model", spec, catalogue_names(), "Or give the path of a config.json or of a captured folder."
    )


def catalogued(name: str) -> str:
    """The catalogue's name of a model or path, without what training added to it; "" where it has none."""
    word = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-").removeprefix("nvidia-")
    while word:
        try:
            return load_model(word).name
        except UserError:
            shorter = re.sub(WORD_ENDS, "", word)
            shorter = re.sub(TUNED_FOR, "", word) if shorter == word else shorter
            if shorter == word:
                return ""
            word = shorter
    return ""


def stored_as(spec: str | Path | Mapping[str, object]) -> Stored:
    """The number formats of a model's checkpoint; `spec` as in `load_model`. Raises SpecError."""
    if isinstance(spec, Mapping):
        return stored_formats(spec)
    name = _resolved(spec) if isinstance(spec, str) else None
    if name is not None and not ("/" in str(spec) and _exists(str(spec))):
        return _shipped_as(name)
    config, path = config_of(Path(spec))
    return stored_formats(config, path.parent if path.name == "config.json" else None)


def hub_name(spec: str) -> str | None:
    """The id on the Hugging Face hub of a shipped model, `Qwen/Qwen3-32B`; None where it is not known.

    An alias may be another checkpoint of the same shape, and has none; an id stays what it is.
    """
    if "/" in spec and _resolved(spec) is not None and not _exists(spec):
        return spec
    if spec.lower() not in catalogue_names():
        return None
    source = str(config_of(FOLDER / f"{spec.lower()}.json")[0].get("_source", ""))
    match = re.search(r"(?:https://huggingface\.co/|written for )([\w.-]+/[\w.-]+)", source)
    return None if match is None else match[1]


@lru_cache(maxsize=128)
def _shipped_as(name: str) -> Stored:
    return stored_formats(config_of(FOLDER / f"{name}.json")[0])


def _resolved(spec: str) -> str | None:
    if spec.startswith((".", "/")):
        return None
    name = spec.lower().rpartition("/")[2]
    for one in (name, TUNED.sub("", name)):
        one = ALIASES.get(one, one)
        if one in catalogue_names():
            return one
    return None


def _exists(spec: str) -> bool:
    try:
        return bool(spec) and os.path.exists(spec)
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return False


@lru_cache(maxsize=128)
def _shipped(name: str) -> Model:
    return read_config(FOLDER / f"{name}.json", name)


def model_of(part: ModelPart) -> Model:
    """The model that a question names, with what it changes of it. Raises UserError."""
    data = plain_part(part)
    model = load_model(data.pop("base", None))
    return model.with_changes(**data) if data else model
