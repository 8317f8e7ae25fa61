"""A Survival on one screen: policies beside each other, and where the wall time goes; and policies on spot machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.faces.report.draw.console import heading
from windtunnel.faces.report.draw.printing import columns, print_trimmed
from windtunnel.studies.resilience import PolicyEntry, Survival
from windtunnel.units import format_count, format_many, format_percent, format_time
from windtunnel.views.text import dollars, plain

if TYPE_CHECKING:
    from windtunnel.studies.resilience.spot import SpotAnswer


def print_survival(answer: Survival, console: Console) -> None:
    """Print on `console`."""
    print_trimmed(render_survival(answer), console)


def render_survival(answer: Survival) -> RenderableType:
    """The screen as a rich renderable."""
    asked, first = answer.asked, answer.entries[0]
    interruptions = (
        "nothing fails"
        if not first.interruptions
        else f"one interruption every {format_time(answer.mttf_s)}; {first.interruptions:,.0f} in all"
        f" (80 % of runs: {first.interruptions_p10:,.0f} to {first.interruptions_p90:,.0f})"
    )
    parts: list[RenderableType] = [
        Text(),
        Text(
            f"{format_many(asked.gpus, 'GPU')}, {format_many(asked.replicas, 'replica')} of"
            f" {format_many(asked.stages, 'stage')}, {asked.days:g} day{'' if asked.days == 1 else 's'},"
            f" {format_many(asked.seeds, 'run')}",
            style="bold",
        ),
        Text(
            f"failures: {plain(asked.process.name)}, {interruptions}"
            + (f"; {first.planned:,.0f} planned" if first.planned else "")
        ),
        *heading("Policies, on the same failures"),
        _policies(answer),
        *heading("Where the wall time goes (mean run)"),
        _waterfall(answer),
    ]
    if causes(first):
        parts += [*heading("Interruptions by cause"), _causes(first)]
    return Group(*parts, Text())


def _policies(answer: Survival) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    money = any(one.cost_usd is not None for one in answer.entries)
    tokens = any(one.tokens_per_s is not None for one in answer.entries)
    names = ["policy", "ETTR", "p5–p95", "exact", "linear", "save every", "standbys", "GPU-hours wasted"]
    for name in [*names, *(["tokens/s"] if tokens else []), *(["cost"] if money else [])]:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=name in ("policy", "p5–p95"))
    for one in answer.entries:
        row = [one.policy, *cells(one).values()]
        if tokens:
            row.append(format_count(one.tokens_per_s or 0.0))
        if money:
            row.append(f"${format_count(one.cost_usd or 0.0)}")
        table.add_row(*row)
    return table


def cells(one: PolicyEntry) -> dict[str, str]:
    """What is said of a policy in any case, for the page too."""
    return {
        "ettr": format_percent(one.ettr),
        "band": f"{format_percent(one.ettr_p5)} – {format_percent(one.ettr_p95)}",
        "exact": format_percent(one.ettr_exact),
        "linear": format_percent(one.ettr_linear),
        "interval": format_time(one.checkpoint_interval_s),
        "standbys": str(one.standbys),
        "wasted": format_count(one.gpu_hours_wasted),
    }


def causes(one: PolicyEntry) -> list[tuple[str, str]]:
    """Interruptions by cause, most first."""
    ordered = sorted(one.interruptions_by_cause.items(), key=lambda item: (-item[1], item[0]))
    return [(plain(name), f"{count:,.1f}") for name, count in ordered if count]


def _waterfall(answer: Survival) -> Table:
    table = columns(["", *(one.policy for one in answer.entries)], dim=True)
    for part in answer.entries[0].waterfall:
        shares = [one.waterfall[part] / answer.wall_s for one in answer.entries]
        if any(shares):
            table.add_row(part, *(format_percent(share, 2) for share in shares))
    return table


def _causes(one: PolicyEntry) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for cause in causes(one):
        table.add_row(*cause)
    return table


def print_spot(answer: SpotAnswer, console: Console) -> None:
    """Print on `console`."""
    nodes = [minute.nodes for minute in answer.trace.minutes]
    went = sum(minute.removed for minute in answer.trace.minutes)
    console.print(
        Text(
            f"\n{plain(answer.model)} on {min(nodes)} to {max(nodes)} spot machines for {format_time(answer.wall_s)},"
            f" {went:,} of them taken away",
            style="bold",
        )
    )
    knows = "the future" if answer.forecast == "known" else "nothing of the future"
    console.print(Text(f"parcae looks {answer.look_ahead} decisions ahead and knows {knows}"))
    money = any(one.cost_usd is not None for one in answer.entries)
    names = ("policy", "samples", "samples/s", "ETTR", "moving", "node-hours", "samples per node-hour")
    table = columns((*names, *(("cost", "per million samples") if money else ())), ("policy",), dim=True)
    for one in answer.entries:
        table.add_row(
            one.policy,
            format_count(one.samples, 4),
            f"{one.samples / answer.wall_s:,.1f}",
            format_percent(one.ettr),
            format_time(one.waterfall["moving"]),
            f"{one.node_hours:,.1f}",
            f"{one.samples / one.node_hours:,.0f}" if one.node_hours else "",
            *((dollars(one.cost_usd), dollars(one.usd_per_million_samples)) if money else ()),
        )
    console.print(table)
