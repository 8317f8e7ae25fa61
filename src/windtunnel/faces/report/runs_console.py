"""Saved runs as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from windtunnel.faces.report.run_list import Run, told_apart
from windtunnel.views.text import duration, plain

WIDE = 100  # columns

if TYPE_CHECKING:
    from rich.console import Console


def print_runs(
    runs: Sequence[Run], tags: Mapping[str, Sequence[str]], console: Console, *, some: bool, where: str
) -> None:
    """One line a run; `some`: a part of what there is was asked for."""
    if not runs:
        console.print(f"no run in {where}{' matches' if some else ''}", markup=False)
        return
    table = Table(box=None, pad_edge=False)
    apart = told_apart(runs)
    tagged = any(tags.get(run.name) for run in runs)
    for name in ("run", "model", "cluster", "layout", "step", "MFU", "memory", "saved", *(("tags",) if tagged else ())):
        right = name in ("step", "MFU", "memory")
        # A run's name is there to be copied; a model's is cut only where there is no room.
        whole = name == "run" or (name == "model" and console.width >= WIDE)
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    for run in runs:
        saved = datetime.fromtimestamp(run.saved_s).strftime("%Y-%m-%d %H:%M")
        own = plain(" ".join(tags.get(run.name, ())))
        if run.problem:
            cells = [run.name, "unreadable", "", "", "", "", "", saved]
        else:
            memory = f"{run.memory_share:.0%}" + (" does not fit" if run.status == "infeasible" else "")
            figures = [duration(run.step_time_s * 1e9), f"{run.mfu:.1%}", memory]
            cells = [
                run.name,
                plain(run.model),
                plain(run.where),
                _joined(run.layout, apart[run.name]),
                *figures,
                saved,
            ]
        cells += [own] if tagged else []
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def _joined(layout: str, own: str) -> str:
    return f"{layout} · {plain(own)}" if own else layout
