"""The fitted constants as their calibration files state them: value, and the comment on what it was fitted on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

PACKAGES = ("windtunnel.physics.cost", "windtunnel.studies.training")
_ENTRY = re.compile(r"^(?P<indent> *)(?P<key>[^\s#:][^#:]*):(?P<value>[^#]*)(?:#\s*(?P<comment>.*))?$")


@dataclass(frozen=True, slots=True)
class Constant:
    """One line of a calibration file."""

    name: str  # path of keys, joined by dots
    value: str
    comment: str


@dataclass(frozen=True, slots=True)
class Constants:
    """One calibration file."""

    file: str
    about: str  # its opening comment
    constants: tuple[Constant, ...]


def fitted_constants() -> tuple[Constants, ...]:
    """All calibration files that are shipped, in order of package and name."""
    constants: list[Constants] = []
    for package in PACKAGES:
        folder = files(package).joinpath("calibration")
        if folder.is_dir():
            texts = sorted(
                (path for path in folder.iterdir() if path.name.endswith(".yaml")), key=lambda path: path.name
            )
            constants += [_read(f"{package.replace('.', '/')}/calibration/{text.name}", text) for text in texts]
    return tuple(constants)


def _read(name: str, file: Traversable) -> Constants:
    lines = file.read_text(encoding="utf-8").splitlines()
    about = []
    for line in lines:
        if not line.startswith("#"):
            break
        about.append(line.lstrip("# ").rstrip())
    return Constants(name, " ".join(about), tuple(_constants(lines[len(about) :])))


def _constants(lines: Iterable[str]) -> Iterable[Constant]:
    """Leaves with their path. A comment on lines of its own belongs to the entry after it."""
    path: list[tuple[int, str]] = []
    above: list[str] = []
    for line in lines:
        if line.lstrip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        entry = _ENTRY.match(line)
        if not entry:
            above = []
            continue
        indent, key, value = len(entry["indent"]), entry["key"].strip(), entry["value"].strip()
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, key))
        if value:
            comment = "; ".join(text for text in (" ".join(above), (entry["comment"] or "").strip()) if text)
            yield Constant(".".join(part for _, part in path), value, comment)
            above = []
