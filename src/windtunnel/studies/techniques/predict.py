"""A step with techniques: predicted without them, rewritten, predicted again.

What is a change of the model or of the plan (overlaps, features) is predicted by `training` both ways. What changes
tasks inside a step is played on the flat step both ways, and the prediction changes by the ratio of the two; so what
`training` knows and the flat list leaves out (bubbles, stragglers, the host) stays in. However techniques are given,
they are applied in the order of `named.TECHNIQUES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.step.result import Result, TechniqueGain
from windtunnel.questions import read
from windtunnel.questions.asked.parts.scenario import CALM, Parts, Scenario, with_parts
from windtunnel.questions.typed import texts
from windtunnel.studies.techniques.answer import with_technique
from windtunnel.studies.techniques.collective_partitioning import price as partitioning
from windtunnel.studies.techniques.flat import FlatStep, lower_flat
from windtunnel.studies.techniques.local_sgd import price as averaging
from windtunnel.studies.techniques.megascale import features as megascale
from windtunnel.studies.techniques.offload.price import price_offload
from windtunnel.studies.techniques.parameters import LinaPlan, PartitionPlan
from windtunnel.studies.techniques.priced import MemoryShares, TimelinePicture
from windtunnel.studies.techniques.prioritised_all_to_all import price as lina
from windtunnel.studies.techniques.registry import TECHNIQUES, Technique, legal, parse_technique
from windtunnel.studies.techniques.sparse_gradients import price as sparse
from windtunnel.studies.training import Plan, predict, read_plan
from windtunnel.units import format_bytes


@dataclass(eq=False)
class _Work:
    """The job as it is being rewritten."""

    model: Model
    cluster: Cluster
    plan: Plan
    scenario: Scenario
    parameters: dict[str, dict[str, object]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    flat: FlatStep | None = None  # rewritten so far
    extra_s: float = 0.0  # beside the flat step
    partitioned: PartitionPlan | None = None  # as asked, once `flat` is rewritten by it
    on_device: MemoryShares | None = None
    packed: Result | None = None  # with experts packed, whose memory is the job's
    factor: float = 1.0  # of the step, of what has a timeline of its own
    pictures: tuple[TimelinePicture, TimelinePicture] | None = None

    def predicted(self) -> Result:
        """Of model and plan as they are now."""
        return predict(self.model, self.cluster, self.plan, scenario=self.scenario)

    def lowered(self) -> FlatStep:
        """The flat step of model and plan as they are now."""
        return lower_flat(self.model, self.cluster, self.plan, self.scenario)


def predict_with(
    model: Model | str | Path, cluster: Cluster | str | Path, plan: Plan | str | Path | Mapping[str, object],
    techniques: Sequence[str], *, scenario: Scenario = CALM, **parts: Unpack[Parts],
) -> Result:  # fmt: skip
    """The step with `techniques` (`NAME[:key=value,...]` each), and what they gain (`Result.technique`).

    `scenario` or its parts: as `training.predict` takes them. Raises UserError on a technique, parameter or pair that
    cannot be.
    """
    result, _ = explained(
        model if isinstance(model, Model) else load_model(model),
        cluster if isinstance(cluster, Cluster) else parse_cluster(cluster),
        read_plan(plan),
        texts("techniques", techniques),
        with_parts(scenario, parts),
    )
    return result


def gains(
    model: Model | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan | str | Path | Mapping[str, object],
    scenario: Scenario = CALM,
) -> dict[str, TechniqueGain | str]:
    """What each technique brings to a plan, with its defaults; where it does not apply, the reason."""
    gain_of: dict[str, TechniqueGain | str] = {}
    for technique in TECHNIQUES:
        try:
            gain = predict_with(model, cluster, plan, [technique.name], scenario=scenario).technique
        except UserError as error:
            gain_of[technique.name] = str(error)
            continue
        assert gain is not None, "asked for"
        gain_of[technique.name] = gain
    return gain_of


def explained(
    model: Model, cluster: Cluster, plan: Plan, techniques: Sequence[str], scenario: Scenario = CALM
) -> tuple[Result, tuple[TimelinePicture, TimelinePicture] | None]:
    """As `predict_with`, with the timelines without and with the techniques where one rank's tasks are rewritten."""
    chosen = [parse_technique(text) for text in techniques]
    legal([technique for technique, _ in chosen])
    for name in ("lora_rank", "images", "clips"):
        if getattr(plan, name):
            remedy = "techniques rewrite training of all of a text model's weights: leave it out"
            raise SpecError(name, getattr(plan, name), remedy)
    order = {technique.name: number for number, technique in enumerate(TECHNIQUES)}
    chosen.sort(key=lambda pair: order[pair[0].name])
    names = [technique.name for technique, _ in chosen]
    for technique, parameters in chosen:
        if technique.name == "megascale":
            plan = megascale.without_features(plan, parameters.chosen())
    work = _Work(model, cluster, plan, scenario)
    first = work.predicted()
    for technique, parameters in chosen:
        _plan_level(work, technique, parameters, first)
    changed = work.plan is not plan or work.model is not model
    last = work.predicted() if changed else first
    bare: FlatStep | None = None
    for technique, parameters in chosen:
        if technique.name == "megascale":
            continue
        if bare is None:
            bare = work.flat = work.lowered()
        _task_level(work, technique, parameters, last)
    seconds = last.step_time_s * work.factor
    if bare is not None and work.flat is not bare:
        assert work.flat is not None, "rewritten from what was lowered"
        before, after = bare.seconds(), work.flat.seconds() + work.extra_s
        seconds = last.step_time_s * after / before
        work.pictures = (_picture(bare), _picture(work.flat))
    if work.packed is not None:
        heavier = work.packed
        last = replace(last, status=heavier.status, infeasible=heavier.infeasible, memory=heavier.memory)
    if bare is not None:
        work.notes.append("timelines (--trace, --report) and bytes sent are of the step before its tasks are rewritten")
    # Per token, where a technique changes how many a step has.
    without = first.step_time_s * last.tokens_per_step / first.tokens_per_step
    if last.tokens_per_step != first.tokens_per_step:
        work.notes.append("step times are of the larger batch's tokens")
    needed, capacity = first.peak_memory.device_bytes, first.capacity_of(first.peak_memory)
    if first.status == "infeasible" and needed > capacity:
        work.notes.append(f"the step without does not fit: {format_bytes(needed)} of {format_bytes(capacity)}")
    one_only = len(names) == 1
    sparse_figures = work.details.get("sparse_gradients", {}) if one_only else {}
    if sparse_figures and seconds > without and chosen[0][1].ratio < sparse_figures["break_even_ratio"]:
        work.notes.append(
            "break_even_ratio is of the exchange alone: where the backward pass hides that, choosing only costs"
        )
    gain = TechniqueGain(
        name="+".join(names),
        step_time_without_s=without,
        step_time_with_s=seconds,
        gain=without / seconds,
        parameters=work.parameters[names[0]] if one_only else work.parameters,
        details=work.details.get(names[0], {}) if one_only else work.details,
        notes=tuple(work.notes),
    )
    question = replace(read(first.question), technique=tuple(techniques))
    return with_technique(last, gain, seconds, work.on_device, question), work.pictures


