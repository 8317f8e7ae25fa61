"""A Result as views: the verdict, the main figures, where the step goes, and what rests on what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from windtunnel.faces.report.prediction.categories import (
    CONTEXT,
    SOURCES,
    UNUSED,
    Category,
    family_of,
    label_of,
    label_on_lane,
    memory_categories,
    pass_of,
    source_categories,
    time_categories,
)
from windtunnel.faces.report.prediction.disturbed import disturbed_views
from windtunnel.faces.report.prediction.spec_words import calibrated_words, flatten, layout, spec_table, title
from windtunnel.faces.report.prediction.trace import streams_of
from windtunnel.faces.report.techniques import gain_lines
from windtunnel.physics.step.result import Advice, Infeasible, Interval, Limit, Result, StageMemory
from windtunnel.views import (
    Axis,
    Bar,
    Bars,
    Change,
    Changes,
    Column,
    Curve,
    Document,
    Figure,
    Figures,
    Headline,
    Lane,
    Lanes,
    Notes,
    Number,
    Part,
    Series,
    Span,
    Table,
    View,
)
from windtunnel.views import Limit as Line
from windtunnel.views.text import text_of

if TYPE_CHECKING:
    from windtunnel.physics.step.result import StageReport
    from windtunnel.studies.planning.advice.proposals import Proposal

WORK = ("compute", "memory", "optimizer")  # families that are no overhead
WORTH_SAYING = 0.01  # share of the step
CHANGE = ("against now", "step", "peak memory")  # figures of one
KINDS = {
    "plan": "",
    "numbers": "in other formats of numbers: another computation",
    "others": "not advice, as the framework is not known to have it; `predict` takes it",
}


def prediction_document(result: Result) -> Document:
    """Everything that there is to see of a result."""
    return Document(
        subject="prediction",
        title=title(result),
        subtitle=" · ".join(f"{key} {value}".strip() for key, value in layout(result)),
        views=list(_views(result)),
        details=list(_details(result)),
        hash=result.content_hash,
        command=result.reproduce,
    )


def _views(result: Result) -> Iterator[View]:
    yield _headline(result)
    yield Figures(list(_figures(result)))
    if result.warnings:
        yield Notes("Warnings", result.warnings, "warn")
    yield from advice_views(result)
    yield from breakdown(result)
    if result.band_reason:
        yield Notes("What the band is wide for", tuple(result.band_reason.split("; ")))
    if result.technique is not None:
        yield Notes(f"Technique: {result.technique.name}", gain_lines(result.technique))
    if result.disturbed is not None:
        yield from disturbed_views(result)[0]


def _details(result: Result) -> Iterator[View]:
    if result.disturbed is not None:
        yield from disturbed_views(result)[1]
    yield from limit_views(result.limits)
    yield from _memory(result)
    yield from _stages(result)
    yield from _timeline(result)
    yield from _provenance(result)
    yield from _traffic(result)
    if result.defaults:
        yield Notes("Filled in because the plan did not say", result.defaults)
    yield from _spec(result.spec)


def _headline(result: Result) -> Headline:
    if result.infeasible is not None:
        return Headline(f"Does not fit: {_trouble(result.infeasible, result)}.", "bad")
    clauses = []
    if result.memory:
        peak = result.peak_memory
        room = result.capacity_of(peak) - peak.device_bytes
        spare = f"{text_of(max(room, 0), 'B')} to spare"
        clauses.append(
            f"May not fit: {spare}" if result.tight else f"Fits with {spare}" if room >= 0 else "Fits barely"
        )
    if result.mfu:
        clauses.append(f"{text_of(result.mfu, 'share')} MFU")
    if result.disturbed is not None and result.disturbed.undisturbed_step_time_ns:
        base = result.disturbed.undisturbed_step_time_ns
        more = text_of(result.step_time_ns / base - 1.0, "share")
        clauses.append(f"disturbances make the step {more} longer than {text_of(base / 1e9, 's')}")
    worst = max(_overheads(result.limits), key=lambda limit: limit.share, default=None)
    if worst is not None and worst.share >= WORTH_SAYING:
        clauses.append(f"{text_of(worst.share, 'share')} of the step is {label_of(worst.what)}")
    best = max(
        (advice for advice in result.advice if advice.kind == "plan"), key=lambda advice: advice.gain, default=None
    )
    better = "" if best is None else f": {best.flags} takes {text_of(best.gain, 'share')} less time"
    words = "; ".join(clauses) or f"A step takes {text_of(result.step_time_s, 's')}"
    return Headline(f"{words}{better}.", "good" if not result.warnings else "calm")


def _trouble(trouble: Infeasible, result: Result) -> str:
    over = text_of(trouble.needed_bytes - trouble.capacity_bytes, "B")
    return (
        f"{trouble.reason}; {result.class_name(trouble.stage)} needs {text_of(trouble.needed_bytes, 'B')} of"
        f" {text_of(trouble.capacity_bytes, 'B')}, {over} too much"
    )


def _step(result: Result) -> Number:
    return Number(result.step_time_s, "s", result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9)


def _figures(result: Result) -> Iterator[Figure]:
    if result.step_time_ns > 0:
        yield Figure("step time", _step(result))
        if result.tokens_per_step:  # not of a captured script that looks up no embedding
            note = (
                f"{text_of(result.tokens_per_s, 'count')} tokens/s, {text_of(result.tokens_per_step, 'count')} per step"
            )
            yield Figure("throughput", Number(result.tokens_per_s_per_gpu, "tokens/s/GPU"), note)
        note = (
            f"{text_of(result.model_tflops_per_gpu, 'TFLOP/s')} per GPU, HFU {text_of(result.hfu, 'share')};"
            f" {result.mfu_convention}"
        )
        yield Figure("MFU", Number(result.mfu, "share"), note)
    if result.gpu_watts:
        each = f"{result.joules_per_token:,.3g} J a token" if result.tokens_per_step else "of GPUs alone"
        yield Figure("power per GPU", Number(result.gpu_watts, "W", result.gpu_watts_p5, result.gpu_watts_p95), each)
    if result.memory:
        peak, capacity = result.peak_memory, result.memory_capacity_bytes
        share = peak.device_bytes / max(capacity, 1)
        note = f"{share:.0%} of {text_of(capacity, 'B')}, on {result.class_name(peak.stage)}"
        yield Figure("peak memory", Number(peak.device_bytes, "B"), note, share)


def advice_views(result: Result) -> list[View]:
    """What would make it faster, or make it fit; nothing where nothing was tried."""
    if not result.advice_tried:
        return []
    out = result.infeasible is not None
    note = f"{result.advice_tried:,} legal changes of the plan tried; step against now, step, peak memory"
    if not result.advice:
        note += "; none fits: see `windtunnel plan`" if out else "; none makes the step shorter by half a percent"
    changes = [
        change_of(advice, words) for kind, words in KINDS.items() for advice in result.advice if advice.kind == kind
    ]
    name = "Ways out that were predicted to fit" if out else "What would make it faster, each predicted"
    return [Changes(name, CHANGE, changes, note)]


def change_of(advice: Advice | Proposal, group: str) -> Change:
    """A change of the plan and what it was predicted to bring."""
    figures = (Number(advice.step_time_s, "s"), Number(float(advice.peak_memory_bytes), "B"))
    return Change(advice.flags, Number(-advice.gain, "change"), figures, group)


def time_parts(breakdown_ns: Mapping[str, int], categories: Mapping[str, Category]) -> list[Part]:
    """Parts in reading order, those of no length left out."""
    return [
        Part(category.label, breakdown_ns[key] / 1e9, category.slot)
        for key, category in categories.items()
        if breakdown_ns.get(key)
    ]


def breakdown(result: Result) -> Iterator[View]:
    """The step in its parts, if it has any."""
    parts = time_parts(result.breakdown_ns, categories_of(result))
    if parts:
        yield Bars("Where the step goes (mean over all GPUs)", "s", [Bar("step", parts)], total="step")


def categories_of(result: Result) -> dict[str, Category]:
    """Every category of time that a picture of this result shows, each with its one colour."""
    keys = {key for key, ns in result.breakdown_ns.items() if ns}
    for stage in result.stages:
        keys |= {key for key, ns in stage.breakdown_ns.items() if ns}
    return time_categories(keys | {interval.category for interval in result.excerpt})


def _stages(result: Result) -> Iterator[View]:
    categories = categories_of(result)

    def bar_of(stage: StageReport) -> Bar:
        return Bar(result.class_name(stage.stage), time_parts(stage.breakdown_ns, categories))

    stages = sorted(result.stages, key=lambda stage_report: stage_report.stage)
    if len(stages) > 1:
        yield Bars(f"The step by {class_word(result)}", "s", [bar_of(stage) for stage in stages])


def class_word(result: Result) -> str:
    """What rank classes are."""
    numbers = {stage.stage for stage in result.stages} | {stage_memory.stage for stage_memory in result.memory}
    return "class of ranks" if any("rank" in result.class_name(number) for number in numbers) else "pipeline stage"


def memory_parts(stage: StageMemory) -> list[tuple[Category, int]]:
    """Parts at the peak, in reading order: the allocated categories, what the allocator caches, and what is outside it.

    The allocated and the reserved peak may fall at different moments; the cached part is their difference.
    """
    parts = {
        **stage.categories,
        UNUSED: stage.peak_reserved_bytes - stage.peak_allocated_bytes,
        CONTEXT: stage.device_bytes - stage.peak_reserved_bytes,
    }
    return [(category, parts[key]) for key, category in memory_categories(parts).items()]


def _memory(result: Result) -> Iterator[View]:
    if not result.memory:
        return
    peak, capacity = result.peak_memory, result.memory_capacity_bytes
    yield Bars(
        f"Memory of the fullest GPUs ({result.class_name(peak.stage)}, {peak.ranks:,} alike)",
        "B",
        [Bar("peak", _parts_of(peak))],
        total="on the device",
        whole=float(max(capacity, 1)),
        note=f"share of the capacity, {text_of(capacity, 'B')}",
    )
    stages = sorted(result.memory, key=lambda stage_memory: stage_memory.stage)
    if len(stages) > 1:
        bars = [
            Bar(result.class_name(stage.stage), _parts_of(stage), float(result.capacity_of(stage))) for stage in stages
        ]
        yield Bars(f"Peak memory by {class_word(result)}", "B", bars, note="dashed: the capacity")
    with_timeline = [stage for stage in stages if stage.timeline]
    if with_timeline:
        yield _memory_curve(result, with_timeline)


def _parts_of(stage: StageMemory) -> list[Part]:
    return [Part(category.label, n_bytes, category.slot) for category, n_bytes in memory_parts(stage) if n_bytes > 0]


def _memory_curve(result: Result, stages: Sequence[StageMemory]) -> Curve:
    end = max(result.step_time_ns, *(time for stage in stages for time, _ in stage.timeline)) / 1e9

    def series(stage: StageMemory) -> Series:
        points = sorted(stage.timeline)
        times, sizes = [time / 1e9 for time, _ in points], [float(size) for _, size in points]
        name = result.class_name(stage.stage) if len(stages) > 1 else ""
        return Series("allocated", [*times, end], [*sizes, sizes[-1]], form="steps", panel=name)

    return Curve(
        "Allocated memory over the step",
        Axis("time", "s", low=0.0, high=end),
        Axis("allocated", "B"),
        [series(stage) for stage in stages],
        [Line(float(result.memory_capacity_bytes), "capacity")],
        "dashed: the capacity",
    )


def _overheads(limits: Sequence[Limit]) -> list[Limit]:
    return [limit for limit in limits if family_of(limit.what) not in WORK]


def limit_views(limits: Sequence[Limit]) -> Iterator[Table]:
    """What holds the step back, overheads first, largest first."""
    overheads = _overheads(limits)
    work = [limit for limit in limits if limit not in overheads]
    for name, those in (("overheads", overheads), ("the work itself", work)):
        rows = [
            (label_of(limit.what), Number(limit.share, "share"), Number(limit.step_time_s_without, "s"))
            for limit in sorted(those, key=lambda limit: (-limit.share, limit.what))
        ]
        columns = (Column("what"), Column("of the step", "share"), Column("step without it", "s"))
        if rows:
            yield Table(f"What limits it: {name}", columns, rows)


def _timeline(result: Result) -> Iterator[View]:
    if not result.excerpt:
        return
    categories = categories_of(result)
    ordered = sorted(result.excerpt, key=lambda op: (op.stage, op.stream))
    by_lane = {lane: list(ops) for lane, ops in groupby(ordered, key=lambda op: (op.stage, op.stream))}
    painted: dict[tuple[str, str], Category] = {}  # few kinds of ops, whatever their number

    def kind_of(op: Interval) -> Category:
        kind = op.category, re.sub(r"\d+", "", op.label)
        if kind not in painted:
            painted[kind] = _painted(op, categories)
        return painted[kind]

    lanes = [
        Lane(stream, [_span(op, kind_of(op)) for op in by_lane[stage, stream]], result.class_name(stage))
        for stage, names in streams_of(result).items()
        for stream in names
    ]
    yield Lanes("Timeline", lanes, f"An excerpt of the step, one group of lanes per {class_word(result)}.")


def _span(op: Interval, painted: Category) -> Span:
    return Span(op.start_ns / 1e9, op.end_ns / 1e9, op.label, painted.label, painted.slot)


def _painted(op: Interval, categories: Mapping[str, Category]) -> Category:
    category = categories.get(f"exposed {op.category}", categories[op.category])  # the breakdown's colour
    if category.family != "compute":
        return replace(category, label=label_on_lane(category.key))
    return pass_of(op.label) or category


def _provenance(result: Result) -> Iterator[View]:
    sources = source_categories(result.provenance)
    shares = [(category, result.provenance[key]) for key, category in sources.items() if result.provenance[key] > 0]
    if not shares:
        return
    simulated = (
        f"{result.n_ops:,} ops of {result.n_classes:,} rank class{'' if result.n_classes == 1 else 'es'} stand for"
        f" {text_of(result.n_gpus, 'count')} GPU{'' if result.n_gpus == 1 else 's'}"
    )
    rests = calibrated_words(result)
    rows = [(category.label, Number(share, "share"), SOURCES.get(category.key, "")) for category, share in shares]
    columns = (Column("price"), Column("of the busy time", "share"), Column("what that is"))
    yield Table("Where the numbers come from", columns, rows, "; ".join(filter(None, (rests, simulated))))


def _traffic(result: Result) -> Iterator[View]:
    sent = sorted(((key, n) for key, n in result.traffic_bytes.items() if n), key=lambda pair: (-pair[1], pair[0]))
    if sent:
        bars = [Bar(label_of(key), [Part(label_of(key), n_bytes, "comm-0")]) for key, n_bytes in sent]
        yield Bars("Bytes sent", "B", bars, note="per GPU and step, by kind and tier")


def _spec(spec: Mapping[str, object]) -> Iterator[View]:
    """What was predicted, field by field; where the hardware's numbers are from comes last."""
    order = {"plan": 0, "model": 1, "cluster": 2}
    ranked = sorted(flatten(spec).items(), key=lambda pair: order.get(pair[0].partition(".")[0], 3))
    sources = {key: value for key, value in ranked if "sources" in key.split(".")}
    yield spec_table("What was predicted", {key: value for key, value in ranked if key not in sources})
    yield spec_table("Sources of the hardware's numbers", sources)


def training_run_view(whole: Mapping[str, float]) -> Figures:
    """Days, GPU-hours and cost of a whole training."""
    steps = f"{text_of(whole['tokens'], 'count')} tokens in {whole['steps']:,.0f} steps, without failures"

    def banded(name: str, unit: str, scale: float = 1.0) -> Number:
        return Number(whole[name] * scale, unit, whole[f"{name}_p5"] * scale, whole[f"{name}_p95"] * scale)

    figures = [Figure("takes", banded("days", "days"), steps), Figure("uses", banded("gpu_hours", "GPU-hours"))]
    return Figures([*figures, *([Figure("costs", banded("cost", "$"))] if "cost" in whole else [])], "Whole training")
