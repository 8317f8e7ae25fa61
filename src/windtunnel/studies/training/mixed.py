"""One training step on GPUs of several types, where every replica or every pipeline stage lies on one type.

Replicas run the same program on as many tokens and meet in collectives over gradients and parameters. Those of the
slower type come last to each, and the others wait for them: so the step is what it is on a cluster where all GPUs are
of the slower type, on the slowest network of all. That is exact where the same type is last at every meeting; where one
type is last at some and another at others it is too short.

Stages follow the types in the order in which they are named. What a stage computes, and what its replicas send each
other, has the prices of its type and of that type's network; a send from one type to the next takes as long as on the
slower network (`lowering/by_stage.py`). Nothing else is taken together.

Memory is each type's own. Where both ways are open the faster one that fits is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.errors import LayoutError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.mixed import MixedCluster, parse_mixed
from windtunnel.physics.model import Model
from windtunnel.physics.step.result import Result, StageMemory
from windtunnel.questions import plain
from windtunnel.questions.asked.parts.scenario import CALM
from windtunnel.questions.words import command
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.by_stage import Pieces, simulate_by_stage
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.simulated import Simulated
from windtunnel.studies.training.memory.peak import memory_of, ranks_peak_bytes
from windtunnel.studies.training.plan import PEAK_DTYPE, Plan
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.question import question_by
from windtunnel.studies.training.schedules import TRAITS

Predict = Callable[[Model, Cluster, Plan], Result]
ByStage = Callable[[Model, MixedCluster, Plan], tuple[Result, int]]  # and the type whose memory is told


@dataclass(frozen=True, eq=False)
class Staged:
    """A step whose stages lie on several types. `layouts`, `pricers`, `pieces`: as if all GPUs were of each type."""

    layouts: tuple[Layout, ...]
    pricers: tuple[Pricer, ...]
    pieces: tuple[Pieces, ...]
    type_of: tuple[int, ...]  # each pipeline rank's type
    simulated: Simulated

    def memory(self) -> tuple[StageMemory, ...]:
        """Of each pipeline rank, on its own type."""
        step, end_ns = self.simulated.step, self.simulated.timeline.end_ns
        stage_memories: list[StageMemory] = []
        for number, (layout, pieces) in enumerate(zip(self.layouts, self.pieces, strict=True)):
            here = [rank for rank, type_number in enumerate(self.type_of) if type_number == number]
            usable, needs = layout.cluster.gpu.usable_memory_bytes, ranks_peak_bytes(layout, pieces, step.schedule)
            for stage_memory in memory_of(layout, pieces, step, end_ns, here):
                # A rank that fits is told as it is, whatever the others of its type would need.
                fits = needs[stage_memory.stage] <= usable
                own = (
                    replace(stage_memory, device_bytes=needs[stage_memory.stage], gives_back=False)
                    if fits
                    else stage_memory
                )
                stage_memories.append(replace(own, capacity_bytes=usable))
        return tuple(sorted(stage_memories, key=lambda stage_memory: stage_memory.stage))


def staged(model: Model, cluster: MixedCluster, plan: Plan) -> Staged:
    """The step of a plan whose stages follow the types. Raises LayoutError where a stage would lie on two types."""
    layouts = tuple(resolve(model, uniform, plan) for uniform in cluster.clusters_on_own_network())
    type_of = stages_of(layouts[0], cluster)
    layout = layouts[0]
    chosen = layout.schedule_table()
    pricers, pieces = tuple(map(Pricer, layouts)), tuple(map(pieces_of, layouts))
    return Staged(layouts, pricers, pieces, type_of, simulate_by_stage(pricers, pieces, chosen, type_of))


def of_all_types(
    model: Model,
    cluster: MixedCluster,
    plan: Plan,
    predict: Predict,
    by_stage: ByStage,
    inputs: tuple[object, object],
) -> Result:
    """The faster of what replicas and stages on one type each give. Raises LayoutError where neither can be.

    `inputs`: model and cluster as they were given, for the command that asks again.
    """
    layout = resolve(model, cluster.clusters_on_slowest_network()[0], plan)
    results, refusals = [], []
    ways: tuple[tuple[Callable[[Layout, MixedCluster], object], Callable[[], Result]], ...] = (
        (check_lies_on_one, lambda: _by_replica(model, cluster, plan, predict)),
        (stages_of, lambda: _by_stage(model, cluster, plan, by_stage)),
    )
    for check_placed, placed in ways:
        try:
            check_placed(layout, cluster)
        except LayoutError as error:
            refusals.append(error)
        else:
            results.append(placed())
    if not results:
        raise refusals[0]
    best = min(results, key=lambda result: (result.status != "ok", result.step_time_ns))
    question = question_by(model, layout.cluster, plan, CALM, (inputs[0], _as_named(inputs[1], cluster)))
    spec = {**best.spec, "mixed": [part.summary_dict() for part in cluster.parts]}
    return replace(best, spec=spec, reproduce=command(question), question=plain(question))


def _as_named(original: object, cluster: MixedCluster) -> str | Path:
    """As it was given; else by its name, or as a file that holds what has no name."""
    if isinstance(original, str | Path):
        return original
    return cluster.name if parse_mixed(cluster.name) == cluster else Path("cluster.yaml")


def _by_replica(model: Model, cluster: MixedCluster, plan: Plan, predict: Predict) -> Result:
    alike = cluster.clusters_on_slowest_network()
    results = [predict(model, uniform, plan) for uniform in alike]
    last = max(results, key=lambda result: result.step_time_ns)
    lacking = [result for result in results if result.status != "ok"]
    shown = max(lacking, key=lambda result: result.peak_memory.device_bytes) if lacking else last
    times = ", ".join(
        f"{part.gpu.name} {result.step_time_s:.4g} s" for part, result in zip(cluster.parts, results, strict=True)
    )
    warning = f"mixed GPU types ({times} each alone): the step is that of the slowest"
    # Who is late in the worst case may be another type than who is late as a rule.
    warnings = dict.fromkeys(word for result in (shown, *results) for word in result.warnings)
    late = max(result.step_time_p95_ns for result in (shown, *(() if lacking else results)))
    result = replace(shown, warnings=tuple(warnings), step_time_p95_ns=late)
    return _of_both(result, cluster, alike[results.index(shown)], plan, warning)


def _by_stage(model: Model, cluster: MixedCluster, plan: Plan, by_stage: ByStage) -> Result:
    shown, fullest = by_stage(model, cluster, plan)
    own = cluster.clusters_on_own_network()[fullest]
    type_of = stages_of(resolve(model, own, plan), cluster)
    counts = ", ".join(f"{type_of.count(number)} on {part.gpu.name}" for number, part in enumerate(cluster.parts))
    return _of_both(shown, cluster, own, plan, f"mixed GPU types: pipeline stages, {counts}")


def _of_both(shown: Result, cluster: MixedCluster, uniform: Cluster, plan: Plan, warning: str) -> Result:
    """A result as on `uniform`, with shares of the peak and of the rated power of all GPUs together."""
    dtype = PEAK_DTYPE.get(plan.precision, plan.precision)
    peak = sum(part.n_gpus * part.gpu.peak_flops(dtype) for part in cluster.parts)
    share = cluster.n_gpus * uniform.gpu.peak_flops(dtype) / peak
    rated = sum(part.n_gpus * part.gpu.tdp_w for part in cluster.parts) / (cluster.n_gpus * uniform.gpu.tdp_w)
    watts = {name: getattr(shown, name) * rated for name in ("gpu_watts", "gpu_watts_p5", "gpu_watts_p95")}
    return replace(
        shown,
        **watts,
        mfu=shown.mfu * share,
        hfu=shown.hfu * share,
        mfu_convention=f"{shown.mfu_convention}, of all types together",
        warnings=(*shown.warnings, warning),
    )


def check_lies_on_one(layout: Layout, cluster: MixedCluster) -> None:
    """Raise LayoutError where a replica or a group of experts would lie on two types."""
    plan = layout.plan
    for what, block in (
        ("a replica", plan.tp * plan.cp * plan.pp),
        ("a group of experts", plan.ep * layout.etp * plan.pp),
    ):
        for part in cluster.parts:
            if part.n_gpus % block:
                raise LayoutError(
                    f"{what} of {block} GPUs does not divide the {part.n_gpus} {part.gpu.name}, so one would lie on two"
                    " types",
                    "use degrees that divide the GPUs of each type",
                )


def stages_of(layout: Layout, cluster: MixedCluster) -> tuple[int, ...]:
    """The type of each pipeline rank, in the order in which types are named.

    Raises LayoutError where a stage, or a piece of the model that two ranks hold, would lie on two types.
    """
    stages, block = layout.plan.pp, layout.cluster.n_gpus // layout.plan.pp
    types: list[int] = []
    for number, part in enumerate(cluster.parts):
        if stages == 1 or part.n_gpus % block:
            raise LayoutError(
                f"a pipeline stage of {block} GPUs does not divide the {part.n_gpus} {part.gpu.name}, so one would lie"
                " on two types",
                "use a pipeline whose stages divide the GPUs of each type",
            )
        types += [number] * (part.n_gpus // block)
    if TRAITS[layout.schedule].both_ways:
        raise LayoutError(f"{layout.schedule} holds each stage twice, so on two types", "use another schedule")
    if any(part.gpu.generation == "cpu" for part in cluster.parts):
        raise LayoutError("stages on CPUs and GPUs together are not predicted", "use GPUs")
    return tuple(types)
