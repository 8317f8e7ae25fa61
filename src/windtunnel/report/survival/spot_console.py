"""Policies on one trace of spot machines, on one screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from windtunnel.report.figures import dollars, plain
from windtunnel.report.printing import columns
from windtunnel.resilience.spot import SpotAnswer
from windtunnel.units import format_count, format_percent, format_time


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
