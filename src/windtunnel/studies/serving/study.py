"""Questions about served models, answered: parts of a question to engines, workloads and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import LayoutError, SpecError, UserError, about_file
from windtunnel.files.bytes import path_of
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model, model_of, stored_as
from windtunnel.physics.model.checkpoint import Stored
from windtunnel.questions.asked.parts import ModelPart
from windtunnel.questions.asked.serve.listen import DrawnLengths, ServeListen, TraceLengths
from windtunnel.questions.asked.serve.parts import (
    Apart,
    Engine,
    OpenLoad,
    Replicas,
    Together,
    Trace,
    TraceTimes,
)
from windtunnel.questions.asked.serve.plan import FailingGpus, PlanMethod, ServePlan
from windtunnel.questions.asked.serve.pool import ServePool
from windtunnel.questions.asked.serve.spot import ServeSpot
from windtunnel.questions.asked.serve.study import Serve
from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import plain
from windtunnel.studies.serving.build import Engine as Priced
from windtunnel.studies.serving.build import engine_of
from windtunnel.studies.serving.comparison import Comparison, comparisons, measured_of, why_not_compared
from windtunnel.studies.serving.disaggregated.pools import Pools, pooled_runner, pools_in_words
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.goodput import Curve, goodput_of, rate_curve, rate_of
from windtunnel.studies.serving.parts import assumed, deployment_of, workload_of
from windtunnel.studies.serving.result import ServingResult, refusals
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.benchmark import read_benchmark
from windtunnel.studies.serving.workload.files import read_workload
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import format_many

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windtunnel.studies.serving.placement.answer import PlacementAnswer
    from windtunnel.studies.serving.placement.plan import ServingPlans
    from windtunnel.studies.serving.shared_pool.result import PoolResult
    from windtunnel.studies.serving.spot.study import SpotServing
    from windtunnel.studies.serving.weight_pool.study import WeightPoolResult

RUNS = 400  # plans that may be run where nobody says
ATTAIN = 0.99  # share of requests in time that a goodput has, where none is named
Run = Callable[[Workload], ServingResult]


@dataclass(frozen=True, eq=False)
class ServingAnswer(Answer):
    """A deployment under a load, or at the highest rate that keeps its limits."""

    result: ServingResult
    curve: Curve | None  # latency over rate, where it was asked for
    warnings: tuple[str, ...]
    measured: tuple[Comparison, ...] = ()  # against what is predicted

    def to_dict(self) -> Mapping[str, object]:
        """Ready for JSON."""
        document = self.result.to_dict()
        return {**document, "measured": plain(self.measured)} if self.measured else document

    @property
    def band(self) -> dict[str, object] | None:
        """Of mean TPOT."""
        low_high = self.result.tpot_band_s
        return None if low_high is None else band_entry("tpot_s.mean", *low_high)

    @property
    def provenance(self) -> dict[str, object]:
        """What prices steps."""
        return {"step times": list(self.result.sources)}


def answer(question: Serve, *, curve: bool = False, timeline: bool = False) -> ServingAnswer:
    """What a deployment does to its users. `curve`, `timeline`: worked out as well. Raises UserError."""
    bench = None if question.bench is None else read_benchmark(path_of(question.bench))
    traffic = question.requests, question.load, question.seed
    if bench is None:
        workload = workload_of(*traffic)
    else:
        with about_file(question.bench):
            workload = bench.workload(*traffic)
    run = _runner(question, timeline)
    served = _served(question, run, run(workload), workload, curve)
    figures = measured_of(question, bench)
    against = tuple(comparisons(figures, served.result))
    return replace(served, measured=against, warnings=(*served.warnings, *why_not_compared(figures, served.result)))


def answer_plan(
    question: ServePlan, *, curve: bool = False, timeline: bool = False
) -> ServingAnswer | PlacementAnswer | ServingPlans:
    """The highest rate that keeps the limits (`ServingAnswer`), or the best placement. Raises UserError."""
    load = question.load
    fewest = isinstance(question.replicas, PlanMethod) and question.replicas.method == "fewest"
    fewest = fewest or (question.replicas == Together() and isinstance(load, OpenLoad))
    if isinstance(question.gpus, FailingGpus) and not fewest:
        remedy = "spares are of the fewest GPUs for a rate: give --rate, and no layout"
        raise SpecError("mtbf_gpu", f"{question.gpus.mtbf_gpu:g} s", remedy)
    if isinstance(question.replicas, PlanMethod) and not fewest:
        return _placed(question, question.replicas.method)
    if not isinstance(question.requests, Trace) and isinstance(load, TraceTimes):
        load = OpenLoad(rate=1.0)  # the search scales it
    workload = workload_of(question.requests, load, question.seed)
    if fewest:
        return _fewest(question, workload)
    if not question.limits.seconds():
        raise UserError("goodput needs limits: add --ttft 1s, --tpot 50ms or both")
    run = _runner(question, timeline)
    result = goodput_of(run, workload, ATTAIN if question.attain is None else question.attain)
    return _served(question, run, result, workload, curve)


def _fewest(question: ServePlan, workload: Workload) -> ServingPlans:
    """Plans with the fewest GPUs (`ServingPlans`)."""
    from windtunnel.studies.serving.placement import plan
    from windtunnel.studies.serving.placement.spares import Failures

    model = load_model(question.model)
    serving_plans = plan.plan_for(
        plan.PlanQuestion(
            model,
            cluster_of(question.cluster),
            deployment_of(question.engine, None, checkpoint_of(question.model), model.max_sequence_length),
            workload,
            question.limits.seconds(),
            ATTAIN if question.attain is None else question.attain,
            question.price,
            question.replicas.runs if isinstance(question.replicas, PlanMethod) else RUNS,
        )
    )
    serving_plans = replace(
        serving_plans, warnings=(*workload.notes, *assumed(question.engine, model), *serving_plans.warnings)
    )
    if not isinstance(question.gpus, FailingGpus):
        return serving_plans
    return serving_plans.with_spares(Failures(question.gpus.mtbf_gpu, question.gpus.repair, question.gpus.available))


def _placed(question: ServePlan, method: str) -> PlacementAnswer:
    """The best placement (`PlacementAnswer`)."""
    from windtunnel.studies.serving.placement.answer import place_models, place_phases, several_of
    from windtunnel.studies.serving.placement.search import Question

    machine, limits = cluster_of(question.cluster), question.limits.seconds()
    workload = workload_of(question.requests, question.load, question.seed)
    rate = question.load.rate if isinstance(question.load, OpenLoad) else rate_of(workload)
    if method != "distserve":
        placement = place_models(
            method, question.model, rate, machine, deployment_of(question.engine), workload, limits
        )
        served = several_of(question.model, rate, machine, deployment_of(question.engine), workload, limits).models
        notes = assumed(question.engine, *served)
        return replace(placement, warnings=(*workload.notes, *notes, *placement.warnings))
    attain = ATTAIN if question.attain is None else question.attain
    model = load_model(question.model)
    deployment = deployment_of(question.engine, None, stored_as(question.model), model.max_sequence_length)
    placed = place_phases(Question(model, machine, deployment, workload, limits, attain, rate))
    return replace(placed, warnings=(*workload.notes, *assumed(question.engine, model), *placed.warnings))


def _served(
    question: Serve | ServePlan, run: Run, result: ServingResult, workload: Workload, curve: bool
) -> ServingAnswer:
    warnings = [*workload.notes, *assumed(question.engine, _model(question)), *refusals(result)]
    if result.search is not None and result.search.warning:
        warnings.append(result.search.warning)
    rates = rate_curve(run, workload, result) if curve and workload.concurrency is None else None
    return ServingAnswer(result, rates, tuple(warnings))


def _model(question: Serve | ServePlan) -> Model:
    return load_model(question.model) if isinstance(question.model, str) else model_of(question.model)


def _runner(question: Serve | ServePlan, timeline: bool) -> Run:
    """What runs a load on the deployment."""
    model = _model(question)
    machine = cluster_of(question.cluster)
    layout = question.replicas
    limits = question.limits.seconds()
    if isinstance(layout, Apart):
        words = (layout.prefill, layout.decode)
        stored = checkpoint_of(question.model)
        deployment = deployment_of(question.engine, None, stored, model.max_sequence_length)
        return pooled_runner(model, machine, deployment, words, limits, question.price)
    assert isinstance(layout, Together)
    engine = priced(model, machine, question.engine, layout, checkpoint_of(question.model))

    def run(load: Workload) -> ServingResult:
        return serve_with(
            engine,
            load,
            replicas=layout.replicas,
            router=layout.router,
            slo=limits,
            timeline=timeline,
            cost_per_gpu_hour=question.price,
        )

    return run


def answer_spot(question: ServeSpot) -> SpotServing:
    """A model on machines that come and go, under each policy (`SpotServing`). Raises UserError."""
    from windtunnel.studies.serving.spot.study import serve_on_spot

    model = model_of(question.model)
    stored = checkpoint_of(question.model)
    served = serve_on_spot(
        model,
        cluster_of(question.cluster),
        workload_of(question.requests, question.load, question.seed),
        question.machines,
        [name.strip() for name in question.policy.split(",") if name.strip()],
        deployment=deployment_of(question.engine, None, stored, model.max_sequence_length),
        notice_s=question.notice,
        usd_per_gpu_hour=question.price,
    )
    return replace(served, warnings=(*model.notes, *served.warnings))


def answer_pool(question: ServePool) -> PoolResult | WeightPoolResult:
    """Several models, on groups of machines or in a pool of weights, as the file says. Raises UserError."""
    from windtunnel.files.document import read_mapping
    from windtunnel.studies.serving.shared_pool.result import serve_pool
    from windtunnel.studies.serving.weight_pool.study import read_weight_pool, run_weight_pool

    path = Path(question.pool)
    with about_file(path):
        if "weights" in read_mapping(path, "give a pool in YAML, with `groups:` and `models:`"):
            return run_weight_pool(read_weight_pool(path))
        return serve_pool(path)


def listen(question: ServeListen, announce: Callable[[str, str], None]) -> None:
    """Answer requests of OpenAI's API at the simulated times until interrupted. Raises UserError."""
    from windtunnel.questions.header import product_version
    from windtunnel.studies.serving.emulator.listen import drawn_lengths, listen

    layout, answers = question.replicas, question.answers
    model, machine = model_of(question.model), cluster_of(question.cluster)
    engine: Priced | Pools
    if isinstance(layout, Together):
        engine = priced(model, machine, question.engine, layout, checkpoint_of(question.model))
    else:
        if layout.router == "prefix-aware" and layout.replicas > 1:
            raise SpecError(
                "router", layout.router, "looks into replicas that do both: use least-loaded or round-robin"
            )
        deployment = deployment_of(question.engine, None, checkpoint_of(question.model), model.max_sequence_length)
        engine = pools_in_words(model, machine, deployment, (layout.prefill, layout.decode))
        _check_replicas(layout.replicas, engine.gpus, f"({layout.prefill} + {layout.decode})", machine)
    if isinstance(answers, DrawnLengths):
        draw = drawn_lengths(answers.output, answers.length_ratio, answers.seed, None)
    else:
        natural = read_workload(Path(answers.workload), concurrency=1) if isinstance(answers, TraceLengths) else None
        draw = drawn_lengths(None, 1.0, 0, natural)
    listen(
        engine,
        tuple(dict.fromkeys((question.model.base or model.name, model.name))),
        question.address,
        replicas=layout.replicas,
        router=layout.router,
        speed=question.speed,
        lose=question.lose,
        draw=draw,
        most_waiting=question.max_waiting,
        record=None if question.record is None else Path(question.record),
        version=product_version(),
        announce=announce,
    )