def _plan_level(work: _Work, technique: Technique, parameters: Any, first: Result) -> None:
    if technique.name == "megascale":
        last, ratios = first, {}
        for name in parameters.chosen():
            work.model, work.plan = megascale.with_feature(work.model, work.plan, name, parameters)
            now = work.predicted()
            ratios[name] = now.tokens_per_s / last.tokens_per_s
            last = now
        work.parameters[technique.name] = {**asdict(parameters), "features": "+".join(parameters.chosen())}
        work.details[technique.name] = ratios
    elif technique.name == "collective_partitioning" and parameters.overlap:
        before, plan = work.predicted(), work.plan
        work.plan = partitioning.overlapped(plan)
        if work.predicted().step_time_ns >= before.step_time_ns:
            work.plan = plan


def _task_level(work: _Work, technique: Technique, parameters: Any, last: Result) -> None:
    step = work.flat
    assert step is not None, "lowered before"
    if technique.name == "offload":
        priced = price_offload(step, last, parameters)
        work.factor, work.on_device = priced.with_s / priced.without_s, priced.on_device
        work.parameters[technique.name], work.details[technique.name] = dict(priced.parameters), dict(priced.details)
        work.pictures = (priced.before, priced.after)
    elif technique.name == "collective_partitioning":
        work.flat, chosen = partitioning.rewrite(step, parameters)
        work.partitioned = parameters
        work.parameters[technique.name] = asdict(chosen)
        work.details[technique.name] = {
            "overlaps": work.plan.overlap_tp is True or work.plan.overlap_grad_reduce is True
        }
    elif technique.name == "prioritised_all_to_all":
        _lina(work, step, parameters)
    elif technique.name == "sparse_gradients":
        _needs_replicas(step, technique.name)
        work.flat = sparse.rewrite(step, parameters)
        work.parameters[technique.name] = {key: value for key, value in asdict(parameters).items() if value is not None}
        work.details[technique.name] = {
            "reduced_bytes_without": _bytes(step), "reduced_bytes_with": _bytes(work.flat),
            "break_even_ratio": sparse.break_even_ratio(step, parameters),
        }  # fmt: skip
    elif technique.name == "local_sgd":
        _needs_replicas(step, technique.name)
        work.flat = averaging.rewrite(step)
        work.extra_s = averaging.averaging_s(step) / parameters.local_steps
        work.parameters[technique.name] = asdict(parameters)
        work.details[technique.name] = {"averaging_s": averaging.averaging_s(step)}


