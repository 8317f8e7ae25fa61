"""What `decide` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts.plan import TOKENS_MOST, OpenPlan, open_plan
from windtunnel.units import exact_text

SEARCH_MOST_S = 86400.0


@part
class Decide:
    """Which cluster to train on: each with its best plan, its failures, its cost and how sure that is."""

    verb: ClassVar[str] = "decide"
    positional: ClassVar[tuple[str, ...]] = ("models",)
    models: Annotated[tuple[str, ...], About("Names of shipped models, config.json files, or launch files.")]
    clusters: Annotated[
        str, About("GPU and count of each, with commas between them: h100-sxm:512,b200:256,my-cluster.yaml.")
    ]
    tokens: Annotated[int, About("Tokens of the whole training, e.g. 2T.", unit="tokens", least=1, most=TOKENS_MOST)]
    plan: Annotated[OpenPlan, About("Plan file: its fields are fixed; flags override it.", inside=True)] = field(
        default_factory=open_plan
    )
    price: Annotated[
        str,
        About("Of one GPU for an hour: 2.5 for all, 2.5,4 in the clusters' order, or h100=2.5,b200=4."),
    ] = ""
    currency: Annotated[str, About("What prices are in ($).", rare=True)] = "$"
    mtbf: Annotated[
        float | None,
        About(
            "Mean time between failures of the job on the first cluster, e.g. 6h; others by their GPUs.",
            unit="time",
            least=1.0,
        ),
    ] = None
    failures: Annotated[str, About("What fails, as in survive (llama3).")] = "llama3"
    policy: Annotated[str, About("What is done about failures, as in survive: the best of them counts.", rare=True)] = (
        ""
    )
    within: Annotated[float, About("Search for a plan so long on each cluster (60s).", unit="time")] = 60.0
    seeds: Annotated[int, About("Runs of failures to sample (200).", rare=True)] = 200

    def __post_init__(self) -> None:
        if not self.models:
            raise SpecError("models", None, "name a model, such as llama-3-70b")
        if self.within > SEARCH_MOST_S:
            remedy = "is how long the search for a plan may take, a day at most; the days of training are the answer's"
            raise SpecError("within", exact_text(self.within, "time"), remedy)
        if not self.clusters.strip(", "):
            raise SpecError("clusters", self.clusters, "give GPU and count of each: h100-sxm:512,b200:256")
