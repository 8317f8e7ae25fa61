"""Model types as data: `types/TYPE.yaml` says in a few lines how a config's fields make layers.

What a file may say is in docs/models.md (Add a model), with what each entry means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from windtunnel.errors import SpecError
from windtunnel.files.document import read_mapping
from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model
from windtunnel.physics.model.mixers import Compressed, Extended, ExtendedBlock, Indexed, Recurrent, Streamed

Rules: TypeAlias = dict[str, Any]  # of a type, as its file has them
FOLDER = Path(__file__).parents[1] / "types"


def _entries(*kinds: type, more: str = "") -> frozenset[str]:
    """Names of entries: fields of what they make."""
    return frozenset(field.name for kind in kinds for field in fields_of(kind)) | {"instead", *more.split()}


SECTIONS = frozenset((
    "extends", "inside", "text", "flat", "tied", "notes", "defaults", "aliases", "ignore", "only", "objects", "must",
    "words", "model", "mixers", "blocks", "mixer", "block", "layer", "sound", "tower", "parts", "outside",
))  # fmt: skip
ENTRIES = {
    "model": _entries(Model),
    "layer": _entries(Layer, Streamed, more="count"),
    "mixers": _entries(Attention, Extended, Compressed, Indexed, Recurrent),
    "blocks": _entries(FeedForward, ExtendedBlock),
}
ALLOWED = {"qk_norm": ("none", "per_head", "full", "l2"), "position": ("rope", "none", "learned", "alibi")}


@cache
def type_names() -> tuple[str, ...]:
    """The model types that have a file."""
    return tuple(sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")))


@cache
def other_names() -> dict[str, dict[str, list[str]]]:
    """By type, what else transformers' class calls a field, which published configs use (`attribute_map`).

    Made by `validation/derive_models.py --names`.
    """
    return read_mapping(FOLDER / "_names.json", "see docs/models.md, Add a model")


def has_file(name: str) -> bool:
    """Whether there is a file of this name, below the folder of types."""
    return (FOLDER / f"{name}.yaml").is_file()


@cache
def rules_of(name: str) -> Rules:
    """What the file of a type says, laid over what it extends. Raises SpecError and InputFileError."""
    where = f"types/{name}.yaml"
    if not has_file(name):
        raise SpecError("extends", name, f"there is no {where}")
    own = read_mapping(FOLDER / f"{name}.yaml", "see docs/models.md, Add a model")
    _only(own, SECTIONS, where)
    for section, allowed in ENTRIES.items():
        parts = own.get(section, {})
        for entries in parts.values() if section in ("mixers", "blocks") else (parts,):
            if not isinstance(entries, dict):  # `instead: true`
                continue
            _only(entries, allowed, f"{where}: {section}")
            for key, words in ALLOWED.items():
                word = entries.get(key, words[0])
                if word not in words and not str(word).startswith("="):
                    raise SpecError(key, word, f"one of {', '.join(words)}", f"{where}: {section}")
    return _laid_over(rules_of(own["extends"]), own) if "extends" in own else own


def _only(entries: Mapping[str, object], allowed: frozenset[str], where: str) -> None:
    for key in entries:
        if key not in allowed:
            near = get_close_matches(key, allowed, n=1)
            raise SpecError(
                key, entries[key], f"did you mean {near[0]}?" if near else f"one of {', '.join(sorted(allowed))}", where
            )


@cache
def fields_asked(name: str) -> frozenset[str]:
    """The fields that a type's entries ask for, be it only for some values of others."""
    return frozenset(_names(rules_of(name)))


def _names(entry: object) -> Iterator[str]:
    for inner in entry.values() if isinstance(entry, dict) else (entry,):
        if isinstance(inner, dict):
            yield from _names(inner)
        elif isinstance(inner, str):
            yield from re.findall(r"[A-Za-z_]\w*", inner)


def _laid_over(base: Rules, own: dict[str, object]) -> dict[str, object]:
    whole = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and "instead" not in value:
            whole[key] = _laid_over(base[key], value)
        elif isinstance(value, list) and isinstance(base.get(key), list):
            whole[key] = [*base[key], *value]
        else:
            whole[key] = {k: v for k, v in value.items() if k != "instead"} if isinstance(value, dict) else value
    return whole
