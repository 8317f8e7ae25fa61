"""How far one measured run carries: a factor on other predictions, weighed by how near they are.

    f                  measured / predicted of the anchor, predicted anew by this release
    factor             f^w, w by nearness: how much of the log error of one run is that of the other
    band               moved by the factor, its log half widths multiplied by sqrt(1 - w^2), which is what is left of a
                       deviation that is shared to w

    nearness           the same plan at another scale; the same degrees with another batch, length, recomputation or
                       adapters; another layout; the same plan on another GPU; and 0 for another model, framework or
                       precision, or another plan on another GPU: a factor belongs to a regime, not to a site

Weights as `validation/anchoring.py` finds them on published runs, predicted by a fit without their own source: mean
errors of the same plan fall from 4.9 to 2.3 %; carried in full, a factor makes other plans worse. Plans that differ in
`overlap_*` alone count as the same: no published pair differs in nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.errors import InputFileError, UserError
from windtunnel.files.bytes import first_bytes
from windtunnel.files.document import read_mapping
from windtunnel.physics.model import Model
from windtunnel.physics.step.result import Limit, Result
from windtunnel.questions import read
from windtunnel.questions.asked.predict import Predict
from windtunnel.units import format_percent, format_time, parse_number, parse_time

JOB = ("model", "framework", "precision")
SAME, BATCH, LAYOUT, GPU, OTHER = "same plan", "same layout", "other layout", "other GPU", "other job"
WEIGHTS = {SAME: 0.9, BATCH: 0.25, LAYOUT: 0.25, GPU: 0.25, OTHER: 0.0}
ONE_NODE = 8  # GPUs: beyond them one GPU says nothing
FULL, HOST_BOUND, UNSTEADY, FEW_LINES = 0.95, 0.15, 0.10, 5
LAYOUT_FIELDS = ("tp", "pp", "virtual_stages", "cp", "ep", "etp", "schedule", "zero_stage")
BATCH_FIELDS = ("micro_batch", "recompute", "seq_len", "lora_rank")
REMEDY = "write step_time, model, cluster and plan, or let `windtunnel diagnose --save-anchor FILE` write it"
ANCHOR_FILES = (".yaml", ".yml", ".json")  # suffixes
HEAD_BYTES = 64 * 1024
ANCHOR_LINES = (re.compile(rb"(?m)^step_time *:"), re.compile(rb"(?m)^(?:question|model) *:"))


@dataclass(frozen=True, slots=True)
class Regime:
    """What tells whether a factor carries."""

    job: tuple[object, ...]  # as JOB names them
    gpu: str
    layout: tuple[object, ...]
    batch: tuple[object, ...]
    n_gpus: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured run beside what is predicted for it."""

    source: str
    measured_s: float
    predicted: Result

    @property
    def log_factor(self) -> float:
        """log of measured / predicted."""
        return math.log(self.measured_s / self.predicted.step_time_s)


@dataclass(frozen=True, slots=True)
class Carried:
    """What an anchor does. `share`: of the band's log half widths that are left."""

    factor: float
    share: float = 1.0


def nearness(anchor: Regime, regime: Regime) -> str:
    """SAME, BATCH, LAYOUT, GPU or OTHER."""
    if anchor.job != regime.job:
        return OTHER
    if anchor.gpu != regime.gpu:
        return GPU if (anchor.layout, anchor.batch) == (regime.layout, regime.batch) else OTHER
    if anchor.layout != regime.layout:
        return LAYOUT
    return BATCH if anchor.batch != regime.batch else SAME


def carried(log_factor: float, anchor: Regime, regime: Regime) -> Carried:
    """The factor that one run gives another."""
    if anchor.n_gpus == 1 and regime.n_gpus > ONE_NODE:
        return Carried(1.0)
    weight = WEIGHTS[nearness(anchor, regime)]
    return Carried(math.exp(log_factor if anchor == regime else weight * log_factor), math.sqrt(1.0 - weight**2))


def regime_of(result: Result) -> Regime:
    """Of a prediction."""
    plan, cluster = result.spec["plan"], result.spec["cluster"]
    model = result.spec["model"]
    shape = repr((model["hidden_size"], model["layers"]))  # a launch file under a new name is the same model
    job = (shape, plan["framework"], plan["precision"])
    layout, batch = (tuple(_hashable(plan.get(name)) for name in names) for names in (LAYOUT_FIELDS, BATCH_FIELDS))
    return Regime(job, cluster["gpu"]["name"], layout, batch, result.n_gpus)


