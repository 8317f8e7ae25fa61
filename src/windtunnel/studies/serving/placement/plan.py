"""`serve plan` for a rate: the fewest GPUs that hold the limits, together or apart, over layouts and batch limits.

    tp     powers of two inside an NVLink domain;  pp  powers of two, where a model has no room with fewer GPUs
    dp     attention ranks, of mixtures: powers of two;   ep  experts in slices, or whole ones spread over all ranks
    tokens of a step   the engine's default, and 2,048 where prompts go beside decodes

All GPUs cost the same, so the fewest are the cheapest: dollars per million output tokens follow from --price.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import plain
from windtunnel.studies.serving.build import Engine, candidate
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.disaggregated.pools import Pools, pools_of, run_pools
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.launch.manifests import Side
from windtunnel.studies.serving.placement.bounds import bounds_of
from windtunnel.studies.serving.placement.fewest import Plan, PlanRun, PlanSearch, Shape, fewest
from windtunnel.studies.serving.placement.spares import Failures, Spares, spares_of
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import format_many

SMALL_STEP = 2048
SHOWN = 10  # plans of an answer


@dataclass(frozen=True, eq=False)
class PlanQuestion:
    """What a plan is sought for."""

    model: Model
    cluster: Cluster
    deployment: Deployment
    workload: Workload
    limits: Mapping[str, float]
    attain: float
    price: float | None
    runs: int
    priced: dict[Deployment, Engine] = field(default_factory=dict, repr=False)  # sides of pools, as they are asked for


@dataclass(frozen=True, eq=False)
class ServingPlans(Answer):
    """Plans that hold, best first."""

    question: PlanQuestion
    search: PlanSearch[ServingResult]
    deployments: Mapping[str, Deployment]  # by the name of a shape
    warnings: tuple[str, ...]
    spares: Mapping[Plan, Spares] | None = None  # of each, where GPUs fail

    def with_spares(self, failures: Failures) -> ServingPlans:
        """The same plans, those first that have the fewest GPUs with their spares. Raises UserError."""
        spares = {plan.plan: spares_of(plan.plan, failures) for plan in self.search.plans}
        order = sorted(self.search.plans, key=lambda plan: plan.plan.gpus + spares[plan.plan].gpus)
        warnings = list(self.warnings)
        whole = order[0].plan.gpus + spares[order[0].plan].gpus
        if whole > self.question.cluster.n_gpus:
            warnings.append(
                f"with its spares the plan takes {whole:,} GPUs, and the cluster has {self.question.cluster.n_gpus:,}"
            )
        return replace(self, search=replace(self.search, plans=tuple(order)), warnings=tuple(warnings), spares=spares)

    @property
    def provenance(self) -> dict[str, object]:
        """What prices steps."""
        return {"step times": list(self.search.plans[0].outcome.sources)}

    def sides(self) -> list[Side]:
        """The workers of the best plan."""
        plan = self.search.plans[0].plan
        both = [("prefill", plan.prefill, plan.n_prefill), ("decode", plan.shape, plan.n)]
        if plan.prefill is None:
            both = [("", plan.shape, plan.n)]
        return [Side(role, self.deployments[shape.name], n) for role, shape, n in both if shape is not None]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "plans": [self._document(plan) for plan in self.search.plans[:SHOWN]],
            "runs": self.search.runs,
            "ruled_out_below_gpus": self.search.ruled_out_below,
            "proved": self.search.gap == 0.0,
        }

    def _document(self, plan: PlanRun[ServingResult]) -> dict[str, object]:
        best, result = min(every.plan.gpus for every in self.search.plans), plan.outcome
        spares = {} if self.spares is None else {"spares": plain(self.spares[plan.plan])}
        return {
            "gpus": plan.plan.gpus,
            "layout": plan.plan.words,
            "cost_per_million_tokens": result.cost_per_million_tokens,
            "attainment": result.slo_attainment,
            "ttft_p99_s": result.ttft.p99 if result.ttft else None,
            "tpot_p99_s": result.tpot.p99 if result.tpot else None,
            "output_tokens_per_s": result.output_tokens_per_s,
            "gap": self.search.gap
            if plan.plan.gpus == best
            else (plan.plan.gpus - self.search.ruled_out_below) / plan.plan.gpus,
            **spares,
        }


def plan_for(sought: PlanQuestion) -> ServingPlans:
    """Search. Raises UserError where limits are missing or nothing holds them."""
    if not sought.limits:
        raise UserError("a plan needs limits: add --ttft 1s, --tpot 50ms or both")
    if sought.workload.arrival_ns is None:
        raise SpecError("concurrency", sought.workload.concurrency, "a plan is for a rate: use an open loop")
    engines: dict[str, Engine] = {}
    priced: dict[Deployment, Engine] = {}
    for deployment in deployments_of(sought):
        if (engine := _engine(sought, deployment)) is not None:
            alike = priced.setdefault(replace(deployment, max_num_batched_tokens=None), engine)
            engines[name_of(deployment)] = replace(engine, times=alike.times)  # a step's budget changes no price
    shapes = []
    for name, engine in engines.items():
        both, prefills, decodes = bounds_of(engine, sought.workload, sought.limits, sought.attain)
        if engine.deployment.max_num_batched_tokens != sought.deployment.max_num_batched_tokens:
            prefills = decodes = None  # pools apart are started alike
        if prefills is not None and sought.cluster.n_gpus > engine.gpus:
            prefills = _prefills(sought, engine, prefills)
        shapes.append(Shape(name, engine.gpus, both, prefills, decodes))
    apart = sought.cluster.n_gpus > 1

    def run(plan: Plan) -> PlanRun[ServingResult]:
        return ran(sought, engines, plan)

    plans = fewest(shapes, sought.cluster.n_gpus, run, apart=apart, runs=sought.runs)
    if plans is None:
        least = min((shape.gpus * shape.least for shape in shapes if shape.least), default=None)
        most = sought.cluster.n_gpus
        problem = f"no layout can hold the limits on {format_many(most, 'GPU')}"
        if least is not None:
            problem = f"none of the plans that were run, from {least} to {format_many(most, 'GPU')}, holds the limits"
        raise UserError(f"{problem}: use more GPUs, other limits, or more --runs")
    warnings = () if plans.gap == 0.0 else (f"not proved: {sought.runs} runs left plans with fewer GPUs open (--runs)",)
    return ServingPlans(sought, plans, {name: engine.deployment for name, engine in engines.items()}, warnings)


def _prefills(sought: PlanQuestion, engine: Engine, least: int) -> int | None:
    """The fewest prefill workers whose first tokens are in time where caches move at once; None: too many."""
    limit = sought.limits.get("ttft_s")
    if limit is None:
        return least
    engine = replace(engine, rules=replace(engine.rules, reserve="prompt", lag=False))
    prompts = replace(sought.workload, output_tokens=np.ones_like(sought.workload.output_tokens))
    most = (sought.cluster.n_gpus - 1) // engine.gpus

    def holds(n: int) -> bool:
        result = serve_with(engine, prompts, replicas=n, slo={"ttft_s": limit})
        return (result.slo_attainment or 0.0) >= sought.attain

    low, n = least - 1, least
    while n <= most and not holds(n):
        low, n = n, min(2 * n, most) if n < most else most + 1
    if n > most:
        return None
    while n - low > 1:
        middle = (low + n) // 2
        low, n = (low, middle) if holds(middle) else (middle, n)
    return n


def deployments_of(sought: PlanQuestion) -> Iterator[Deployment]:
    """The space of one replica."""
    cluster, base, model = sought.cluster, sought.deployment, sought.model
    domain = min(cluster.gpus_in_domain, cluster.n_gpus)
    routed = any(layer.feed_forward.kind == "moe" for layer in model.layers)
    profile = load_engine(base.engine).on(cluster.gpu)
    budgets = [base.max_num_batched_tokens]
    if budgets == [None] and profile.batching == "mixed" and profile.max_num_batched_tokens > SMALL_STEP:
        budgets.append(SMALL_STEP)
    for tp in _powers(domain):
        for pp in _powers(cluster.n_gpus // tp):
            if pp > 1 and _fits(sought, replace(base, tp=tp, pp=pp // 2, attn_dp=1, moe_tp=None, moe_ep=None)):
                break  # more stages make no answer faster
            for dp in _powers(domain // tp) if routed and pp == 1 else (1,):
                spread = {tp * dp} | ({1} if dp == 1 else set()) if routed else {None}
                for ep in sorted(spread, key=lambda number: number or 0):
                    for budget in budgets:
                        yield replace(
                            base, tp=tp, pp=pp, attn_dp=dp, moe_tp=None, moe_ep=ep, max_num_batched_tokens=budget
                        )


def name_of(deployment: Deployment) -> str:
    """tp4, tp2ep2, dp8ep8, each with its tokens of a step where they are not the engine's default."""
    sizes = (("tp", deployment.tp), ("pp", deployment.pp), ("dp", deployment.attn_dp), ("ep", deployment.moe_ep or 1))
    words = "".join(f"{name}{size}" for name, size in sizes if size > 1) or "tp1"
    return words if deployment.max_num_batched_tokens is None else f"{words}@{deployment.max_num_batched_tokens}"


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(max(1, most).bit_length())]


