"""The shipped models: one file in config.json format each, in `catalogue/`. Adding a model is adding a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.files.document import own_document
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

# In a hub's name who made it, how it was trained or kept, not its shape; of the last kind what it is stored in.
MAKER = re.compile(r"^(nvidia|meta|c4ai|ai21)-(?=[a-z])")
TUNED = re.compile(
    r"-(instruct|it|chat|base|pt|hf|think(ing)?|preview|reasoning(-plus)?|diffusers|v\d(\.\d)?|(\d\d-)?\d{4}|\d{6,8}|dynamic|block)$"
    r"|(?<=-\d)-\d{4}(?=-\d)"  # `olmo-2-0325-32b`
)
HUB_ID = re.compile(r"(--[\w-]+=)?[\w-][\w.-]*/[\w.-]+")
KEPT = re.compile(r"[-.](bf16|fp8|nvfp4|fp4|mxfp4|awq|gptq|int4|w4a16|(bnb-)?4bit|int8|w8a8|8bit|gguf)$")
FORMATS = {"fp4": "nvfp4", **dict.fromkeys(("awq", "gptq", "w4a16", "bnb-4bit", "4bit"), "int4")}
FORMATS |= {"w8a8": "int8", "8bit": "int8", "gguf": ""}  # a GGUF repository holds many formats


@lru_cache(maxsize=1)
def aliases() -> dict[str, str]:
    """Names that people use for a model of the catalogue beyond its own."""
    return own_document((FOLDER / "aliases.yaml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def catalogue_names() -> tuple[str, ...]:
    """Names of the shipped models, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@lru_cache(maxsize=1)
def _by_letters() -> dict[str, tuple[str, ...]]:
    """Names of the shipped models by their letters and digits alone, which two may share (opt-1.3b, opt-13b)."""
    names: dict[str, tuple[str, ...]] = {}
    for name in catalogue_names():
        letters = re.sub(r"[^a-z0-9]", "", name)
        names[letters] = (*names.get(letters, ()), name)
    return names


def _spelled(word: str) -> str:
    """The shipped model that a word spells without points and hyphens (llama31_405b), "" where it is none.

    A size begins in the word where it does in the name: qwen2-57b is no qwen2.5-7b.
    """
    fitting = []
    for name in _by_letters().get(word.replace("-", ""), ()):
        sizes = re.findall(r"(?<![a-z\d.])\d[\d.]*b", name)
        if all(re.search(rf"(?<![\d.]){size.replace('.', '')}", word) for size in sizes):
            fitting.append((all(size in word for size in sizes), name))
    return max(fitting, default=(False, ""))[1]


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
    if name := _resolved(spec):
        return _shipped(name)
    if spec.startswith((".", "/")) or spec.endswith(".json") or _exists(spec):
        return read_config(Path(spec))
    raise UnknownNameError(
        "model", spec, catalogue_names(), "Or give the path of a config.json or of a captured folder."
    )


def catalogued(name: str) -> str:
    """The catalogue's name of a model or path, without what training added to it; "" where it has none."""
    word = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-").removeprefix("nvidia-")
    if own := _spelled(word):  # as NeMo and Megatron-Bridge write it
        return own
    word = re.sub(r"^llama(?=\d)", "llama-", word)  # as Primus and others write it: llama3.1_8B
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
    if isinstance(spec, str) and (name := _resolved(spec)):
        return _stored_by_name(spec, _shipped_as(name))
    config, path = config_of(Path(spec))
    return stored_formats(config, path.parent if path.name == "config.json" else None)


def hub_name(spec: str) -> str | None:
    """The id on the Hugging Face hub of a shipped model, `Qwen/Qwen3-32B`; None where it is not known.

    An alias may be another checkpoint of the same shape, and has none; an id stays what it is.
    """
    if HUB_ID.fullmatch(spec) and _resolved(spec) is not None:
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
    """The catalogue's name of a model; none of what is the path of a file."""
    if spec.startswith((".", "/")) or ("/" in spec and _exists(spec)):
        return None
    for candidate in _shorter(spec):
        if candidate in catalogue_names():
            return candidate
        if candidate in aliases():
            return aliases()[candidate]
    return None


def _shorter(spec: str) -> Iterator[str]:
    """A name without its organisation, then without one more word that says nothing of the shape."""
    name = spec.lower().rpartition("/")[2]
    yield name
    name = MAKER.sub("", name).replace("_", ".")  # `llama-3_3-nemotron-super-49b-v1_5`
    yield name
    while (less := KEPT.sub("", TUNED.sub("", name))) != name:
        yield (name := less)


def _stored_by_name(spec: str, own: Stored) -> Stored:
    """The format that a checkpoint's name ends with, else the catalogue's own."""
    word = next((match[1] for name in _shorter(spec) if (match := KEPT.search(TUNED.sub("", name)))), "")
    weights = FORMATS.get(word, word)
    if weights in ("", own.expert_weights or own.weights) or own.weights.startswith(f"{weights}_"):
        return own
    return Stored("fp8_block" if weights == "fp8" and spec.lower().startswith("qwen/") else weights)


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
