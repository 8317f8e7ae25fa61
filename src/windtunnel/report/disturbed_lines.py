"""What disturbances did to a step, as lines of the console."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.report.figures import plain
from windtunnel.result import Disturbed
from windtunnel.units import format_count, format_percent, format_time


def disturbed_lines(disturbed: Disturbed, n_gpus: int, step_ns: int) -> list[RenderableType]:
    """Cost, who is to blame, and how many rank classes it took to know."""
    base = disturbed.undisturbed_step_time_ns
    lines: list[RenderableType] = [Text(), Text("What the disturbances cost", style="bold")]
    lines.append(
        Text(
            f"{disturbed.gpus_lost:,.1f} GPUs' worth of the step is lost; undisturbed it would take"
            f" {format_time(base / 1e9)}"
        )
    )
    if disturbed.blame:
        table = Table.grid(padding=(0, 2))
        for heading in ("", "alone", "if mended", "where"):
            table.add_column(heading, justify="left" if heading in ("", "where") else "right")
        table.add_row("", "alone", "if mended", "")
        for one in disturbed.blame[:10]:
            table.add_row(
                plain(one.what),
                f"+{format_percent(one.alone_ns / base)}",
                f"-{format_percent(one.without_ns / step_ns)}",
                f"stage {one.stage}, replica {one.replica}",
            )
        lines.append(table)
    if disturbed.samples:
        drawn = disturbed.samples
        lines.append(
            Text(
                f"jitter {format_percent(drawn.jitter)}, {format_count(drawn.count)} samples, seed {drawn.seed}: p5"
                f" {format_time(drawn.p5_ns / 1e9)}, p50 {format_time(drawn.p50_ns / 1e9)},"
                f" p95 {format_time(drawn.p95_ns / 1e9)}"
            )
        )
    lines.append(
        Text(
            f"{format_count(n_gpus)} ranks simulated as {format_count(disturbed.programs)} programs",
            style="bright_black",
        )
    )
    return lines
