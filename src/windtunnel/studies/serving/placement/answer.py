"""The best placement that a question looks for, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions.header import Answer
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.placement.distserve import Placement
from windtunnel.studies.serving.placement.search import MOST_RATE, Question, search_distserve
from windtunnel.studies.serving.placement.several import Grouping, Several, search_alpaserve, search_muxserve
from windtunnel.studies.serving.workload.requests import Workload


@dataclass(frozen=True, eq=False)
class PlacementAnswer(Answer):
    """A placement, by which method it was found, and which share of requests is in time there."""

    method: str
    attain: float
    placement: Placement | Grouping
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return self.placement.to_dict()


def place_phases(question: Question) -> PlacementAnswer:
    """Prompts and answers of one model by DistServe. Raises UserError."""
    placement = search_distserve(question)
    never = [candidate for candidate in placement.tried if candidate.goodput_per_s > MOST_RATE / 2]
    if never:
        raise UserError(
            f"{len(never)} of {len(placement.tried)} candidates miss the limits at no rate up to {MOST_RATE:g} per"
            f" second with {len(question.workload)} requests; use more requests (--requests), or tighter limits"
        )
    there, rate = question.cluster.n_gpus, question.rate_per_s
    more = (f"the cluster has {there} GPUs: --rate {rate:g} takes {placement.gpus}",) if placement.gpus > there else ()
    return PlacementAnswer("distserve", question.attain, placement, more)


def place_models(
    method: str,
    models: str,
    rate: float,
    cluster: Cluster,
    deployment: Deployment,
    workload: Workload,
    limits: dict[str, float],
) -> PlacementAnswer:
    """Several models on one cluster by AlpaServe or MuxServe. Raises UserError."""
    several = several_of(models, rate, cluster, deployment, workload, limits)
    grouping = search_alpaserve(several) if method == "alpaserve" else search_muxserve(several)
    placed = {name for group in grouping.groups for name in group.models}
    lacking = [model.name for model in several.models if model.name not in placed]
    without = (f"{', '.join(lacking)}: no place, so none of their requests is served",) if lacking else ()
    return PlacementAnswer(method, 1.0, grouping, without)


def several_of(
    models: str, rate: float, cluster: Cluster, deployment: Deployment, workload: Workload, limits: dict[str, float]
) -> Several:
    """`a=3,b=1` with their parts of the rate. Raises UserError."""
    names, shares = _shares(models)
    rates = tuple(rate * share / sum(shares) for share in shares)
    return Several(tuple(load_model(name) for name in names), rates, cluster, deployment, workload, limits)


def _shares(models: str) -> tuple[list[str], list[float]]:
    """`a=3,b=1` or `a,b`: names, and shares of the rate."""
    names, shares = [], []
    for part in models.split(","):
        name, equals, share = part.strip().partition("=")
        try:
            value = float(share) if equals else 1.0
        except ValueError:
            value = 0.0
        if not name or not 0.0 < value < 1e9:
            raise SpecError("MODEL", models, "write models with their shares of the rate: llama-3.1-8b=3,qwen3-32b=1")
        names.append(name)
        shares.append(value)
    if len(set(names)) < len(names):
        raise SpecError("MODEL", models, "name each model once")
    return names, shares
