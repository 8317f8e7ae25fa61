"""The answer to `check`: rules that a plan keeps or breaks, for pipelines and for submit hooks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import hexdigits

from windtunnel.errors import SpecError, UserError
from windtunnel.files.document import read_json
from windtunnel.physics.step.result import Advice, Result
from windtunnel.questions.asked.check import Check
from windtunnel.questions.asked.parts import ModelPart
from windtunnel.questions.asked.parts.plan import Plan
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.header import Answer
from windtunnel.questions.reading import plain_part
from windtunnel.studies.planning.advice.changes import PLAN
from windtunnel.studies.planning.advice.proposals import Proposal, as_change, launch_of
from windtunnel.studies.predict import answer_at_first, of_launch_file
from windtunnel.studies.training.launch import is_native
from windtunnel.studies.training.launch.patch import words_of
from windtunnel.studies.training.question import cluster_of, model_of
from windtunnel.units import format_bytes, format_percent, format_time, parse_share, parse_time

RULES = ("oom", "tight", "slower", "mfu", "memory", "step")
BARE = ("oom", "tight")  # that take no value


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule, and whether it is kept."""

    rule: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Checked(Answer):
    """All rules, in the order in which they were asked."""

    passed: bool
    findings: tuple[Finding, ...]
    step_time_s: float
    mfu: float
    peak_memory_bytes: int
    memory_capacity_bytes: int
    baseline_step_s: float | None
    change: Proposal | None  # that would make it shorter, where that is a rule and the file has an option for it
    result: Result = field(repr=False)
    JSON_LEAVES_OUT = ("result",)

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Of the prediction."""
        return self.result.warnings


def answer(question: Check, notes: tuple[str, ...] = ()) -> Checked:
    """The findings. Raises UserError."""
    rules = [_rule(text) for text in question.fail_if.split(",") if text.strip()]
    if not {"oom", "tight"} & {name for name, _ in rules}:  # what does not fit may not be submitted, whatever else
        rules.insert(0, ("oom", 0.0))
    predict = of_launch_file(question.model, question.cluster, plain_part(question.plan))
    predict = replace(predict, anchor=question.anchor)
    result, advised = answer_at_first(predict, notes)
    baseline_s, of_tokens = (None, "") if question.baseline is None else _baseline(question.baseline, question, result)
    if baseline_s is None and any(name == "slower" for name, _ in rules):
        result = advised()
    best = min(
        (advice for advice in result.advice if advice.kind == PLAN),
        key=lambda advice: advice.step_time_ns,
        default=None,
    )
    change = None if best is None or baseline_s is not None else _of_file(best, predict, result)
    wording = of_tokens if best is None else f"with {best.flags}" if change is None else words_of(change.diff)
    findings = tuple(_finding(name, value, result, baseline_s, best, wording) for name, value in rules)
    peak = result.peak_memory if result.memory else None
    return Checked(
        passed=all(finding.passed for finding in findings),
        findings=findings,
        step_time_s=result.step_time_s,
        mfu=result.mfu,
        peak_memory_bytes=0 if peak is None else peak.device_bytes,
        memory_capacity_bytes=result.memory_capacity_bytes if peak is None else result.capacity_of(peak),
        baseline_step_s=baseline_s,
        change=change,
        result=result,
    )


def _of_file(best: Advice, predict: Predict, result: Result) -> Proposal | None:
    """The change as one of the user's own file; None where there is none, or it has no option for it."""
    launch, plan = launch_of(predict.model.base), predict.plan
    if launch is None or not isinstance(plan, Plan):
        return None
    proposal = as_change(best, model_of(predict.model, result.n_gpus), cluster_of(predict.cluster), plan, launch)
    return proposal if proposal.diff else None


def _rule(text: str) -> tuple[str, float]:
    name, equals, value = text.strip().partition("=")
    if name not in RULES:
        raise SpecError("--fail-if", name, f"use {', '.join(RULES)}")
    if (name in BARE) == bool(equals):
        raise SpecError("--fail-if", text.strip(), "leave the value out" if equals else f"give one, such as {name}=5%")
    if name in BARE:
        return name, 0.0
    if name == "step":
        return name, parse_time(value, "--fail-if")
    share = parse_share(value, "--fail-if")
    if share > 1.0 and "%" not in value:
        raise SpecError(
            "--fail-if", text.strip(), f"give per cent, such as {name}={value.strip()}%, or a share up to 1"
        )
    return name, share


def _baseline(word: str, question: Check, result: Result) -> tuple[float, str]:
    """A step time, that of a saved run, or what another launch file is predicted to take, for as many tokens as here.

    Beside it words that say so where its own step has others. Raises UserError.
    """
    path, runs = Path(word), Path(question.runs)
    if path.is_file() and is_native(word):
        before = of_launch_file(ModelPart(base=word), question.cluster, plain_part(question.plan))
        other = answer_at_first(replace(before, anchor=question.anchor))[0]
        share = result.tokens_per_s * result.step_time_s / (other.tokens_per_s * other.step_time_s)
        is_same = math.isclose(share, 1.0, rel_tol=1e-6)
        return (other.step_time_s, "") if is_same else (other.step_time_s * share, " for as many tokens")
    paths = sorted(runs.glob(f"{word}*/result.json")) if set(word) <= set(hexdigits) else []
    for place in (path, path / "result.json", *paths):
        if place.is_file():
            data = read_json(place, "name a run folder or its result.json")
            step_ns = data.get("step_time_ns") if isinstance(data, dict) else None
            if not isinstance(step_ns, int) or step_ns <= 0:
                raise UserError(f"{place}: holds no step time; name a run folder or its result.json")
            return step_ns / 1e9, ""
    return parse_time(word, "--baseline"), ""


def _finding(
    name: str, value: float, result: Result, baseline_s: float | None, best: Advice | None, words: str
) -> Finding:
    fits = result.infeasible is None
    if name == "oom":
        text = "it fits in memory" if result.infeasible is None else result.infeasible.reason
        return Finding("oom", fits, text)
    peak = result.peak_memory if result.memory else None
    used, capacity = (0, 1) if peak is None else (peak.device_bytes, result.capacity_of(peak))
    memory = f"{format_bytes(used)} of {format_bytes(capacity)} at the peak"
    if name == "tight":
        return Finding("tight", fits and not result.tight, memory + (": it may not fit" if result.tight else ""))
    if name == "memory":
        return Finding(f"memory={format_percent(value, 0)}", used <= value * capacity, memory)
    if name == "mfu":
        return Finding(f"mfu={format_percent(value, 0)}", result.mfu >= value, f"MFU {format_percent(result.mfu)}")
    if name == "step":
        return Finding(
            f"step={format_time(value)}", result.step_time_s <= value, f"step {format_time(result.step_time_s)}"
        )
    return _slower(value, result, baseline_s, best, words)


def _slower(value: float, result: Result, baseline_s: float | None, best: Advice | None, words: str) -> Finding:
    rule = f"slower={format_percent(value, 0)}"
    step = format_time(result.step_time_s)
    if baseline_s is not None:
        change = result.step_time_s / baseline_s - 1.0
        return Finding(rule, change <= value, f"{step} against {format_time(baseline_s)}{words}: {change:+.1%}")
    if best is None:
        return Finding(rule, True, f"{step}: no single change makes it shorter")
    change = result.step_time_s / best.step_time_s - 1.0
    return Finding(rule, change <= value, f"{step} against {format_time(best.step_time_s)} {words}: {change:+.1%}")
