"""The best placement of served models as views."""

from __future__ import annotations

from windtunnel.faces.report.serving.views import Answer
from windtunnel.studies.serving.placement.answer import PlacementAnswer
from windtunnel.studies.serving.placement.distserve import Candidate, Placement
from windtunnel.studies.serving.placement.fewest import Plan
from windtunnel.studies.serving.placement.plan import ServingPlans
from windtunnel.studies.serving.placement.spares import Spares
from windtunnel.units import format_many
from windtunnel.views import (
    Axis,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Headline,
    Notes,
    Number,
    Table,
    View,
    points_of,
    table_of,
)

LAYOUTS = (
    "a layout such as 2xtp4@2048: two replicas of four GPUs each (tp tensor, pp pipeline, dp attention ranks, ep"
    " experts), @ tokens of a step where those are not the engine's default"
)


def placed_document(placed: PlacementAnswer) -> Document:
    """What stands where, what it carries, and what the next best costs."""
    placement, title = placed.placement, f"Placement by {placed.method}"
    if isinstance(placement, Placement):
        verdict = f"{placement.gpus} GPUs carry {placement.rate_per_s:g} requests/s at {placed.attain:.0%} attainment"
        phases = (
            ("prefill", placement.prefill, placement.prefill_instances),
            ("decode", placement.decode, placement.decode_instances),
        )
        rows = [(phase, f"{count} x tp{layout[0]} pp{layout[1]}") for phase, layout, count in phases]
        best = f"{placement.goodput_per_gpu_per_s:.3g} requests/s per GPU, best of {len(placement.tried)} candidates"
        lines = [f"goodput: {best}"]
        if placement.runner_up is not None:
            lines.append(f"next: {placement.runner_up.per_gpu:.3g} requests/s per GPU: {_layouts(placement.runner_up)}")
    else:
        shared, in_time = placed.method == "muxserve", placed.method == "alpaserve"
        rows = [
            (
                format_many(group.gpus, "GPU"),
                group.layout if shared else f"{group.layout}: {', '.join(group.models) or 'idle'}",
            )
            for group in placement.groups
        ]
        what = "of requests in time" if in_time else "requests/s in all"
        verdict = (
            f"{_value(placement.value, in_time)} {what}, best of {placement.candidates} {placement.what_was_tried}"
        )
        lines = []
        if placement.runner_up_value is not None:
            costs = _value(placement.value - placement.runner_up_value, in_time) + ("" if in_time else " requests/s")
            lines.append(f"next: {placement.runner_up}, {_value(placement.runner_up_value, in_time)}: it costs {costs}")
    views: list[View] = [
        Headline(verdict),
        Table("", (Column(""), Column("layout")), rows, most=len(rows)),
        Notes("", lines),
    ]
    return Document("placement", title, views)


def plans_document(plans: ServingPlans) -> Document:
    """Deployments that hold the limits, fewest GPUs first."""
    answer = plans.to_dict()
    best, rows = answer["plans"][0], answer["plans"]
    cost = best["cost_per_million_tokens"]
    proof = "and no fewer do" if answer["proved"] else f"and fewer are not ruled out (gap {best['gap']:.0%})"
    fields: list[Field[Answer]] = [
        *(("GPUs", "count", "gpus"), ("layout", "text", "layout"), ("in time", "share", "attainment")),
        *(
            ("p99 TTFT", "s", "ttft_p99_s"),
            ("p99 TPOT", "s", "tpot_p99_s"),
            ("output tokens/s", "", "output_tokens_per_s"),
        ),
        ("$ a million tokens", "", "cost_per_million_tokens"),
        ("with spares", "count", lambda row: row["gpus"] + row["spares"]["gpus"] if plans.spares else None),
        ("rate held", "share", lambda row: row["spares"]["held"] if plans.spares else None),
    ]
    holds = "holds" if best["gpus"] == 1 else "hold"
    verdict = f"{format_many(best['gpus'], 'GPU')} as {best['layout']} {holds} the limits, {proof}."
    figures = [
        Figure("GPUs", Number(float(best["gpus"]), "count"), best["layout"]),
        Figure("in time", Number(best["attainment"], "share"), filled=best["attainment"]),
        Figure("output", Number(best["output_tokens_per_s"], "tokens/s")),
        *([Figure("cost", Number(cost, "$"), "a million tokens")] if cost else []),
    ]
    timed = [row for row in rows if row["ttft_p99_s"] and row["tpot_p99_s"]]
    kinds = {
        "best": timed[:1],
        "together": [row for row in timed[1:] if "prefill" not in row["layout"]],
        "prefill and decode apart": [row for row in timed[1:] if "prefill" in row["layout"]],
    }
    points = points_of(
        kinds,
        lambda row: row["tpot_p99_s"],
        lambda row: row["ttft_p99_s"],
        lambda row: f"{row['gpus']} GPUs, {row['layout']}",
    )
    lines: list[str] = []
    whole = best["gpus"]
    if plans.spares:
        first = plans.search.plans[0].plan
        verdict, *lines = _spared(first, plans.spares[first])
        whole += plans.spares[first].gpus
        figures[0] = Figure("GPUs", Number(float(whole), "count"), f"{whole - best['gpus']} of them spare")
    ruled_out, fewest = f"{answer['runs']} plans run", answer["ruled_out_below_gpus"]
    if fewest > 1:
        ruled_out += f"; fewer than {fewest} GPUs are ruled out"
    views: list[View] = [
        Headline(verdict, "good" if answer["proved"] else "calm"),
        Figures(figures),
        table_of("Plans", rows, fields, most=12),
        Notes("", [*lines, ruled_out, LAYOUTS]),
    ]
    picture = [Curve("Latencies of the plans", Axis("p99 TPOT", "s"), Axis("p99 TTFT", "s"), points)]
    model, cluster = plans.question.model, plans.question.cluster
    title = f"Plans to serve {model.name} on {cluster.n_gpus:,} × {cluster.gpu.name}"
    return Document("plans", title, views, picture if len(timed) > 1 else [])


def _spared(plan: Plan, spares: Spares) -> list[str]:
    """The verdict on a plan with spares, and what else is said of them."""
    both = [("replica", spares.replicas)]
    if plan.prefill is not None:
        both = [("prefill worker", spares.prefill), ("decode worker", spares.replicas)]
    words = " and ".join(format_many(count, f"spare {name}") for name, count in both)
    whole = format_many(plan.gpus + spares.gpus, "GPU")
    return [
        f"{whole}: {plan.words} and {words} hold the limits for {spares.held:.4%} of the time.",
        f"without spares for {spares.without:.4%}; where a failed GPU alone is replaced, it takes"
        f" {format_many(spares.loose_gpus, 'spare GPU')}; failures are taken for independent",
    ]


def _layouts(candidate: Candidate) -> str:
    both = (("prefill", candidate.prefill), ("decode", candidate.decode))
    return ", ".join(f"{phase} tp{layout[0]} pp{layout[1]}" for phase, layout in both if layout is not None)


def _value(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.4g}"
