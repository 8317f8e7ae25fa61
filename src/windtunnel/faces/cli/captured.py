"""`windtunnel predict FOLDER --cluster ...`: a captured script instead of a model and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import SpecError
from windtunnel.questions.scenario import CALM, Scenario
from windtunnel.studies.training.question import changed_cluster, settings_of

if TYPE_CHECKING:
    from windtunnel.physics.step.result import Result

_ALLOWED = ("framework", "cuda_graphs")
_WHY = "leave it out: the captured script has its layout, batch and lengths in it; capture it again with others"


def is_captured_word(word: str) -> bool:
    """Whether `word` names a captured folder; cheap for everything that is no folder."""
    path, at, _ = word.rpartition("@")
    if not (Path(word).is_dir() or (at and Path(path).is_dir())):
        return False
    from windtunnel.studies.programs.predict import names_captured

    return names_captured(word)


def answered_captured(
    folder: str,
    *,
    cluster: str,
    plan: Path | None,
    flags: Mapping[str, Any],
    set: Sequence[str],
    scenario: Scenario = CALM,
    allocator: str | None = None,
) -> Result:
    """The prediction. Refuses what only a plan can be asked."""
    from windtunnel.studies.programs.predict import predict_captured

    refused = {"--plan": plan, "--router-load": scenario.router_load, "--lengths": scenario.lengths}
    refused |= {f"--{name.replace('_', '-')}": value for name, value in flags.items() if name not in _ALLOWED}
    for name, value in refused.items():
        if value is not None:
            raise SpecError(name, str(value), _WHY)
    changes = settings_of(set)
    for part in ("model", "plan"):
        if changes[part]:
            text = next(text for text in set if text.strip().startswith(f"{part}."))
            raise SpecError("--set", text, "of a captured script only cluster.* can be set")
    machine: Any = changed_cluster(cluster, changes["cluster"]) if changes["cluster"] else cluster
    chosen = {name: flags[name] for name in _ALLOWED if flags.get(name) is not None}
    return predict_captured(folder, machine, scenario=scenario, allocator=allocator, **chosen)
