"""The command line that gives a result again.

What was named is named the same way. A model or cluster that came as an object is looked up in the catalogue by its
name, and what differs from the catalogue is spelled out with `--set`, ahead of `--cluster`. What no command line can
spell (a model from a mapping) stands there as a file name, `NAME.json`: save the mapping that was given there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from windtunnel.errors import UserError
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.model import Model, load_model
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.plan import Plan

MODEL_CHANGES = ("max_sequence_length", "mtp_layers", "tied_embeddings", "vocab_size")  # and layers
NESTED = ("gpu", "scale_up", "scale_out", "host")


def reproduce(layout: Layout, model: object = None, cluster: object = None) -> str:
    """The command. `model` and `cluster`: what `predict` was given; names and paths stand in it as they are."""
    words = _as_given(model) or _model_words(layout.model)
    machine = _as_given(cluster)
    words += ["--cluster", *machine] if machine else list(_cluster_words(layout.cluster))
    return " ".join(["windtunnel predict", *map(shlex.quote, words), *_flags(layout.asked)])


def _as_given(spec: object) -> list[str]:
    if isinstance(spec, Path):  # a bare name would be looked up in the catalogue
        bare = spec.name == str(spec) and spec.suffix not in (".json", ".yaml", ".yml")
        return [f"./{spec}" if bare else str(spec)]
    return [spec] if isinstance(spec, str) else []


def _flags(plan: Plan) -> Iterator[str]:
    """The plan as it was asked for; what was left open stays open, so that the same habits fill it."""
    for name, value in plan.stated().items():
        flag, text = "--" + name.replace("_", "-"), _shown(value)
        # A value with a leading dash would be read as the next flag.
        yield shlex.quote(f"{flag}={text}") if text.startswith("-") else f"{flag} {shlex.quote(text)}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    return str(value)


def _model_words(model: Model) -> list[str]:
    try:
        base = load_model(model.name)
    except UserError:
        return [f"{model.name}.json"]
    if base is model or base == model:
        return [model.name]
    changes = {name: getattr(model, name) for name in MODEL_CHANGES if getattr(model, name) != getattr(base, name)}
    if model.n_layers != base.n_layers:
        changes["layers"] = model.n_layers
    try:
        same = base.with_changes(**changes) == model
    except UserError:
        same = False
    if not same:
        return [f"{model.name}.json"]
    return [
        model.name,
        *(word for name, value in changes.items() for word in ("--set", f"model.{name}={_yaml(value)}")),
    ]


@lru_cache(maxsize=64)
def _cluster_words(cluster: Cluster) -> tuple[str, ...]:
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
            return ("--cluster", text)
    if not bases:
        return ("--cluster", f"{cluster.name}.yaml")
    text, base = min(bases, key=lambda found: len(list(_differences(found[1], cluster))))
    sets = [word for key, value in _differences(base, cluster) for word in ("--set", f"cluster.{key}={_yaml(value)}")]
    return (*sets, "--cluster", text)


def _differences(base: Cluster, cluster: Cluster) -> Iterator[tuple[str, Any]]:
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


def _yaml(value: object) -> str:
    """One value as YAML reads it back: JSON, but for floats without a dot, which YAML 1.1 takes for text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)
