"""What `predict` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import TOKENS_MOST, Plan, Script
from windtunnel.questions.asked.parts.scenario import Scenario

PLAN_FILE = (
    "Plan file in YAML, or the framework's own: torchtitan TOML, Megatron-Core arguments (.sh, .args),"
    " DeepSpeed JSON, Accelerate YAML; flags override it."
)


@part
class Predict:
    """One training step of a model with a plan, or of a captured script."""

    verb: ClassVar[str] = "predict"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        ModelPart,
        About(
            "Name of a shipped model, e.g. llama-3.1-405b, the path of a Hugging Face config.json, or a folder that"
            " `windtunnel capture` wrote."
        ),
    ]
    cluster: Annotated[ClusterPart, About("GPU and count, e.g. h100-sxm:8192, or a cluster file in YAML.")]
    plan: Annotated[Plan | Script, OneOf(), About(PLAN_FILE, inside=True)] = field(default_factory=Script)
    scenario: Annotated[Scenario, About("", inside=True)] = field(default_factory=Scenario)
    technique: Annotated[
        tuple[str, ...],
        About(
            "What it would bring: NAME[:key=value,...], e.g. lina or sparse_gradients:ratio=0.01; repeatable;"
            " `windtunnel techniques` lists them."
        ),
    ] = ()
    tokens: Annotated[
        int | None,
        About(
            "Tokens of the whole training, e.g. 15T: days, GPU-hours and, with --price, its cost.",
            unit="tokens",
            least=1,
            most=TOKENS_MOST,
        ),
    ] = None
    price: Annotated[float | None, About("Of one GPU for an hour, e.g. 2.5.", least=0, most=1e6)] = None
    anchor: Annotated[
        tuple[str, ...],
        About(
            "A run that you measured: its log, or the YAML that `diagnose --save-anchor` writes; repeatable.",
            rare=True,
        ),
    ] = ()
