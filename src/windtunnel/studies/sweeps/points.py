"""The points of a study: a grid, a list, a random draw, or an optimiser's trials (docs/planning.md, "Sweeps").

A dot goes into a nested mapping. Two points with the same inputs are one. A point's key is the hash of its verb, its
inputs, what is in the files that they name (of a folder, and of a file larger than 64 MiB: names, sizes, times), and
windtunnel's version.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, about_file
from windtunnel.files.bytes import TEXT_BYTES_MOST, read_bytes
from windtunnel.files.document import read_mapping

Drawn = list[object] | Mapping[str, float]  # values to draw from: some, or numbers low and high
FIELDS = ("verb", "fixed", "grid", "list", "random", "optuna")
NO_INPUTS = ("out", "function", "executor")  # a study says what is asked, never what runs or where it is written
FILES_OF_A_FOLDER = 10_000  # that are looked at
POINTS_MOST = 1_000_000  # of a study: each is held, with its inputs


@dataclass(frozen=True, slots=True)
class Point:
    """One run: its key and its inputs, by dotted name."""

    key: str
    inputs: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Study:
    """A study: what is swept."""

    verb: str
    points: tuple[Point, ...]  # known beforehand
    fixed: Mapping[str, object]
    optuna: Mapping[str, Any] | None = None
    version: str = ""

    def point(self, inputs: Mapping[str, object]) -> Point:
        """A point of this study."""
        return point_of(self.verb, {**self.fixed, **inputs}, self.version)


def point_of(verb: str, inputs: Mapping[str, object], version: str) -> Point:
    """A point with its key. Raises SpecError on a value that JSON does not know."""
    files = {value: digest for value in _texts(inputs) if (digest := _digest(value))}
    parts = [verb, inputs, version, *([files] if files else [])]
    try:
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError("inputs", dict(inputs), f"use numbers, text, lists and mappings ({error})") from None
    return Point(hashlib.sha256(text.encode()).hexdigest()[:16], dict(sorted(inputs.items())))


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, however deep: each may name a file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _digest(value: str) -> str:
    """Of the file or folder that a value names; empty where it names none."""
    try:
        status = os.stat(value)
        if stat.S_ISDIR(status.st_mode):
            return _digest_of_folder(value)
        return _digest_of(value, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else ""
    except (
        OSError,
        ValueError,
        InputFileError,
    ):  # no name of a file at all, or one that nobody may read: whoever opens it says so
        return ""


@lru_cache(maxsize=256)
def _digest_of(path: str, changed_ns: int, size: int) -> str:
    content = f"{size} {changed_ns}".encode() if size > TEXT_BYTES_MOST else read_bytes(path)
    return hashlib.sha256(content).hexdigest()


def _digest_of_folder(path: str) -> str:
    """Of the names, sizes and times of its files: they may hold weights, which nobody wants to read."""
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    entries = [(str(file), file.lstat().st_size, file.lstat().st_mtime_ns) for file in islice(files, FILES_OF_A_FOLDER)]
    return hashlib.sha256(json.dumps(sorted(entries)).encode()).hexdigest()


def read_study(spec: str | Path | Mapping[str, object], version: str) -> Study:
    """A study from a mapping or a YAML file. Raises InputFileError or SpecError."""
    if not isinstance(spec, Mapping):
        with about_file(spec):
            return read_study(read_mapping(spec, "a study is lines of `field: value`, see docs/planning.md"), version)
    for name in spec:
        if name not in FIELDS:
            raise UnknownNameError("field of a study", str(name), FIELDS)
    verb, fixed = str(spec.get("verb", "predict")), dict(_mapping("fixed", spec.get("fixed")))
    points: dict[str, Point] = {}
    for inputs in _inputs(spec):
        point = point_of(verb, {**fixed, **inputs}, version)
        points.setdefault(point.key, point)
    optuna = None if spec.get("optuna") is None else _mapping("optuna", spec["optuna"])
    if optuna is not None:
        for name in ("trials", "seed"):
            _whole(f"optuna.{name}", optuna.get(name, 0))
        for name, values in _mapping("optuna.over", optuna.get("over")).items():
            _require_range(f"optuna.over.{name}", values)
    if not points and optuna is None:
        raise SpecError("study", dict(spec), "give points: grid, list, random or optuna")
    return Study(verb, tuple(points.values()), fixed, optuna, version)


def _require_few(field: str, count: int) -> None:
    if count > POINTS_MOST:
        raise SpecError(field, f"{count:,} points", f"at most {POINTS_MOST:,}: draw some of them (random), or split it")


def _inputs(spec: Mapping[str, object]) -> Iterator[dict[str, object]]:
    grid = _mapping("grid", spec.get("grid"))
    if grid:
        for name, values in grid.items():
            if not isinstance(values, list):
                raise SpecError(f"grid.{name}", values, "give a list of values")
        _require_few("grid", math.prod(map(len, grid.values())))
        for chosen in product(*grid.values()):
            yield dict(zip(grid, chosen, strict=True))
    listed = spec.get("list") or []
    if not isinstance(listed, list):
        raise SpecError("list", listed, "give a list of mappings of inputs")
    for entry in listed:
        yield dict(_mapping("list", entry))
    settings = _mapping("random", spec.get("random"))
    draw = random.Random(_whole("random.seed", settings.get("seed", 0)))
    over = _mapping("random.over", settings.get("over"))
    for name, values in over.items():
        _require_range(f"random.over.{name}", values)
    count = _whole("random.count", settings.get("count", 0))
    _require_few("random.count", count)
    for _ in range(count):
        yield {name: _draw(draw, values) for name, values in over.items()}


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    """A mapping of names; none given is an empty one."""
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise SpecError(field, value, "give lines of `name: value`")
    for name in value:
        if not isinstance(name, str):
            raise SpecError(field, name, "names are text, e.g. plan.tp")
    return value


def _whole(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(field, value, "give a whole number, 0 or more")
    return value


def _require_range(field: str, values: object) -> None:
    """Values to draw from: a list of some, or numbers low and high."""
    if isinstance(values, list) and values:
        return
    if isinstance(values, Mapping) and {"low", "high"} <= set(values):
        low, high = values["low"], values["high"]
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
        if numbers and low <= high:  # not where one is NaN
            return
    raise SpecError(field, values, "give a list, or low and high, the lower first")


def _draw(draw: random.Random, values: Drawn) -> object:
    if isinstance(values, list):
        return draw.choice(values)
    low, high = values["low"], values["high"]
    if isinstance(low, int) and isinstance(high, int):
        return draw.randint(low, high)
    return draw.uniform(float(low), float(high))
