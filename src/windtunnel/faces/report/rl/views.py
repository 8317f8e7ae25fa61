"""A step of RL post-training: the verdict, its phases, both pools over time, memory of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windtunnel.faces.report.prediction.spec_words import spec_table
from windtunnel.studies.rl.plan import RlPlanned
from windtunnel.studies.rl.result import RlResult
from windtunnel.views import (
    Bar,
    Bars,
    Column,
    Document,
    Field,
    Figure,
    Figures,
    Headline,
    Lane,
    Lanes,
    Notes,
    Number,
    Part,
    Span,
    Table,
    View,
    table_of,
)
from windtunnel.views.text import scale_of, text_of

if TYPE_CHECKING:  # what validates is loaded where it is asked
    from windtunnel.evidence.accuracy.rl.run import RlReport, Score

PHASES = (  # field, name, colour; all but generation add up to the step
    ("exposed_generation_s", "waiting for samples", "line-4"),
    ("logprob_s", "old log-probs", "compute-1"),
    ("ref_logprob_s", "reference log-probs", "compute-2"),
    ("training_s", "training", "compute-0"),
    ("weight_sync_s", "weight update", "line-2"),
    ("other_s", "other", "line-6"),
)
COLOURS = {
    "generation": "line-4",
    "waiting": "line-6",
    "old log-probs": "compute-1",
    "reference log-probs": "compute-2",
    "training": "compute-0",
    "weights": "line-2",
}
TITLES = {"generation": "Memory of a generator's GPU", "training": "Memory of a trainer's GPU"}


def rl_document(result: RlResult) -> Document:
    """Everything that there is to see of a step."""
    spec = result.spec
    title = f"{spec['model']} on {spec['gpus']:,} × {spec['gpu']}"
    mode = "in turn" if not spec["async_steps"] else f"up to {spec['async_steps']:g} steps ahead"
    under = (
        f"{spec['framework']} · {spec['placement']}, {mode} · {spec['prompts']:,} prompts × {spec['samples']:,} samples"
        f" · generators {spec['generators']} ({spec['engine']}) · trainer {spec['trainer']}"
    )
    if not result.feasible:
        views: list[View] = [Headline(f"Does not fit: {result.reason}.", tone="bad"), *_memory(result)]
        return Document("an RL step", title, views, [spec_table("As it was settled", result.spec)], under)
    return Document("an RL step", title, list(_views(result)), list(_details(result)), under)


def _views(result: RlResult) -> Iterator[View]:
    step = Number(result.step_time_s, "s", result.p5_s, result.p95_s)
    yield Headline(_verdict(result))
    figures = [
        Figure("step", step),
        Figure("generation", Number(result.phases.generation_s, "s"), "of a batch"),
        Figure("tokens/s", Number(result.tokens_per_s_per_gpu, ""), "per GPU"),
    ]
    if not _colocated(result):  # else the same GPUs: the verdict says how they share the step
        figures += [Figure(f"{name} idles", Number(share, "share")) for name, share in result.idle_share.items()]
    if result.cost is not None and result.cost_per_1000_samples is not None:
        per = f"{text_of(result.cost_per_1000_samples, '$')} per 1,000 samples trained"
        figures.append(Figure("cost of a step", Number(result.cost, "$"), per))
    yield Figures(figures)
    names = {"waiting for samples": "generation"} if _colocated(result) else {}
    parts = [Part(names.get(name, name), getattr(result.phases, field), colour) for field, name, colour in PHASES]
    yield Bars("Where a step goes", "s", [Bar("step", [part for part in parts if part.value > 0])])
    lanes = []
    for lane in result.lanes:
        spans = [Span(begin, end, what, what, COLOURS.get(what, "line-6")) for what, begin, end in lane.spans]
        lanes += _stacked(lane.name, spans)
    yield Lanes("Both pools over a few steps", lanes)
    yield Notes("What decides it", result.verdicts)


def _stacked(name: str, spans: list[Span]) -> list[Lane]:
    """Spans that overlap in lanes of their own."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.begin_s):
        row = next((row for row in rows if row[-1].end_s <= span.begin_s + 1e-9), None)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    return [Lane(name if place == 0 else f"{name}, beside it", row, name) for place, row in enumerate(rows)]


