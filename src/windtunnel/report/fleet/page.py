"""A fleet's run as one offline page: policies side by side, the share of GPUs in use over time, and each job's wait.

Gets figures and intervals, and draws them. `intervals`: (policy, start s, end s, GPUs, waited s) as columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.report.figures import plain
from windtunnel.report.files import write_atomically
from windtunnel.report.fleet.console import ROWS, shown
from windtunnel.report.fleet.frontier import frontier_picture
from windtunnel.report.pages import page_template

WIDTH, HEIGHT = 900.0, 160.0
COLUMNS = 300  # of the picture
LONGEST = 12  # jobs whose waits are listed


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One policy's GPUs in use, as arrays of one length, one entry per job that ran."""

    policy: str
    start_s: Sequence[float]
    end_s: Sequence[float]
    gpu_seconds: Sequence[float]
    name: Sequence[str]
    waited_s: Sequence[float]


def write_fleet_page(
    path: Path,
    document: Mapping[str, Any],
    runs: Sequence[Occupancy],
    frontier: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write the page. `frontier`: points of `fleet/loans/frontier.py`. Raises OSError where it cannot."""
    figures = list(document["policies"].values())
    rows = []
    for label, key, unit in ROWS:
        values = [each.get(key) for each in figures]
        if all(value is None for value in values):
            continue
        rows.append({"label": label, "values": [shown(value, unit) for value in values]})
    first = min((min(run.start_s, default=0.0) for run in runs), default=0.0)
    last = max((max(run.end_s, default=1.0) for run in runs), default=1.0)
    pictures = [_picture(run, first, max(last, first + 1e-9), document["gpus"]) for run in runs]
    text = page_template("fleet.html.j2").render(
        trace=plain(document["trace"]),
        cluster=plain(document["cluster"]),
        gpus=document["gpus"],
        policies=[each["policy"] for each in figures],
        rows=rows,
        pictures=pictures,
        left_out=[(plain(name), plain(why)) for name, why in list(document["left_out"].items())[:50]],
        left_out_count=len(document["left_out"]),
        width=WIDTH,
        height=HEIGHT,
        frontier=frontier_picture(frontier) if frontier else None,
    )
    write_atomically(path, text.encode())


def _picture(run: Occupancy, first: float, last: float, gpus: int) -> dict[str, Any]:
    """The mean share of GPUs in use in each column of time, as the points of a polygon."""
    step = (last - first) / COLUMNS
    change = [0.0] * (COLUMNS + 2)
    used = [0.0] * (COLUMNS + 1)
    for start, end, work in zip(run.start_s, run.end_s, run.gpu_seconds, strict=True):
        held = work / max(end - start, 1e-9)  # mean over its stay
        a, b = (start - first) / step, (end - first) / step
        left, right = int(a), min(int(b), COLUMNS - 1)
        if left == right:
            used[left] += held * (b - a)
            continue
        used[left] += held * (left + 1 - a)
        used[right] += held * (b - right)
        change[left + 1] += held
        change[right] -= held
    level, points = 0.0, [f"0,{HEIGHT}"]
    for column in range(COLUMNS):
        level += change[column]
        share = min((level + used[column]) / max(gpus, 1), 1.0)
        x = column * WIDTH / COLUMNS
        points.append(f"{x:.1f},{HEIGHT * (1 - share):.1f}")
        points.append(f"{x + WIDTH / COLUMNS:.1f},{HEIGHT * (1 - share):.1f}")
    points.append(f"{WIDTH},{HEIGHT}")
    order = sorted(range(len(run.name)), key=lambda at: -run.waited_s[at])[:LONGEST]
    return {
        "policy": run.policy,
        "points": " ".join(points),
        "waits": [(plain(run.name[at]), shown(run.waited_s[at], "s")) for at in order],
        "span": shown(last - first, "s"),
    }
