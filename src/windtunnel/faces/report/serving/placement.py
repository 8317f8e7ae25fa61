"""The best placement of served models as views."""

from __future__ import annotations

from windtunnel.studies.serving.placement.answer import Placed
from windtunnel.studies.serving.placement.distserve import Candidate, Placement
from windtunnel.studies.serving.placement.plan import ServingPlans
from windtunnel.units import format_many
from windtunnel.views import Column, Document, Headline, Notes, Table, View


def placed_document(placed: Placed) -> Document:
    """What stands where, what it carries, and what the next best costs."""
    found, title = placed.found, f"Placement by {placed.method}"
    if isinstance(found, Placement):
        verdict = f"{found.gpus} GPUs carry {found.rate_per_s:g} requests/s at {placed.attain:.0%} attainment"
        phases = (
            ("prefill", found.prefill, found.prefill_instances),
            ("decode", found.decode, found.decode_instances),
        )
        rows = [(phase, f"{count} x tp{layout[0]} pp{layout[1]}") for phase, layout, count in phases]
        best = f"{found.goodput_per_gpu_per_s:.3g} requests/s per GPU, best of {len(found.tried)} candidates"
        lines = [f"goodput: {best}"]
        if found.runner_up is not None:
            lines.append(f"next: {found.runner_up.per_gpu:.3g} requests/s per GPU: {_layouts(found.runner_up)}")
    else:
        shared, in_time = placed.method == "muxserve", placed.method == "alpaserve"
        rows = [
            (
                format_many(group.gpus, "GPU"),
                group.layout if shared else f"{group.layout}: {', '.join(group.models) or 'idle'}",
            )
            for group in found.groups
        ]
        what = "of requests in time" if in_time else "requests/s in all"
        verdict = f"{_value(found.value, in_time)} {what}, best of {found.tried} {found.what_was_tried}"
        lines = []
        if found.runner_up_value is not None:
            costs = _value(found.value - found.runner_up_value, in_time) + ("" if in_time else " requests/s")
            lines.append(f"next: {found.runner_up}, {_value(found.runner_up_value, in_time)}: it costs {costs}")
    views: list[View] = [
        Headline(verdict),
        Table("", (Column(""), Column("layout")), rows, most=len(rows)),
        Notes("", lines),
    ]
    return Document("placement", title, views)


def plans_document(plans: ServingPlans, model: str, cluster: str) -> Document:
    """Deployments that hold the limits, fewest GPUs first."""
    told = plans.to_dict()
    best = told["plans"][0]
    proof = "no fewer hold the limits" if told["proved"] else f"fewer are not ruled out (gap {best['gap']:.0%})"
    columns = (
        *(Column("GPUs", "count"), Column("layout"), Column("in time", "share"), Column("p99 TTFT", "s")),
        *(Column("p99 TPOT", "s"), Column("output tokens/s", ""), Column("$ a million tokens", "")),
    )
    keys = ("layout", "attainment", "ttft_p99_s", "tpot_p99_s", "output_tokens_per_s", "cost_per_million_tokens")
    rows = [(one["gpus"], *(one[key] for key in keys)) for one in told["plans"]]
    verdict = f"{format_many(best['gpus'], 'GPU')} as {best['layout']} hold the limits; {proof}"
    notes = Notes("", [f"{told['runs']} plans run; fewer than {told['ruled_out_below_gpus']} GPUs are ruled out"])
    return Document("plans", f"{model} on {cluster}", [Headline(verdict), Table("Plans", columns, rows), notes])


def _layouts(candidate: Candidate) -> str:
    both = (("prefill", candidate.prefill), ("decode", candidate.decode))
    return ", ".join(f"{phase} tp{layout[0]} pp{layout[1]}" for phase, layout in both if layout is not None)


def _value(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.4g}"
