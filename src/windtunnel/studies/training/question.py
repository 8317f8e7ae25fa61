"""Model, cluster and plan of a question, from names and files; and named again where they were given as objects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware import Cluster, parse_cluster, with_settings
from windtunnel.physics.hardware.mixed import parse_mixed
from windtunnel.physics.model import Model, load_model
from windtunnel.questions import read_part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import Plan
from windtunnel.questions.asked.parts.scenario import Scenario
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.changing import as_given, nested, set_paths
from windtunnel.questions.fields import fields_of
from windtunnel.questions.reading import plain_part
from windtunnel.studies.training.launch.native import ARGUMENTS, is_native, read_native
from windtunnel.studies.training.launch.recipes.reading import split
from windtunnel.studies.training.plan import PLAN_FILE
from windtunnel.units import format_count

if TYPE_CHECKING:
    from windtunnel.studies.training.launch.job_file import Native

NESTED = ("gpu", "scale_up", "scale_out", "host")


# ----------------------------------------------------------------------------------------------------- to objects


def model_of(part: ModelPart, n_gpus: int) -> Model:
    """The model that a question names, with what it changes; `n_gpus` are those of a framework's own file.

    Raises UserError.
    """
    word = part.base
    if states_model(word):
        model = _native_model(read_native(word, n_gpus))
    elif _is_named_as_arguments(word):
        raise _no_such_file(word)
    elif word.lower().endswith((".yaml", ".yml")) and os.path.isfile(word):
        remedy = (
            "read are those of axolotl, LLaMA-Factory, TRL, torchtune, llm-foundry and Accelerate; or name the model"
        )
        raise InputFileError(word, "is no launch file that can be read", f"{remedy} and give the plan as flags")
    elif os.path.isdir(word) and not os.path.exists(os.path.join(word, "config.json")):
        remedy = "give a folder with a model's config.json, or one that `windtunnel capture` wrote"
        raise InputFileError(word, "holds neither config.json nor captured.yaml", remedy)
    else:
        model = load_model(word)
    changes = plain_part(part)
    del changes["base"]
    try:
        return model.with_changes(**changes) if changes else model
    except SpecError as error:
        raise SpecError(f"model.{error.field}", error.value, error.remedy, "--set") from None


def cluster_of(part: ClusterPart) -> Cluster:
    """The cluster that a question names, with what it changes. Raises UserError."""
    settings = _short_names(ClusterPart, plain_part(part))
    if settings.pop("base", None) is None or part.base is None:
        return parse_cluster(settings)
    machine = parse_cluster(part.base)
    try:
        return with_settings(machine, settings) if settings else machine
    except SpecError as error:
        raise SpecError(f"cluster.{error.field}", error.value, error.remedy, "--set") from None


def _short_names(part: type, data: Mapping[str, object]) -> dict[str, object]:
    """A part's data by the names that cluster files have, which errors then say."""
    short = {}
    for field in fields_of(part):
        if field.path in data:
            value = data[field.path]
            inner = _short_names(field.type, value) if field.parts and isinstance(value, Mapping) else value
            short[field.about.names[0] if field.about.names else field.path] = inner
    return short


# -------------------------------------------------------------------------------------------------- plans in files


@dataclass(frozen=True, slots=True)
class PlanFile:
    """Fields of a plan that files state, which file it is, and what in it was not understood."""

    fields: Mapping[str, object]
    path: str
    notes: tuple[str, ...] = ()


def plan_file(model: str, cluster: str, path: Path | None, changes: Mapping[str, object]) -> PlanFile:
    """What a plan file, or the file that `model` names, says of the plan. Raises UserError.

    `changes`: of the cluster, by dotted path (`cluster.nic`).
    """
    # Read whether it is needed or not: a name that is wrong is told before what is missing beside it.
    part = _changed_cluster(cluster, changes) if cluster else None
    n_gpus = cluster_of(part).n_gpus if part is not None and parse_mixed(cluster) is None else 0
    stated = states_model(model)
    own = path if path is not None and is_native(path) else None
    if path is not None and own is None:
        return PlanFile(read_mapping(path, PLAN_FILE), str(path))
    if not stated and own is None:
        if _is_named_as_arguments(model):
            raise _no_such_file(model)
        if model:
            model_of(ModelPart(base=model), n_gpus)  # a name that is none is told before what is missing beside it
        return PlanFile({}, "")
    native = read_native(model if own is None else own, n_gpus)
    words = [word for word in native.unknown if stated or not word.startswith("the model")]  # else it is named beside
    unknown = (f"{native.where}: not understood: {', '.join(words)}",) if words else ()
    if not stated:
        _check_same(model, native, changes)
    return PlanFile(native.fields, str(path or model), unknown)