def _fits(sought: PlanQuestion, deployment: Deployment) -> bool:
    return _engine(sought, deployment) is not None


def _engine(sought: PlanQuestion, deployment: Deployment) -> Engine | None:
    return candidate(sought.model, sought.cluster, deployment)


def ran(sought: PlanQuestion, engines: Mapping[str, Engine], plan: Plan) -> PlanRun[ServingResult]:
    """A plan simulated, and whether it holds the limits."""
    engine, slo = engines[plan.shape.name], dict(sought.limits)
    if plan.prefill is None:
        result = serve_with(engine, sought.workload, replicas=plan.n, slo=slo, cost_per_gpu_hour=sought.price)
    else:
        pools = pools_for(sought, engines[plan.prefill.name].deployment, engine.deployment, plan)
        if pools is None:
            result = serve_with(engine, sought.workload, replicas=1, slo=slo)
            return PlanRun(plan, False, (0.0,), result)
        result = run_pools(pools, sought.cluster, sought.workload, slo, sought.price)
    attained = result.slo_attainment or 0.0
    holds = attained >= sought.attain and result.regime != "over" and result.feasible
    mean = result.e2e.mean if result.e2e is not None else 0.0
    return PlanRun(plan, holds, (-attained, mean), result)


def pools_for(sought: PlanQuestion, prefill: Deployment, decode: Deployment, plan: Plan) -> Pools | None:
    """The pools of a plan; None where the sides do not go together."""
    try:
        pools = pools_of(sought.model, sought.cluster, (plan.n_prefill, prefill), (plan.n, decode), sought.priced)
    except (LayoutError, SpecError):
        return None
    return pools if pools.fits else None
