"""What disturbances did to a step, as lines of the console."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.faces.report import figures
from windtunnel.faces.report.figures import MINUS, plain
from windtunnel.faces.report.prediction.ranks import Ranks, foremost, path_words, told_apart, where_words
from windtunnel.faces.report.printing import DIM, NUMBER, WORD, grid
from windtunnel.physics.step.result import Blame, Disturbed, Samples
from windtunnel.units import format_percent

BLAMED_MOST = 10
WAITING_MOST = 4


def disturbed_lines(disturbed: Disturbed, n_gpus: int, step_ns: int) -> list[RenderableType]:
    """Cost, who is to blame, whom the others wait for, and how many rank classes it took to know."""
    lines: list[RenderableType] = [
        Text(),
        Text("What the disturbances cost", style="bold"),
        Text(
            f"{disturbed.gpus_lost:,.1f} GPUs' worth of the step is lost; undisturbed it would take"
            f" {figures.duration(disturbed.undisturbed_step_time_ns)}"
        ),
        Text(told_apart(disturbed, n_gpus), style="dim"),
    ]
    if disturbed.samples:
        lines.append(Text(samples_words(disturbed.samples)))
    ranks = Ranks(disturbed)
    if disturbed.blame:
        lines += [Text(), _blame(disturbed, ranks, step_ns)]
    if foremost(disturbed.waiting, 1):
        lines += [Text(), _waiting(disturbed, ranks)]
    path = path_words(disturbed, ranks)
    if path:
        lines += [Text(), Text.assemble(("critical path  ", "dim"), path)]
    return lines


def samples_words(drawn: Samples) -> str:
    """How the step spreads over the samples."""
    jitter = f"jitter {format_percent(drawn.jitter)}, " if drawn.jitter else ""
    low, middle, high = (figures.duration(ns) for ns in (drawn.p5_ns, drawn.p50_ns, drawn.p95_ns))
    return (
        f"{jitter}{drawn.count:,} steps sampled, seed {drawn.seed}: p5 {low}, p50 {middle}, p95 {high} by chance alone"
    )


def _blame(disturbed: Disturbed, ranks: Ranks, step_ns: int) -> Table:
    spread = any(one.without_p5_p50_p95_ns for one in disturbed.blame)
    table = grid({"overflow": "fold"}, *[NUMBER] * (3 if spread else 2), DIM)
    titles = ["disturbance", "alone", "mended", *(["p5–p95"] if spread else []), ""]
    table.add_row(*(Text(title, style="dim") for title in titles))
    for one in disturbed.blame[:BLAMED_MOST]:
        cells = [
            plain(one.what),
            percent(one.alone_ns, disturbed.undisturbed_step_time_ns, "+"),
            percent(one.without_ns, step_ns, MINUS),
            *([band(one, step_ns)] if spread else []),
            where_words(one, ranks),
        ]
        table.add_row(*(Text(cell) for cell in cells))
    left = len(disturbed.blame) - BLAMED_MOST
    if left > 0:
        table.add_row(Text(f"and {left:,} more, none for more", style="dim"))
    return table


def _waiting(disturbed: Disturbed, ranks: Ranks) -> Table:
    table = grid(WORD, NUMBER, NUMBER, {})
    titles = ("waiting in", "mean", "longest", "for")
    table.add_row(*(Text(title, style="dim") for title in titles))
    shown = foremost(disturbed.waiting, 1)[:WAITING_MOST]
    most = max(one.worst_ns for one in shown)
    for one in shown:
        table.add_row(
            Text(plain(one.communicator)),
            figures.times([one.mean_ns, most - one.mean_ns])[0],  # all in the unit of the longest
            figures.times([one.worst_ns, most - one.worst_ns])[0],
            Text(ranks.words(one.last_rank)),
        )
    return table


def percent(part_ns: int, whole_ns: int, sign: str) -> str:
    """A share with its sign, the other one where it is negative; none where it shows as zero."""
    text = format_percent(abs(part_ns) / whole_ns if whole_ns else 0.0)
    if text == format_percent(0.0):
        return text
    return f"{sign if part_ns > 0 else MINUS if sign == '+' else '+'}{text}"


def band(one: Blame, step_ns: int) -> str:
    """The p5-p95 of what mending gives back over the samples."""
    spread = one.without_p5_p50_p95_ns
    return f"{percent(spread[0], step_ns, MINUS)} – {percent(spread[2], step_ns, MINUS)}" if spread and step_ns else ""