def _colocated(result: RlResult) -> bool:
    return result.spec["placement"] == "colocated"


def _verdict(result: RlResult) -> str:
    phases, step = result.phases, text_of(result.step_time_s, "s")
    learner = phases.logprob_s + phases.ref_logprob_s + phases.training_s
    seconds = phases.exposed_generation_s, learner, phases.weight_sync_s, phases.other_s
    shares = [text_of(share / result.step_time_s, "share") for share in seconds]
    if _colocated(result):
        names = "generates", "trains", "updates weights", "changes places"
        parts = [f"{names[at]} {shares[at]}" for at in range(len(names)) if seconds[at] > 0]
        return f"A step takes {step}, of which it {', '.join(parts[:-1])} and {parts[-1]}."
    names = (
        *("the trainers wait for samples", "the trainers compute", "weights are updated"),
        "data, rewards and engines change hands",
    )
    most = seconds.index(max(seconds))
    return f"A step takes {step}; {shares[most]} of it, {names[most]}."


def _details(result: RlResult) -> Iterator[View]:
    yield from _memory(result)
    ages = result.staleness["samples"]
    yield Table(
        "How old samples are when they are trained",
        (Column("versions behind", ""), Column("samples", "count")),
        [(age, count) for age, count in ages.items()],
        note=f"mean {result.staleness['mean']:.2f}, at most {result.staleness['bound']} allowed",
    )
    yield Notes("What it rests on", result.sources)
    yield spec_table("As it was settled", result.spec)


def _memory(result: RlResult) -> Iterator[View]:
    for name, side in result.memory.items():
        parts = [
            Part(what.replace("_", " "), size, f"mem-{place % 7}")
            for place, (what, size) in enumerate(side.parts.items())
            if size > 0
        ]
        yield Bars(TITLES[name], "B", [Bar(name, parts, limit=side.capacity_bytes)])


def plan_document(answer: RlPlanned) -> Document:
    """The best division of a cluster, and the others."""
    best = rl_document(answer.best)
    size, unit = scale_of([answer.best.step_time_s], "s")  # one for all, and that of the headline
    rows = [
        (candidate.words, None if candidate.step_s is None else candidate.step_s / size, candidate.bound_s / size)
        for candidate in answer.tried
    ]
    views: list[View] = [
        Headline(f"Best: {answer.tried[0].words}, {text_of(answer.best.step_time_s, 's')} a step.", "good"),
        Notes("What the search shows", [*answer.verdicts, f"Proof: {answer.proof}."]),
        Table("Candidates", (Column(""), Column(f"step, {unit}", ""), Column(f"at least, {unit}", "")), rows),
    ]
    return Document("a plan for RL", best.title, views, [*best.views[1:], *best.details], best.subtitle)


def accuracy_document(report: RlReport) -> Document:
    """Predicted steps beside measured ones."""
    whole = report.scores()[-1]
    if whole.mean is None or whole.bias is None:
        text = "No row could be predicted."
    else:
        text = (
            f"Steps are {text_of(whole.mean, 'share')} off in the mean, {text_of(whole.bias, 'share')} with the sign;"
            f" {whole.answered} of {whole.rows} measured steps are predicted."
        )
    views: list[View] = [
        Headline(text),
        _scores("Step time", report.scores()),
        _scores("Published phases", report.phases()),
        Notes(
            "Not predicted",
            [
                f"{prediction.id}: {prediction.status}, {prediction.reason}"
                for prediction in report.predictions
                if prediction.reason
            ],
        ),
    ]
    return Document("accuracy of RL steps", report.source, views)


def _scores(title: str, scores: Sequence[Score]) -> Table:
    fields: list[Field[Score]] = [
        *(
            ("", "text", "name"),
            ("rows", "count", "rows"),
            ("answered", "count", "answered"),
            ("mean", "share", "mean"),
        ),
        *(("bias", "change", "bias"), ("worst", "change", "worst"), ("in band", "share", "in_band")),
    ]
    return table_of(title, scores, fields)
