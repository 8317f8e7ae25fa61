"""A Comparison as views: the numbers side by side, the cause of the difference, and what was asked differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from windtunnel.faces.report.comparison.compare import Comparison, Side, TraceComparison, compare
from windtunnel.faces.report.explanation import by_class_table
from windtunnel.faces.report.own_run import classes_table
from windtunnel.faces.report.prediction.categories import Category, label_of, memory_categories, time_categories
from windtunnel.faces.report.prediction.spec_words import difference_words
from windtunnel.faces.report.prediction.views import time_parts
from windtunnel.faces.report.run_list import Run
from windtunnel.physics.step.result import Result
from windtunnel.views import Bar, Bars, Cell, Column, Document, Field, Headline, Number, Part, Table, View, table_of
from windtunnel.views.text import text_of

FIELDS_SHOWN = 16


def comparison_document(answer: Comparison) -> Document:
    """Everything that there is to see of two results side by side."""
    return Document(
        "comparison",
        f"A {answer.a.content_hash} and B {answer.b.content_hash}",
        list(_views(answer)),
        subtitle=f"A: {answer.a.title} · B: {answer.b.title}",
    )


def runs_document(runs: Mapping[Run, Result]) -> Document:
    """Saved runs side by side, a row each; of two, what explains the difference."""
    letters, results = dict(zip(runs, "ABCDEFGH", strict=False)), list(runs.values())
    fields: list[Field[Run]] = [
        *(
            ("run", "text", lambda run: f"{letters[run]} {run.name}"),
            ("model", "text", "model"),
            ("on", "text", "where"),
        ),
        *(
            ("layout", "text", "layout"),
            ("step time", "s", lambda run: Number(run.step_time_s, "s", run.p5_s, run.p95_s)),
        ),
        ("tokens/s per GPU", "", lambda run: runs[run].tokens_per_s_per_gpu),
        *(("MFU", "share", "mfu"), ("memory", "share", "memory_share")),
        ("fits", "text", lambda run: "yes" if run.status == "ok" else "no"),
    ]
    table = replace(table_of("Side by side", list(runs), fields), links=[f"/runs/{run.name}" for run in runs])
    categories = time_categories({key for result in results for key, ns in result.breakdown_ns.items() if ns})
    bars = [
        Bar(f"{letters[run]} {run.name}", time_parts(result.breakdown_ns, categories)) for run, result in runs.items()
    ]
    views: list[View] = [table, Bars("Where the step goes (mean over all GPUs)", "s", bars)]
    if len(runs) == 2:
        headline, _, *why = _views(compare(*results))
        views = [headline, *views, *why]
    return Document("comparison", "Compare", views)


def trace_document(answer: TraceComparison) -> Document:
    """A predicted step and a traced one."""
    worst = max(answer.classes, key=lambda class_time: class_time.difference_s)
    change = answer.measured_s / answer.predicted_s - 1.0
    lost = f"; {worst.name} has the most more, {text_of(worst.difference_s, 's')}" if worst.difference_s > 0 else ""
    text = f"The traced step takes {text_of(answer.measured_s, 's')}, {text_of(change, 'change')} of the predicted one"
    return Document(
        "comparison",
        f"{answer.title} and {len(answer.traces)} trace{'s' * (len(answer.traces) > 1)}",
        [Headline(f"{text}{lost}."), classes_table(answer.classes), by_class_table(answer.steps)],
        hash=answer.content_hash,
    )


def _views(answer: Comparison) -> Iterator[View]:
    yield Headline(answer.explanation, "bad" if "infeasible" in (answer.a.status, answer.b.status) else "calm")
    columns = (Column(""), Column("A", ""), Column("B", ""), Column("change", "change"))
    yield Table("Side by side", columns, list(_rows(answer)), by_row=True)
    causes = _by_label(answer.causes_ns)
    if causes:
        parts = _parts({key: ns / 1e9 for key, ns in causes.items()}, time_categories(causes))
        title = "Where the time differs (B minus A, mean over all GPUs)"
        yield Bars(title, "s", [Bar("step", parts)], total="step", signed=True)
    memory = {key: n for key, n in answer.memory_causes_bytes.items() if n}
    if memory:
        title = "Where the memory differs (B minus A, fullest GPUs)"
        bar = Bar("memory", _parts(memory, memory_categories(memory)))
        yield Bars(title, "B", [bar], total="on the device", signed=True)
    rows = []
    for difference in answer.spec:
        name, words = difference_words(difference.field, difference.a, difference.b)
        before, _, after = words.partition(" → ")
        rows.append((name, before, after))
    yield Table("What was asked differently", (Column("field"), Column("A"), Column("B")), rows, most=FIELDS_SHOWN)


def _parts(values: Mapping[str, float], categories: Mapping[str, Category]) -> list[Part]:
    return [Part(category.label, values[key], category.slot) for key, category in categories.items()]


def _by_label(causes: Mapping[str, int]) -> dict[str, int]:
    """What differs; keys that are called alike (the gradient norm, on either tier) are one line."""
    first: dict[str, str] = {}
    sums: dict[str, int] = {}
    for key, ns in causes.items():
        key = first.setdefault(label_of(key), key)
        sums[key] = sums.get(key, 0) + ns
    return {key: ns for key, ns in sums.items() if ns}


def _rows(answer: Comparison) -> Iterator[tuple[Cell, ...]]:
    a, b = answer.a, answer.b
    if answer.timed:
        yield ("step time", _step(a), _step(b), _change(a.step_time_ns, b.step_time_ns))
        if a.tokens_per_step and b.tokens_per_step:
            yield _pair("tokens/s/GPU", "", a.tokens_per_s_per_gpu, b.tokens_per_s_per_gpu)
        yield _pair("MFU", "share", a.mfu, b.mfu)
    if a.peak_memory_bytes and b.peak_memory_bytes:
        yield _pair("peak memory", "B", a.peak_memory_bytes, b.peak_memory_bytes)
        if a.fullest_stage != b.fullest_stage:
            yield ("on stage", f"{a.fullest_stage}", f"{b.fullest_stage}", "")
    if "infeasible" in (a.status, b.status):
        yield ("fits", *("no" if side.status == "infeasible" else "yes" for side in (a, b)), "")


def _step(side: Side) -> Number:
    return Number(side.step_time_ns / 1e9, "s", side.step_time_p5_ns / 1e9, side.step_time_p95_ns / 1e9)


def _change(a: float, b: float) -> Cell:
    return Number((b - a) / a, "change") if a else ""


def _pair(name: str, unit: str, a: float, b: float) -> tuple[Cell, ...]:
    return name, Number(a, unit), Number(b, unit), _change(a, b)
