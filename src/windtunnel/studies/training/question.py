"""What `predict` is asked, put together from names, files, flags and `--set`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.questions.scenario import CALM, Scenario
from windtunnel.studies.training.launch.native import ARGUMENTS, is_native, read_native

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.physics.model import Model
    from windtunnel.physics.step.result import Result
    from windtunnel.studies.training import Plan
    from windtunnel.studies.training.launch.found import Native

PARTS = ("cluster", "model", "plan")
MODEL_KEYS = ("layers", "max_sequence_length", "mtp_layers", "tied_embeddings", "vocab_size")


@dataclass(frozen=True, slots=True)
class Question:
    """A model, a cluster and a plan, and the words that named the first two."""

    model: Model
    cluster: Cluster
    plan: Plan
    named: str  # `MODEL --cluster SPEC [--set ...]` as it was given
    notes: tuple[str, ...] = ()  # what a framework's own file says that was not understood

    @classmethod
    def asked(
        cls, model: str, cluster: str, plan: Path | None, flags: Mapping[str, Any], sets: Sequence[str],
        machine: Cluster | None = None,
    ) -> Question:  # fmt: skip
        """Read everything; flags win over the plan file, `--set` over both. Raises UserError on the first mistake.

        `machine`: what the word `cluster` stands for, where it has been read.
        """
        from windtunnel.physics.model import load_model
        from windtunnel.studies.training import read_plan
        from windtunnel.studies.training.plan import read_mapping

        changes = settings_of(sets)
        native = None
        if plan is not None and is_native(plan):
            machine = machine or changed_cluster(cluster, changes["cluster"])
            native = read_native(plan, machine.n_gpus)
        stated = _states_model(model)
        if stated:
            machine = machine or changed_cluster(cluster, changes["cluster"])
            found = read_native(model, machine.n_gpus)
            native = native or (found if plan is None else None)
        elif _is_named_as_arguments(model):
            remedy = "give the path of a framework's own file, or the name of a model"
            raise InputFileError(model, "no such file", remedy)
        if Path(model).is_dir() and not (Path(model) / "config.json").exists():
            remedy = "give a folder with a model's config.json, or one that `windtunnel capture` wrote"
            raise InputFileError(model, "holds neither config.json nor captured.yaml", remedy)
        built = _built(found) if stated else load_model(model)
        written: dict[str, Any] = {}
        if native is not None:
            written = dict(native.fields)
        elif plan is not None:
            written = dict(read_mapping(plan))
        fields = {**written, **flags, **changes["plan"]}
        for name in ("global_batch", "seq_len"):
            if fields.get(name) is None:
                flag = name.replace("_", "-")
                raise UserError(f"{name} is not given: add --{flag} N, or put it in the plan file")
        if changes["model"]:
            for key in changes["model"]:
                if key not in MODEL_KEYS:
                    raise UnknownNameError("model key of --set", key, MODEL_KEYS)
            try:
                built = built.with_changes(**changes["model"])
            except SpecError as error:
                raise SpecError(f"model.{error.field}", error.value, error.remedy, "--set") from None
        machine = machine or changed_cluster(cluster, changes["cluster"])
        try:
            settled = read_plan(fields)
        except (SpecError, UnknownNameError) as error:
            named = error.field if isinstance(error, SpecError) else error.name
            if named in written and fields[named] is written[named]:  # the file is where it has to be put right
                raise UserError(f"{plan or model}: {error}") from None
            raise
        words = [model, "--cluster", cluster, *(word for text in sets for word in ("--set", text))]
        notes = (
            ()
            if native is None or not native.unknown
            else (f"{native.where}: not understood: {', '.join(native.unknown)}",)
        )
        return cls(built, machine, settled, shlex.join(words), (*notes, *_another(built, model, native, stated)))

    def answer(self, scenario: Scenario = CALM) -> Result:
        """Predict, and name model and cluster in `reproduce` as they were named here."""
        from windtunnel.studies.training import predict

        return self.as_named(predict(self.model, self.cluster, self.plan, scenario=scenario))

    def as_named(self, result: Result) -> Result:
        """A result whose `reproduce` names model and cluster as they were named here."""
        words = shlex.split(result.reproduce)
        if words[:2] != ["windtunnel", "predict"] or "--cluster" not in words:
            return result
        flags = words[words.index("--cluster") + 2 :]
        result = replace(result, warnings=(*result.warnings, *self.notes))
        return replace(result, reproduce=" ".join(["windtunnel predict", self.named, *map(shlex.quote, flags)]))


def _states_model(word: str) -> bool:
    """Whether the word for the model is a framework's own file: not a Hugging Face config, which is JSON too."""
    return _is_named_as_arguments(word) and Path(word).is_file()


def _is_named_as_arguments(word: str) -> bool:
    return Path(word).suffix.lower() in (".toml", *ARGUMENTS)


def _built(native: Native) -> Model:
    """The model that a framework's own file states. Raises SpecError where it states none, or not all of one."""
    from windtunnel.physics.model import load_model, transformer

    if isinstance(native.model, str):
        return load_model(native.model)
    if native.model is None:
        raise SpecError(
            "model", None, "this file states none that is known: name one, and give it as --plan", native.where
        )
    sizes = dict(native.model)
    if sizes.get("vocab") is None:
        raise SpecError("--vocab-size", None, "the tokenizer says, not the arguments: add it to them", native.where)
    return transformer(**sizes, name=Path(native.where).stem, max_sequence_length=native.fields.get("seq_len", 4096))


def _another(built: Model, word: str, native: Native | None, stated: bool) -> tuple[str, ...]:
    """A note where the plan's file states another model than the one that is named beside it."""
    from windtunnel.physics.model import load_model

    if native is None or native.model is None or stated:
        return ()
    if isinstance(native.model, str):
        of_file = load_model(native.model)
        layers, hidden = of_file.n_layers, of_file.hidden_size
    else:
        layers, hidden = native.model["layers"], native.model["hidden"]
    if (layers, hidden) == (built.n_layers, built.hidden_size):
        return ()
    states = f"{native.where} states a model of {layers} layers of {hidden:,}"
    return (f"{states}, which was not predicted: {word} has {built.n_layers} of {built.hidden_size:,}",)


def changed_cluster(cluster: str, settings: Mapping[str, Any]) -> Cluster:
    """The cluster that a word names, with what `--set cluster.KEY=VALUE` says of it."""
    from windtunnel.physics.hardware import parse_cluster, with_settings

    machine = parse_cluster(cluster)
    if not settings:
        return machine
    try:
        return with_settings(machine, _nested(settings))
    except SpecError as error:
        raise SpecError(f"cluster.{error.field}", error.value, error.remedy, "--set") from None


def settings_of(sets: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`PART.KEY=VALUE` of every `--set`, by part; each part is there, if empty."""
    import yaml

    found: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for text in sets:
        key, equals, value = text.partition("=")
        part, dot, rest = key.strip().partition(".")
        if not equals or not dot or not rest or part not in PARTS:
            raise SpecError("--set", text, f"write PART.KEY=VALUE with PART one of {', '.join(PARTS)}")
        try:
            found[part][rest] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: what looks like a date and is none
            found[part][rest] = value
    return found


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"gpu.flops.bf16": 1}` as `{"gpu": {"flops": {"bf16": 1}}}`."""
    document: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, last = key.split(".")
        inside = document
        for name in outer:
            inside = inside.setdefault(name, {})
            if not isinstance(inside, dict):
                raise SpecError(f"--set cluster.{key}", value, f"cluster.{name} is already set as a whole")
        inside[last] = value
    return document
