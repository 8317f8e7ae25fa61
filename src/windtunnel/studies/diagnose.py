"""The answer to `diagnose`: what was measured against what is predicted, where the difference lies, what to change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from windtunnel.errors import SpecError, UserError
from windtunnel.files.document import to_yaml
from windtunnel.physics.step.result import Result
from windtunnel.physics.step.result_of import STRAGGLING
from windtunnel.questions.asked.diagnose import LOGS, Diagnose
from windtunnel.questions.asked.parts.plan import Plan, open_plan
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.header import Answer, Verdict, band_entry, verdict_of
from windtunnel.questions.reading import plain_part
from windtunnel.studies.measured_run import MeasuredRun, Steady, read_run, steady_of
from windtunnel.studies.measured_run.against import ClassTime, classes_against, mean_classes, predicted_classes
from windtunnel.studies.measured_run.causes import PAUSES, Cause, Evidence, causes_of, length_s
from windtunnel.studies.measured_run.run import FEW
from windtunnel.studies.measured_run.traced import read_traced
from windtunnel.studies.planning.advice.proposals import Proposal, launch_of, proposals
from windtunnel.studies.predict import answer_at_first, logged_plan, of_launch_file
from windtunnel.studies.traces.by_class import StepTime
from windtunnel.studies.training.launch.megatron import log as megatron_log
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.question import cluster_of, model_of
from windtunnel.units import format_bytes, format_percent, format_time

MEMORY_DIFFERS = 0.1  # of the predicted peak, from which on a measured one is told


@dataclass(frozen=True, slots=True)
class Diagnosis(Answer):
    """Seconds of a step as measured and as predicted; what explains the difference, and what would make it shorter."""

    measured_step_s: float
    predicted_step_s: float
    predicted_p5_s: float
    predicted_p95_s: float
    verdict: Verdict
    sentence: str
    measured_mfu: float
    predicted_mfu: float
    causes: tuple[Cause, ...]
    not_explained_s: float  # of the gap; below zero where causes make up more than it
    advice: tuple[Proposal, ...]
    classes: tuple[ClassTime, ...]  # of a trace; empty without one
    steady: Steady | None
    log_format: str
    notes: tuple[str, ...]
    not_understood: tuple[str, ...]
    result: Result = field(repr=False)
    JSON_LEAVES_OUT = ("result",)

    @property
    def band(self) -> Mapping[str, object]:
        """Of the prediction."""
        return band_entry("predicted_step_s", self.predicted_p5_s, self.predicted_p95_s)

    @property
    def provenance(self) -> Mapping[str, object]:
        """Of the prediction."""
        return dict(self.result.provenance)

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Of the prediction, and of what was read."""
        return (*self.result.warnings, *self.notes)

    def anchor(self, *, as_json: bool = False) -> str:
        """The run as an anchor file, in YAML or JSON."""
        data: dict[str, object] = {"step_time": f"{self.measured_step_s!r}s"}
        if self.steady is not None:
            data |= {"spread": round(self.steady.spread, 4), "lines": self.steady.lines}
        question = {name: value for name, value in self.result.question.items() if name != "anchor"}
        data["question"] = question
        return json.dumps(data, indent=2) if as_json else to_yaml(data)


def answer(question: Diagnose, notes: tuple[str, ...] = ()) -> Diagnosis:
    """The diagnosis. Raises UserError."""
    logs = question.log or _own_log(question)
    run = read_run(logs) if logs else None
    predict = predict_of(question, run)
    result, advised = answer_at_first(predict, notes)
    model, cluster = model_of(predict.model, result.n_gpus), cluster_of(predict.cluster)
    if run is not None:
        _check_same_work(run, result, question)
    sequences = result.spec["plan"]["global_batch"]
    if run is not None:
        run = run.with_seconds(float(result.tokens_per_step), sequences, result.n_gpus)
    traced = read_traced(question.trace) if question.trace else {}
    step_s, steady, remarks = _measured(question, run, traced)
    if result.mfu * result.step_time_s > step_s:
        remarks.append("more than 100 % of the GPUs' peak: is the unit right, and is it this job that was measured?")
    over, said_of_memory = _memory(run, result)
    differs, said_of_plan = ([], []) if run is None else _differs(predict, result, run)
    well = read_traced(question.healthy) if question.healthy else {}
    if well and not traced:
        raise UserError("--healthy is held against a trace of the job as it is now: give --trace FILE too")
    if well:
        remarks.append(f"causes are told against the healthy run, whose step takes {format_time(length_s(well))}")
    expected = mean_classes(well) if well else predicted_classes(result)
    waits_s = result.breakdown_ns.get(STRAGGLING, 0) / 1e9
    evidence = Evidence(step_s, expected, traced, run, steady, result.memory_capacity_bytes, waits_s, differs, well)
    causes = causes_of(evidence)
    verdict = verdict_of(step_s, result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9)
    gap = step_s - result.step_time_s
    explained = sum(cause.seconds for cause in causes if cause.cause != PAUSES)  # which are on top of the steady step
    launch = question.launch or launch_of(question.model.base)
    plan = predict.plan
    assert isinstance(plan, Plan)  # the question has one
    return Diagnosis(
        measured_step_s=step_s,
        predicted_step_s=result.step_time_s,
        predicted_p5_s=result.step_time_p5_ns / 1e9,
        predicted_p95_s=result.step_time_p95_ns / 1e9,
        verdict=verdict,
        sentence=_sentence(step_s, result, verdict, causes, differs),
        measured_mfu=result.mfu * result.step_time_s / step_s,
        predicted_mfu=result.mfu,
        causes=causes,
        not_explained_s=gap - explained,
        advice=proposals(_within(advised(), over), model, cluster, plan, launch),
        classes=classes_against(result, traced) if traced else (),
        steady=steady,
        log_format="" if run is None else run.format,
        notes=(*remarks, *said_of_memory, *said_of_plan, *(() if run is None else run.notes)),
        not_understood=() if run is None else run.not_understood,
        result=result,
    )


