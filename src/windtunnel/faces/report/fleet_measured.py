"""What was measured of a fleet as views: a service and the batch jobs beside it, and what jobs used."""

from __future__ import annotations

from windtunnel.studies.fleet.jobs.usage import FleetUse, JobUse
from windtunnel.studies.fleet.live.beside import BesideRun
from windtunnel.units import format_many
from windtunnel.views import (
    Axis,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Headline,
    Limit,
    Number,
    Series,
    View,
    table_of,
)
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


def usage_document(use: FleetUse) -> Document:
    """How much of what jobs held was used, and who held most that was not."""
    figures = [
        Figure("held", f"{use.gpu_hours:,.1f} GPU-hours", f"by {format_many(len(use.jobs), 'measured job')}"),
        Figure("not used", f"{use.unused_gpu_hours:,.1f} GPU-hours"),
        *([Figure("energy", f"{use.energy_kwh:,.1f} kWh")] if use.energy_kwh is not None else ()),
        *([Figure("not measured", format_many(use.unmeasured, "job"))] if use.unmeasured else ()),
    ]
    first = use.jobs[0]
    share = first.unused_gpu_hours / use.unused_gpu_hours if use.unused_gpu_hours else 0.0
    verdict = f"Jobs used {text_of(use.utilisation, 'share')} of the GPU time that they held"
    if share > 0:
        verdict += f"; {text_of(share, 'share')} of the rest was held by {first.job}"
    fields: list[Field[JobUse]] = [
        ("job", "text", "job"),
        ("GPUs", "count", "gpus"),
        ("held, GPU-hours", "text", lambda row: f"{row.gpu_hours:,.1f}"),
        ("used", "share", "utilisation"),
        ("not used, GPU-hours", "text", lambda row: f"{row.unused_gpu_hours:,.1f}"),
        ("power of a GPU", "W", "watts"),
    ]
    measured = Figures(figures, title=f"By {use.measure}")
    table = table_of("Jobs", use.jobs, fields, most=32)
    return Document("fleet usage", use.trace, [Headline(f"{verdict}."), measured, table])