def _differing(anchor: Regime, regime: Regime) -> str:
    """What of the job is another: the words of what differs."""
    words = [word for word, own, its in zip(JOB, regime.job, anchor.job, strict=True) if own != its]
    if anchor.gpu != regime.gpu:
        words = ["GPU", *words] if words else ["GPU", "plan"]
    return " and ".join(words)


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# ----------------------------------------------------------------------------------------------------------- files


def is_anchor_file(path: str) -> bool:
    """By its name, else by lines of an anchor file; anything else is what a job printed or a tracker exported."""
    if Path(path).suffix.lower() in ANCHOR_FILES:
        return not Path(path).is_dir()
    head = first_bytes(Path(path), HEAD_BYTES)
    return all(line.search(head) for line in ANCHOR_LINES)


def read_anchor(path: str) -> tuple[float, Predict]:
    """The step time of an anchor file, and the question that predicts it. Raises UserError."""
    data = read_mapping(path, REMEDY)
    step_s = parse_time(data.pop("step_time", None), "step_time", path)
    if not step_s > 0.0:
        raise InputFileError(path, "step_time is not above 0", REMEDY)
    lines, spread = data.pop("lines", None), data.pop("spread", None)
    for name, value in (("lines", lines), ("spread", spread)):
        if value is not None:
            parse_number(value, name, path)
    check_steady(path, FEW_LINES if lines is None else float(lines), 0.0 if spread is None else float(spread))
    words = data.pop("question", None)
    question = read(dict(words) if isinstance(words, Mapping) else {"question": "predict", **_plan_read(data, path)})
    if not isinstance(question, Predict):
        raise InputFileError(path, "asks no prediction", REMEDY)
    return step_s, replace(question, anchor=())


def check_steady(path: str, lines: float, spread: float) -> None:
    """Raises InputFileError for a run of too few steps, or of too unlike ones, to say anything of others."""
    if lines < FEW_LINES:
        raise InputFileError(path, f"rests on {lines:g} lines of a log", "measure a few steps more behind the warm-up")
    if spread > UNSTEADY:
        raise InputFileError(path, f"its steps spread by {spread:.0%}", "an unsteady run says nothing of others")


def check_possible(anchor: Anchor, model: Model) -> None:
    """Raises InputFileError for a step that is shorter than its model's FLOPs take at the peak of its GPUs.

    FLOPs: nothing recomputed, attention as a causal mask leaves it. Peak: of the format of the plan's GEMMs; in fp32
    they may be multiplied in TF32.
    """
    predicted = anchor.predicted
    plan, rates = predicted.spec["plan"], predicted.spec["cluster"]["gpu"]["flops_per_s"]
    masked = model.forward_flops_per_token(plan["seq_len"]) / model.forward_flops_per_token(plan["seq_len"], "full")
    faster = max(1.0, rates.get("tf32", 0.0) / rates["fp32"]) if plan["precision"] == "fp32" else 1.0
    least_s = predicted.mfu * predicted.step_time_s * masked / faster
    if anchor.measured_s < least_s:
        problem = (
            f"a step of {format_time(anchor.measured_s)} is shorter than the {format_time(least_s)} that the FLOPs of"
            f" {model.name} take at the peak of {predicted.n_gpus:,} GPUs"
        )
        remedy = "check the unit, and state model, GPUs, batch, length and precision of the job that was measured"
        raise InputFileError(anchor.source, problem, remedy)


def _plan_read(data: dict[str, object], path: str) -> dict[str, object]:
    """A plan that is named by its file, which lies beside the anchor, as its fields."""
    plan = data.get("plan")
    if isinstance(plan, str):
        from windtunnel.studies.training.plan import PLAN_FILE

        return {**data, "plan": read_mapping(Path(path).parent / plan, PLAN_FILE)}
    return data


def usable(anchor: Anchor) -> str:
    """Why a run must not be carried to others; empty where it may."""
    result = anchor.predicted
    if result.infeasible is not None:
        return "it is predicted not to fit in memory"
    if result.memory:
        share = result.peak_memory.device_bytes / max(1, result.capacity_of(result.peak_memory))
        if share > FULL:
            return f"it fills {format_percent(share, 0)} of the memory: the allocator's stalls are its own"
    host = result.breakdown_ns.get("host", 0) / max(1, result.step_time_ns)
    if host > HOST_BOUND:
        return f"{format_percent(host, 0)} of its step is the host's: that is no factor of other plans"
    return ""