def _own_log(question: Diagnose) -> tuple[str, ...]:
    """The log that the plan was read from: it is what was measured too, where nothing else is given."""
    word = question.model.base
    is_log = question.measured is None and not question.trace and word.lower().endswith(LOGS)
    return (word,) if is_log and os.path.isfile(word) else ()


def _check_same_work(run: MeasuredRun, result: Result, question: Diagnose) -> None:
    """Refuse a log of another amount of work than was asked: no step of one can be held against one of the other."""
    if run.n_gpus is not None and run.n_gpus != result.n_gpus:
        kind = (question.cluster.base or "h100-sxm").partition(":")[0]
        remedy = f"{run.source} is of a job on {run.n_gpus:,} GPUs: give --cluster {kind}:{run.n_gpus}"
        raise SpecError("--cluster", question.cluster.base, remedy)
    plan = result.spec["plan"]
    length = run.arguments.get("seq_length", "")
    for flag, planned, logged in (
        ("--global-batch", plan["global_batch"], run.global_batch),
        ("--seq-len", plan["seq_len"], int(length) if length.isdecimal() else None),
    ):
        if logged is not None and logged != planned:
            raise SpecError(flag, planned, f"{run.source} says {logged:,}: give {flag} {logged}")


def _memory(run: MeasuredRun | None, result: Result) -> tuple[float, list[str]]:
    """By how much more memory a run takes at its peak than is predicted, at least 1; said where it is worth it."""
    if run is None or not result.memory:
        return 1.0, []
    peak = result.peak_memory
    for word, by_rank, predicted in (
        ("allocated", run.allocated_bytes, peak.peak_allocated_bytes),
        ("reserved", run.reserved_bytes, peak.peak_reserved_bytes),
    ):
        if by_rank:
            most = max(by_rank.values())
            ratio = most / max(predicted, 1)
            text = f"the log has {format_bytes(most)} {word} at the peak, {format_bytes(predicted)} predicted"
            caution = ": what is proposed has to fit with as much more" if ratio > 1.0 else ""
            return max(1.0, ratio), [f"{text}{caution}"] if abs(ratio - 1.0) > MEMORY_DIFFERS else []
    return 1.0, []


def _within(result: Result, over: float) -> Result:
    """The result on devices that are smaller by a factor, with the advice that fits there."""
    capacity = int(result.memory_capacity_bytes / over)
    fits = tuple(advice for advice in result.advice if over == 1.0 or advice.peak_memory_bytes <= capacity)
    return replace(result, memory_capacity_bytes=capacity, advice=fits)


def predict_of(question: Diagnose, run: MeasuredRun | None = None) -> Predict:
    """The prediction that a diagnosis is held against. Raises UserError.

    What nobody states of the plan is as the run's own log says, field by field.
    """
    stated = plain_part(question.plan)
    logged = {} if run is None else logged_plan(run, cluster_of(question.cluster).n_gpus)
    return replace(of_launch_file(question.model, question.cluster, stated, logged), anchor=question.anchor)


