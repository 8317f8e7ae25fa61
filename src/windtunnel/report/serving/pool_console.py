"""A pool of models for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.report.printing import columns
from windtunnel.report.serving.console import duration
from windtunnel.units import format_many

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
    *("", "finished", "TTFT mean", "p99", "TPOT mean", "p99", "within limits", "tokens/s"),
    *("replicas", "busy", "regime"),
)


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """One row per model, as COLUMNS says."""
    rows = []
    for name, one in found["models"].items():
        times = [
            "-" if one[key] is None else duration(one[key][what])
            for key in ("ttft_s", "tpot_s")
            for what in ("mean", "p99")
        ]
        met = "-" if one["slo_attainment"] is None else f"{one['slo_attainment']:.1%}"
        counts = [point["serving"] for point in one["replicas"]] or [0]
        some = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{counts[0]}"
        share = f"{one['utilisation']:.0%}"
        done = f"{one['finished']:,} of {one['requests']:,}"
        rows.append([name, done, *times, met, f"{one['output_tokens_per_s']:,.0f}", some, share, one["regime"]])
    return rows


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """What holds for all models together."""
    total = found["total"]
    lines = [
        f"{total['duration_s']:,.0f} s: {total['finished']:,} of {total['requests']:,} requests,"
        f" {total['output_tokens_per_s']:,.0f} output tokens/s, {total['gpu_seconds'] / 3600:,.2f} GPU hours"
    ]
    if total["slo_attainment"] is not None:
        good = total["goodput_requests_per_s"]
        lines.append(f"{total['slo_attainment']:.1%} within their limits, {good:.3g} such requests/s")
    if total["replicas_lost"]:
        lines.append(
            f"{format_many(total['replicas_lost'], 'replica')} lost,"
            f" {format_many(total['requests_moved'], 'request')} went on elsewhere"
        )
    if total["unfinished"]:
        lines.append(f"{format_many(total['unfinished'], 'request')} never found a machine")
    if total["cost"] is not None:
        per = total["cost_per_million_output_tokens"]
        lines.append(f"cost {total['cost']:,.2f}" + ("" if per is None else f", {per:.3f} per million output tokens"))
    for name, one in found["groups"].items():
        cost = "" if one["cost"] is None else f", cost {one['cost']:,.2f}"
        lines.append(f"{name}: {one['gpu_seconds'] / 3600:,.2f} GPU hours{cost}")
    return lines


def print_pool(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `PoolResult.to_dict()`."""
    table = columns(COLUMNS, overflow="fold")
    for row in rows_of(found):
        table.add_row(*row)
    console.print(table)
    for line in lines_of(found):
        console.print(line, highlight=False)
