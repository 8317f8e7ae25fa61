"""Saved runs as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from windtunnel.faces.report.run_list import Run, told_apart
from windtunnel.views import Column, Document, Headline, Number, Table

COLUMNS = (
    *(Column("run"), Column("model"), Column("cluster"), Column("layout")),
    *(Column("step", "s"), Column("MFU", "share"), Column("memory", "number"), Column("saved")),
)


def runs_document(runs: Sequence[Run], tags: Mapping[str, Sequence[str]], where: str, *, some: bool) -> Document:
    """One line a run; `some`: a part of what there is was asked for."""
    if not runs:
        return Document("runs", f"Runs in {where}", [Headline(f"no run in {where}{' matches' if some else ''}")])
    apart, tagged = told_apart(runs), any(tags.get(run.name) for run in runs)
    rows = [(*_cells(run, apart[run.name]), *([" ".join(tags.get(run.name, ()))] if tagged else [])) for run in runs]
    columns = (*COLUMNS, *([Column("tags")] if tagged else []))
    return Document("runs", f"Runs in {where}", [Table("", columns, rows, most=len(rows))])


def _cells(run: Run, own: str) -> tuple[str | Number | None, ...]:
    saved = datetime.fromtimestamp(run.saved_s).strftime("%Y-%m-%d %H:%M")
    if run.problem:
        return run.name, "unreadable", "", "", None, None, "", saved
    memory = f"{run.memory_share:.0%}" + (" does not fit" if run.status == "infeasible" else "")
    layout = f"{run.layout} · {own}" if own else run.layout
    figures = Number(run.step_time_s, "s"), Number(run.mfu, "share")
    return run.name, run.model, run.where, layout, *figures, memory, saved