def with_measured(question: Predict, step: float) -> Diagnose:
    """`predict --measured 11s`: a diagnosis with a number alone. Raises UserError for what has no plan."""
    if not isinstance(question.plan, Plan):
        raise UserError("a captured script has no plan that a step could be held against: leave out --measured")
    if question.technique or question.scenario.disturbs:
        raise UserError("--measured is held against the plain step: leave out --technique and --slow")
    plan = open_plan(**plain_part(question.plan))
    return Diagnose(model=question.model, cluster=question.cluster, plan=plan, measured=step, anchor=question.anchor)


def _measured(
    question: Diagnose, run: MeasuredRun | None, traced: Mapping[int, Sequence[StepTime]]
) -> tuple[float, Steady | None, list[str]]:
    """The step time: as given, else of the log, else of the trace."""
    notes = []
    steady = None
    is_needed = question.measured is None and not traced
    if run is not None and (is_needed or any(step.seconds for step in run.steps)):
        steady = steady_of(run)
        if steady.lines < FEW:
            notes.append(f"only {steady.lines} lines behind the warm-up: no steady state")
        if run.is_mean:
            notes.append("one mean of the whole run, with its start and end: the steady step is shorter")
    if question.measured is not None:
        return question.measured, steady, notes
    if steady is not None:
        return steady.seconds, steady, notes
    notes.append("step time of the trace: a profiler makes a step longer")
    return length_s(traced), None, notes


def _differs(predict: Predict, result: Result, run: MeasuredRun) -> tuple[list[tuple[str, float]], list[str]]:
    """What the run says of its plan and the question does not, with the seconds that it takes more."""
    notes: list[str] = []
    try:
        printed = megatron_log.read(run.arguments, result.n_gpus, run.source).fields if run.arguments else {}
        stated = {name: value for name, value in printed.items() if name in DIFFERENCES}
        own = result.spec["plan"]
        others = {name: value for name, value in stated.items() if own.get(name) != value}
        if not others:
            return [], notes
        plan = {name: value for name, value in {**plain_part(predict.plan), **others}.items() if name != "dp"}
        as_run = answer_at_first(replace(predict, plan=read_plan(plan)))[0]
    except UserError as error:
        return [], [*notes, f"what the log says of its plan cannot be predicted: {error}"]
    text = ", ".join(f"{name} {value}, not {own.get(name)}" for name, value in others.items())
    return [(f"the log says {text}", as_run.step_time_s - result.step_time_s)], notes


WIDE = 2.0  # of a band whose ends differ by so much a step in it may have lost half of its time
# What Megatron-Core's own names say without doubt.
DIFFERENCES = ("tp", "pp", "cp", "ep", "micro_batch", "recompute", "precision", "overlap_tp")


def _sentence(
    step_s: float,
    result: Result,
    verdict: Verdict,
    causes: tuple[Cause, ...],
    differs: Sequence[tuple[str, float]],
) -> str:
    measured, predicted = format_time(step_s), format_time(result.step_time_s)
    if result.infeasible is not None:
        way = "give that of the run (its launch file, or --tp, --pp ...); `windtunnel plan` finds the best"
        return f"{measured} was measured, but the plan that is asked about does not fit in memory: {way}."
    ratio = step_s / result.step_time_s - 1.0
    amount = f"{format_percent(abs(ratio), 0)} {'slower' if ratio > 0 else 'faster'} than the {predicted} predicted"
    if ratio >= 1.0:
        amount = f"{1.0 + ratio:.1f} times the {predicted} predicted"
    pauses = next((cause for cause in causes if cause.cause == PAUSES), None)
    beside = f"; pauses take {format_time(pauses.seconds)} a step besides" if pauses else ""
    first = next((cause for cause in causes if cause is not pauses), None)
    # Another plan, and a quicker one: no cause, as it loses nothing, but what was predicted is not what runs.
    other = next((f"{word}: is this the launch file of that run" for word, seconds in differs if seconds < 0.0), "")
    if verdict == "as expected":
        if other:
            return f"{measured} is {amount} and within the band, but {other}{beside}?"
        p5_s, p95_s = result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9
        lost = f"; {format_time(first.seconds)} of it: {first.cause}" if first else "" if beside else (
            f" of {format_time(p5_s)} to {format_time(p95_s)}, which is too wide to call it right or wrong; a trace"
            " would say where it goes"
            if p95_s > WIDE * p5_s
            else ": nothing is wrong"
        )  # fmt: skip
        return f"{measured} is {amount} and within the band{lost}{beside}."
    if verdict == "faster":
        return f"{measured} is {amount}, below the band: {other or 'does the run do all that the plan says'}{beside}?"
    lost = f"; most is lost to {first.cause}, {format_time(first.seconds)}" if first else ""
    more = "" if first else "; a trace would say where"
    return f"{measured} is {amount}, beyond the band{lost}{more}{beside}."