def _changed_cluster(cluster: str, changes: Mapping[str, object]) -> ClusterPart:
    """A cluster with what `--set cluster.KEY=VALUE` says of it. Raises SpecError that names the setting."""
    data: dict[str, object] = {"cluster": cluster}
    try:
        written = set_paths(
            data, Predict, {name: value for name, value in changes.items() if name.startswith("cluster.")}
        )
    except SpecError as error:
        raise SpecError(error.field, error.value, error.remedy, "--set") from None
    try:
        return read_part(ClusterPart, data["cluster"])
    except SpecError as error:
        setting = as_given(f"cluster.{error.field}", written)
        raise SpecError(setting, changes.get(setting, error.value), error.remedy, "--set") from None


def states_model(word: str) -> bool:
    """Whether the word for the model is a framework's own file: not a Hugging Face config, which is JSON too."""
    if not os.path.isfile(split(word)[0]):
        return False
    return _is_named_as_arguments(word) or (word.lower().endswith((".yaml", ".yml")) and is_native(word))


def _no_such_file(word: str) -> InputFileError:
    return InputFileError(word, "no such file", "give the path of a framework's own file, or the name of a model")


def _is_named_as_arguments(word: str) -> bool:
    name = re.sub(r"(?i)(?<=\.py):\w+$", "", word)  # a recipe of a file
    return Path(name).suffix.lower() in (".toml", *ARGUMENTS)


def _native_model(native: Native) -> Model:
    """The model that a framework's own file states. Raises SpecError where it states none, or not all of one."""
    from windtunnel.physics.model import transformer

    if isinstance(native.model, str):
        return load_model(native.model)
    if native.model is None:
        model_word = next((word for word in native.unknown if word.startswith("the model")), "")
        known = model_word or "this file states none that is known"
        text = f"{model_word} is not in the catalogue" if model_word.startswith("the model ") else known
        raise SpecError("model", None, f"{text}: name a model, and give this file as --plan", native.where)
    sizes = dict(native.model)
    if sizes.get("vocab") is None:
        remedy = "the tokenizer says it: add it to the file, or name the model and give this file as --plan"
        option = "padded_vocab_size" if native.framework == "deepspeed" else "--vocab-size"
        raise SpecError(option, None, remedy, native.where)
    length = native.fields.get("seq_len")
    model = transformer(**sizes, max_sequence_length=length if isinstance(length, int) else 4096)
    return replace(model, name=f"{format_count(model.parameters)} of {Path(native.where).name}")


def _check_same(word: str, native: Native, changes: Mapping[str, object]) -> None:
    """Refuse a plan's file that states another model than the one that is named beside it: every field of both agrees.

    Raises UserError that names all fields that differ.
    """
    if native.model is None and not native.sizes:
        return
    own_changes = {name.partition(".")[2]: value for name, value in changes.items() if name.startswith("model.")}
    model = model_of(read_part(ModelPart, {"base": word, **nested(own_changes)}, field="model"), 1)
    own = _sizes(model)
    if isinstance(native.model, str):
        sizes = _sizes(load_model(native.model))
    elif native.model is None:
        sizes = dict(native.sizes)
        of_experts = sizes.pop("expert_ffn", None)
        if own["experts"]:
            sizes = {name: size for name, size in sizes.items() if name != "ffn"}  # that of dense layers
            sizes |= {} if of_experts is None else {"ffn": of_experts}
    else:
        sizes = _sizes(
            _native_model(replace(native, model={**native.model, "vocab": native.model["vocab"] or model.vocab_size}))
        )
    if 0 <= sizes.get("vocab", 0) - own["vocab"] < PADDING_MOST:
        sizes["vocab"] = own["vocab"]
    differ = [
        f"{name} {_shown(sizes[name])} in the file, {_shown(own[name])} in the model"
        for name in own
        if name in sizes and sizes[name] != own[name]
    ]
    if differ:
        what = f" ({native.model})" if isinstance(native.model, str) else ""
        raise UserError(
            f"{native.where} states another model{what} than {word}: {'; '.join(differ)}: name the model that the file"
            " states, or correct the file"
        )


