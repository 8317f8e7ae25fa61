"""What `plan` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import OpenPlan, open_plan


@part
class Search:
    """The best plans for a model on a cluster; what the plan leaves open is searched over its legal values."""

    verb: ClassVar[str] = "plan"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        ModelPart,
        About(
            "Name of a shipped model, e.g. llama-3.1-405b, the path of a Hugging Face config.json, or a folder that"
            " `windtunnel capture` wrote: then its units are cut into stages."
        ),
    ]
    cluster: Annotated[ClusterPart, About("GPU and count, e.g. h100-sxm:8192, or a cluster file in YAML.")]
    plan: Annotated[
        OpenPlan,
        About("Plan file, in YAML or the framework's own: its fields are fixed; flags override it.", inside=True),
    ] = field(default_factory=open_plan)
    top: Annotated[int, About("How many plans (5).", least=1)] = 5
    within: Annotated[
        float,
        About("Search for so long at most, then say the proven gap; techniques come after it (60s).", unit="time"),
    ] = 60.0
    objective: Annotated[Literal["time", "cost", "memory", "energy"], About("What is least (time).")] = "time"
    gpus: Annotated[str | None, About("Other numbers of GPUs, by doubling, e.g. 512..4096.")] = None
    pareto: Annotated[bool, About("Also the plans that are best for some other taste.", rare=True)] = False
    price: Annotated[float | None, About("Price of one GPU for an hour, in any currency.", least=0)] = None
    slow: Annotated[tuple[str, ...], About("A disturbance that plans are ranked under, as in predict.", rare=True)] = ()
    head_room: Annotated[
        float, About("Share of a device's memory that plans leave free (.03).", least=0.0, most=0.9, rare=True)
    ] = 0.03
    mtbf: Annotated[
        float | None, About("Mean time between failures of the whole job, e.g. 6h.", unit="time", rare=True)
    ] = None
    technique: Annotated[
        tuple[str, ...],
        About(
            "Try techniques on the best plans: all, exact (what is trained stays the same), or names with"
            " parameters as predict --technique takes them.",
            rare=True,
        ),
    ] = ()