def with_anchors(result: Result, anchors: Sequence[Anchor]) -> Result:
    """The prediction, moved by the nearest of its anchors, or by all that are equally near; a warning says how."""
    regime, notes = regime_of(result), []
    near: dict[str, list[Anchor]] = {}
    for anchor in anchors:
        kind = nearness(regime_of(anchor.predicted), regime)
        why = "" if kind == SAME and regime_of(anchor.predicted) == regime else usable(anchor)
        if kind == OTHER:
            why = f"it is of another {_differing(regime_of(anchor.predicted), regime)}"
        if not why and anchor.predicted.n_gpus == 1 and regime.n_gpus > ONE_NODE:
            why = "one GPU says nothing of several nodes"
        if why:
            notes.append(f"anchor {anchor.source} is not used: {why}")
        else:
            near.setdefault(kind, []).append(anchor)
    if not near:
        return replace(result, warnings=(*result.warnings, *notes))
    nearest = next(word for word in (SAME, BATCH, LAYOUT, GPU) if word in near)
    chosen = near[nearest]
    log_factor = sum(anchor.log_factor for anchor in chosen) / len(chosen)
    carry = carried(log_factor, regime_of(chosen[0].predicted), regime)
    low, high = result.step_time_p5_ns / result.step_time_ns, result.step_time_p95_ns / result.step_time_ns
    moved = _scaled(result, carry.factor, low**carry.share, high**carry.share)
    bands = [
        f"{format_time(prediction.step_time_p5_ns / 1e9)} to {format_time(prediction.step_time_p95_ns / 1e9)}"
        for prediction in (moved, result)
    ]
    note = (
        f"anchored: {', '.join(anchor.source for anchor in chosen)} took {math.exp(log_factor):.3f} times what is"
        f" predicted for it; carried over, as {nearest}, as {carry.factor:.3f}; band {bands[0]} instead of {bands[1]}"
    )
    return replace(moved, warnings=(*result.warnings, *notes, note))


def _scaled(result: Result, factor: float, low: float, high: float) -> Result:
    """The result with each of its times multiplied; parts still sum to the step."""
    step = round(result.step_time_ns * factor)

    def parts(breakdown: Mapping[str, int], total: int) -> dict[str, int]:
        scaled = {name: round(ns * factor) for name, ns in breakdown.items()}
        if scaled:
            scaled[max(scaled, key=lambda name: (scaled[name], name))] += total - sum(scaled.values())
        return scaled

    def faster(figure: float) -> float:
        return figure * result.step_time_ns / step

    limits = tuple(Limit(limit.what, limit.share, limit.step_time_s_without * factor) for limit in result.limits)
    stages = tuple(replace(stage, breakdown_ns=parts(stage.breakdown_ns, step)) for stage in result.stages)
    excerpt = tuple(
        replace(interval, start_ns=round(interval.start_ns * factor), end_ns=round(interval.end_ns * factor))
        for interval in result.excerpt
    )
    advice = tuple(replace(advised, step_time_ns=round(advised.step_time_ns * factor)) for advised in result.advice)
    return replace(
        result,
        step_time_ns=step,
        step_time_p5_ns=min(step, round(step * low)),
        step_time_p95_ns=max(step, round(step * high)),
        tokens_per_s=faster(result.tokens_per_s),
        tokens_per_s_per_gpu=faster(result.tokens_per_s_per_gpu),
        mfu=faster(result.mfu),
        hfu=faster(result.hfu),
        model_tflops_per_gpu=faster(result.model_tflops_per_gpu),
        breakdown_ns=parts(result.breakdown_ns, step),
        stages=stages,
        limits=limits,
        excerpt=excerpt,
        advice=advice,
    )


def check_anchorable(result: Result) -> None:
    """Raises UserError for what cannot be moved: a captured script, a disturbed step, a technique."""
    if not result.spec.get("plan") or result.disturbed is not None or result.technique is not None:
        raise UserError("an anchor moves the plain step of a plan: leave out --anchor, or --slow and --technique")