PADDING_MOST = 16_384  # rows by which a file's vocabulary is padded


def _shown(value: int) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:,}"


def _sizes(model: Model) -> dict[str, int]:
    """Sizes of a model's last layer, as files of frameworks state them."""
    attention, block = model.layers[-1].attention, model.layers[-1].feed_forward
    sizes = {
        "layers": model.n_layers,
        "hidden": model.hidden_size,
        "heads": attention.heads,
        "ffn": block.size,
        "vocab": model.vocab_size,
        "gated": block.gated,
        "tied_embeddings": model.tied_embeddings,
        "experts": block.experts,
    }
    if attention.kind == "gqa":
        sizes |= {"kv_heads": attention.kv_heads, "head_dim": attention.head_dim}
        sizes |= {"qkv_bias": attention.qkv_bias, "qk_norm": attention.qk_norm != "none"}
    return sizes | ({"topk": block.experts_per_token, "shared_size": block.shared_size} if block.kind == "moe" else {})


# --------------------------------------------------------------------------------------------------- from objects


def question_by(
    model: Model, cluster: Cluster, plan: Plan, scenario: Scenario, inputs: tuple[object, object]
) -> Predict:
    """The question that was answered. `inputs`: model and cluster as `predict` got them.

    What was named is named the same way. A model or cluster that came as an object is looked up in the catalogue by its
    name, with what differs from there. What neither has (a model from a mapping) is named as a file, `NAME.json`: save
    the mapping that was given there.
    """
    model_word, cluster_word = _word(inputs[0]), _word(inputs[1])
    return Predict(
        model=_model_part(model) if model_word is None else ModelPart(base=model_word),
        cluster=_cluster_part(cluster) if cluster_word is None else ClusterPart(base=cluster_word),
        plan=plan,
        scenario=scenario,
    )


def _word(spec: object) -> str | None:
    if isinstance(spec, Path):  # a bare name would be looked up in the catalogue
        bare = spec.name == str(spec) and spec.suffix not in (".json", ".yaml", ".yml")
        return f"./{spec}" if bare else str(spec)
    return spec if isinstance(spec, str) else None


def _model_part(model: Model) -> ModelPart:
    as_file = ModelPart(base=f"{model.name}.json")
    try:
        base = load_model(model.name)
    except UserError:
        return as_file
    names = {field.path: field.path for field in fields_of(ModelPart) if field.path != "base"} | {"layers": "n_layers"}
    changes = {name: getattr(model, own) for name, own in names.items() if getattr(model, own) != getattr(base, own)}
    try:
        same = (base.with_changes(**changes) if changes else base) == model
    except UserError:
        same = False
    return ModelPart(base=model.name, **changes) if same else as_file


@lru_cache(maxsize=64)
def _cluster_part(cluster: Cluster) -> ClusterPart:
    names = dict.fromkeys((cluster.gpu.name, cluster.gpu.name.removesuffix("-custom"), cluster.name))
    bases: list[tuple[str, Cluster]] = []
    for name in names:
        for count in (cluster.n_gpus, 1):  # 1: where the usual node does not divide the count
            try:
                bases.append((f"{name}:{count}", parse_cluster(f"{name}:{count}")))
                break
            except UserError:
                continue
    for text, base in bases:
        if base == cluster:
            return ClusterPart(base=text)
    if not bases:
        return ClusterPart(base=f"{cluster.name}.yaml")
    text, base = min(bases, key=lambda candidate: len(list(_differences(candidate[1], cluster))))
    return read_part(ClusterPart, {"base": text, **nested(dict(_differences(base, cluster)))})


def _differences(base: Cluster, cluster: Cluster) -> Iterator[tuple[str, object]]:
    """Dotted keys of what differs, without the sources of the numbers."""
    was, is_now = base.to_dict(), cluster.to_dict()
    for key, value in is_now.items():
        before = was[key]
        if key in NESTED and isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from (
                (f"{key}.{name}", part) for name, part in value.items() if name != "sources" and part != before[name]
            )
        elif key not in ("sources", "calibration", *NESTED) and value != before:
            yield key, value
