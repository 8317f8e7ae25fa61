"""`windtunnel predict FOLDER --cluster ...`: a captured script instead of a model and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import SpecError, UserError

if TYPE_CHECKING:
    from windtunnel.result import Result

_ALLOWED = ("framework", "cuda_graphs")
_WHY = "leave it out: the captured script has its layout, batch and lengths in it; capture it again with others"


def is_captured_word(word: str) -> bool:
    """Whether `word` names a captured folder; cheap for everything that is no folder."""
    path, at, _ = word.rpartition("@")
    if not (Path(word).is_dir() or (at and Path(path).is_dir())):
        return False
    from windtunnel.emulate.captured import names_captured

    return names_captured(word)


def answered_captured(
    folder: str,
    *,
    cluster: str,
    plan: Path | None,
    flags: Mapping[str, Any],
    set: Sequence[str],
    router_load: str | None = None,
    lengths: str | None = None,
    slow: Sequence[str] = (),
    **others: Any,
) -> Result:
    """The prediction; `others`: keywords of `predict_captured`. Refuses what only a plan can be asked."""
    from windtunnel.emulate.captured import predict_captured
    from windtunnel.hardware import parse_cluster, with_settings

    refused = {"--plan": plan, "--router-load": router_load, "--lengths": lengths}
    refused |= {f"--{name.replace('_', '-')}": value for name, value in flags.items() if name not in _ALLOWED}
    for name, value in refused.items():
        if value is not None:
            raise SpecError(name, str(value), _WHY)
    machine: Any = cluster
    changes: dict[str, Any] = {}
    for text in set:
        key, _, value = text.partition("=")
        part, _, rest = key.strip().partition(".")
        if part != "cluster" or not rest:
            raise UserError(f"--set {text}: of a captured script only cluster.* can be set")
        changes[rest] = value
    if changes:
        machine = with_settings(parse_cluster(cluster), changes)
    chosen = {name: flags[name] for name in _ALLOWED if flags.get(name) is not None}
    return predict_captured(folder, machine, disturbances=tuple(slow), **chosen, **others)
