"""What `check` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import OpenPlan, open_plan
from windtunnel.questions.asked.predict import PLAN_FILE


@part
class Check:
    """Whether a launch file may be submitted."""

    verb: ClassVar[str] = "check"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[ModelPart, About("The launch file, the name of a shipped model, or a config.json.")]
    cluster: Annotated[ClusterPart, About("GPU and count, e.g. h100-sxm:512, or a cluster file in YAML.")]
    plan: Annotated[OpenPlan, About(PLAN_FILE, inside=True)] = field(default_factory=open_plan)
    fail_if: Annotated[
        str,
        About(
            "What must not be, with commas between: oom, tight (it may not fit), slower=5% (than --baseline, or than"
            " one change would make it), mfu=40% (below), memory=95% (above), step=9s (above); oom always. (oom)"
        ),
    ] = "oom"
    baseline: Annotated[
        str | None,
        About(
            "What it is held against: the launch file as it was, a saved run (folder, result.json or its first"
            " digits), or a step time."
        ),
    ] = None
    anchor: Annotated[tuple[str, ...], About("A run that was measured, as in predict.", rare=True)] = ()
    runs: Annotated[str, About("Where run folders are (runs).", rare=True)] = "runs"
