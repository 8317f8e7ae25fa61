"""YAML of AMD's Primus (August 2026): Megatron-LM's own variables, or torchtitan's sections, under a module.

A value `${NAME:default}` is taken at its default. The model is named by a file of Primus' checkout: read there, with
what it extends, where the file lies in one; else by its name. Trainers of other frameworks are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.document import read_mapping
from windtunnel.physics.model.catalogue import catalogued
from windtunnel.studies.training.launch import torchtitan
from windtunnel.studies.training.launch.job_file import NO_EFFECT, Native
from windtunnel.studies.training.launch.megatron import log as megatron_log
from windtunnel.studies.training.launch.megatron import reading as megatron_reading

REMEDY = "give a file of Primus for Megatron-LM or torchtitan, or name the model and give flags"
# What `primus/configs/modules/megatron/pre_trainer.yaml` and what it extends say, where Megatron-LM says another thing.
TRAINER = {"bf16": True, "use_distributed_optimizer": True} | {"micro_batch_size": 2, "global_batch_size": 16}
IDLE = re.compile("|".join(NO_EFFECT["Primus"]))
SHAPE = {
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "num_experts",
    "moe_router_topk", "multi_latent_attention", "moe_layer_freq",
}  # fmt: skip
VARIABLE, WORDS = re.compile(r"\$\{\w+:?([^{}]*)\}"), {"null": None, "true": True, "false": False}
DEPTH_MOST = 8


def is_primus(document: Mapping[str, object]) -> bool:
    """Whether a YAML mapping is Primus': modules with a framework each."""
    return _trainer(document) is not None


def read(document: Mapping[str, object], n_gpus: int, where: str) -> Native:
    """The job that a file states, on so many GPUs. Raises InputFileError or SpecError."""
    trainer = _trainer(document) or {}
    framework, name = str(trainer["framework"]), str(_plain(trainer.get("model"))).removesuffix(".yaml")
    if framework not in ("megatron", "torchtitan"):
        raise InputFileError(where, f"is of Primus' {framework}, which is not read", REMEDY)
    place = Path("primus") / "configs" / "models" / framework
    checkout = next((up / place for up in Path(where).resolve().parents if (up / place).is_dir()), None)
    model = {} if checkout is None else _extended(checkout, f"{name}.yaml", DEPTH_MOST)
    stated = _settings(trainer.get("overrides"))
    if framework == "torchtitan":
        native = torchtitan.read({**model, **stated}, n_gpus, where)
        unknown = tuple(option for option in native.unknown if not IDLE.match(option))
        return replace(native, model=native.model or catalogued(name) or None, unknown=unknown)
    settings: dict[str, object] = {**TRAINER, "seq_length": 1024, **model, **stated}
    options = megatron_log.options_of({own: str(value) for own, value in settings.items()})
    native = megatron_reading.read(options, n_gpus, where)
    # Of what the model's file extends only the model is wanted; the rest is Megatron-LM's defaults.
    of_file = {"--" + own.replace("_", "-") for own in stated if not IDLE.match(own)}
    unknown = tuple(option for option in native.unknown if option.split(" ")[0] in of_file)
    is_odd = settings.get("multi_latent_attention") is True or settings.get("moe_layer_freq", 1) not in (1, None)
    known = "" if stated.keys() & SHAPE else catalogued(name)
    return replace(native, model=known or (None if is_odd else native.model), unknown=unknown)


def _trainer(document: Mapping[str, object]) -> Mapping[str, object] | None:
    modules = document.get("modules")
    trainers = modules.values() if isinstance(modules, Mapping) else ()
    return next((each for each in trainers if isinstance(each, Mapping) and "framework" in each), None)


def _extended(folder: Path, name: str, depth: int) -> dict[str, object]:
    """What a model's file says, on what it extends."""
    path, settings = folder / Path(name).name, dict[str, object]()
    document = read_mapping(path, REMEDY) if path.is_file() and depth else {}
    bases = document.pop("extends", None) or ()
    for base in [bases] if isinstance(bases, str) else bases:
        settings |= _extended(folder, str(base), depth - 1)
    return settings | _settings(document)


def _settings(document: object) -> dict[str, object]:
    return {str(name): _plain(own) for name, own in document.items()} if isinstance(document, Mapping) else {}


def _plain(value: object) -> object:
    """A value, its variables at their defaults."""
    text = VARIABLE.sub(r"\1", value) if isinstance(value, str) else ""
    if text in ("", value):
        return _settings(value) if isinstance(value, Mapping) else value
    return WORDS.get(text, int(text) if text.isdigit() else text)
