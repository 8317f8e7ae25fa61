"""A Verdict on the console, and its heat map of ranks as a page."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.report.draw.printing import columns
from windtunnel.output_file import write_atomically
from windtunnel.real.survive.watch.verdict import Verdict
from windtunnel.units import format_time
from windtunnel.views.text import plain

SHOWN = 16


def print_verdict(found: Verdict, console: Console) -> None:
    """Sentences about who is to blame, then own time by rank."""
    console.print(Text(f"\n{headline(found)}", style="bold"))
    for one in found.culprits[1:SHOWN]:
        console.print(Text(f"also: {plain(one.sentence)}"))
    names = _names(found)
    if not names:
        return
    table = columns(["rank", *map(plain, names)], (), dim=True)
    blamed = {one.rank for one in found.culprits}
    order = sorted(found.own_s, key=lambda rank: (rank not in blamed, -sum(found.own_s[rank].values()), rank))
    for rank in order[:SHOWN]:
        parts = found.own_s[rank]
        table.add_row(str(rank), *(format_time(parts.get(name, 0.0)) for name in names))
    console.print(table)


def headline(found: Verdict) -> str:
    """The first sentence."""
    return plain(found.culprits[0].sentence) if found.culprits else "Nobody hangs, and nobody is slow."


def write_verdict(found: Verdict, path: Path | str) -> None:
    """Write the page at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), render_verdict_html(found).encode())


def render_verdict_html(found: Verdict) -> str:
    """Ranks x segments, each cell coloured by its time over the median of the ranks."""
    names = _names(found)
    blamed = {(one.rank, one.where) for one in found.culprits}
    typical = {name: median([parts.get(name, 0.0) for parts in found.own_s.values()]) for name in names}
    rows = [
        {
            "rank": rank,
            "cells": [
                _cell(name, found.own_s[rank].get(name, 0.0), typical[name], found.step_s, (rank, name) in blamed)
                for name in names
            ],
        }
        for rank in sorted(found.own_s)
    ]
    return page_template("watch.html.j2").render(
        headline=headline(found),
        sentences=[plain(one.sentence) for one in found.culprits[1:]],
        names=[plain(name) for name in names],
        rows=rows,
        step=format_time(found.step_s),
    )


def _cell(name: str, seconds: float, typical: float, step_s: float, blamed: bool) -> dict[str, Any]:
    excess = max(0.0, seconds - typical) / step_s if step_s else 0.0
    return {
        "shade": f"{min(1.0, excess) * 100:.0f}",
        "blamed": blamed,
        "text": format_time(seconds, 2),
        "tip": f"{plain(name)}\n{format_time(seconds)}; median of ranks {format_time(typical)}",
    }


def _names(found: Verdict) -> list[str]:
    return sorted({name for parts in found.own_s.values() for name in parts})