def checkpoint_of(model: ModelPart | str) -> Stored:
    """In which formats a model that a question names is stored. Raises UserError."""
    return stored_as(model if isinstance(model, str) else model.base)


def priced(model: Model, machine: Cluster, engine: Engine, layout: Replicas, stored: Stored) -> Priced:
    """The engine of each replica, by its own prices or by measured kernels that are given. Raises UserError."""
    deployment = deployment_of(engine, layout, stored, model.max_sequence_length)
    _check_replicas(layout.replicas, deployment.gpus, deployment.words(), machine)
    if layout.kernels is None:
        return engine_of(model, machine, deployment)
    from windtunnel.studies.serving.step_time.kernel_tables import table_prices

    whose, kernels = load_engine(deployment.engine), Path(layout.kernels)
    prices = table_prices(kernels, model, deployment, machine, whose.framework, whose.release)
    return engine_of(model, machine, deployment, prices=prices, prices_from=f"given by {kernels}{prices.timed_on}")


def _check_replicas(replicas: int, gpus: int, layout: str, machine: Cluster) -> None:
    """Raises LayoutError where so many replicas, each of `gpus` GPUs, are more than a cluster has."""
    if replicas * gpus > machine.n_gpus:
        problem = (
            f"{replicas} x {layout} take {format_many(replicas * gpus, 'GPU')}, and the cluster has {machine.n_gpus}"
        )
        raise LayoutError(problem, "use fewer replicas, smaller parallel sizes or a larger --cluster")