def _lina(work: _Work, step: FlatStep, parameters: LinaPlan) -> None:
    """Each packing that fits is lowered and rewritten; the shortest step is kept, the identity among them."""
    lina.checked(step, parameters)
    ep = work.plan.ep
    wanted = [p for p in range(1, ep + 1) if ep % p == 0] if parameters.packing is None else [parameters.packing]
    steps: dict[int, FlatStep] = {}
    partitions: dict[int, PartitionPlan] = {}
    for p in wanted:
        steps[p] = step
        if p > 1:  # lowered anew, and partitioned anew where the step was
            steps[p] = _packed(work, ep // p).lowered()
            if work.partitioned is not None:
                steps[p], partitions[p] = partitioning.rewrite(steps[p], work.partitioned)
    candidates: list[tuple[float, FlatStep, int, int]] = []
    for p, base in steps.items():
        if p > 1 and parameters.packing is None and _too_large(work, ep // p):
            work.notes.append(f"packing {p} does not fit in device memory")
            continue
        flat_step, pieces = lina.rewrite(base, parameters)
        candidates.append((flat_step.seconds(), flat_step, p, pieces))
    _, work.flat, p, pieces = min(candidates, key=lambda candidate: candidate[0])
    if p > 1:
        work.packed = _packed(work, ep // p).predicted()
    if p in partitions:
        work.parameters["collective_partitioning"] = asdict(partitions[p])
    before, after = lina.figures(step), lina.figures(work.flat)
    work.parameters["prioritised_all_to_all"] = {**asdict(parameters), "packing": p, "pieces": pieces}
    details: dict[str, object] = {f"{name}_without": value for name, value in before.items()}
    details |= {f"{name}_with": value for name, value in after.items()}
    if after["all_to_all_backward_s"]:
        details["all_to_all_backward_gain"] = before["all_to_all_backward_s"] / after["all_to_all_backward_s"]
    if parameters.packing is None:
        details["packing_by_rule"] = lina.packing_by_rule(steps)
    work.details["prioritised_all_to_all"] = details


def _packed(work: _Work, ep: int) -> _Work:
    return replace(work, plan=work.plan.with_fields({"ep": ep}))


def _too_large(work: _Work, ep: int) -> bool:
    return _packed(work, ep).predicted().status == "infeasible" and work.predicted().status == "ok"


def _bytes(step: FlatStep) -> float:
    return sum(task.bytes_total for task in step.one_batch if task.role == "reduce")


def _needs_replicas(step: FlatStep, name: str) -> None:
    if not any(task.role == "reduce" for task in step.one_batch):
        raise LayoutError(f"{name} with dp {step.layout.dp}: no gradients are reduced", "use more replicas")


def _picture(step: FlatStep) -> TimelinePicture:
    return TimelinePicture(step.one_batch, step.play(), step.lanes)
