"""A service and the batch jobs beside it, as views."""

from __future__ import annotations

from windtunnel.studies.fleet.live.beside import BesideRun
from windtunnel.views import Axis, Curve, Document, Figure, Figures, Headline, Number, Series, View, table_of
from windtunnel.views.kinds import Limit
from windtunnel.views.text import text_of


def beside_document(run: BesideRun) -> Document:
    """Whether the service stayed in time, what the machine was used for, and what became of the jobs."""
    beside_s = run.p95_beside_s
    if beside_s is None:
        headline = Headline("too few requests beside batch jobs for a p95", tone="warn")
    else:
        kept = beside_s <= run.target_s
        headline = Headline(
            f"p95 {text_of(beside_s, 's')} beside batch jobs, {text_of(run.p95_alone_s, 's')} alone"
            f" ({beside_s / run.p95_alone_s - 1:+.1%}): {'within' if kept else 'over'} its"
            f" {text_of(run.target_s, 's')}. {text_of(run.use_beside, 'share')} of the machine is used,"
            f" {text_of(run.use_alone, 'share')} alone.",
            tone="good" if kept else "bad",
        )
    figures = [
        Figure("p95 alone", Number(run.p95_alone_s, "s")),
        *([Figure("p95 beside", Number(beside_s, "s"))] if beside_s is not None else ()),
        Figure("batch work", Number(run.batch_cpu_s, "s"), "CPU time"),
        Figure("late windows", f"{run.late_windows:,} of {run.windows:,}"),
        Figure("frozen, evicted", f"{run.freezes:,}, {run.evictions:,} times"),
    ]
    times = [point[0] for point in run.curve]
    curves: list[View] = [
        Curve(
            "Latency by window", Axis("time", "s"), Axis("p95", "s", low=0.0),
            [Series("p95", times, [point[1] for point in run.curve])], [Limit(run.target_s, "target")],
        ),
        Curve(
            "Cores that batch jobs may have", Axis("time", "s"), Axis("cores", "count", low=0.0),
            [Series("cores", times, [point[2] for point in run.curve], form="steps")],
        ),
    ] if len(times) > 1 else []  # fmt: skip
    fields = (
        ("job", "text", "job"),
        ("state", "text", "state"),
        ("CPU time", "s", "cpu_s"),
        ("starts", "count", "starts"),
    )
    return Document(
        "fleet beside", "Batch jobs beside a service",
        [headline, Figures(figures), *curves, table_of("Batch jobs", run.jobs, fields)],
    )  # fmt: skip
