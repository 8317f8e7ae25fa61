"""A fleet's run as one offline page: policies side by side, the share of GPUs in use over time, and jobs to choose.

Gets figures and intervals, and draws them. `intervals`: (policy, start s, end s, GPUs, waited s) as columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.report.fleet.console import ROWS, shown, unit_of
from windtunnel.faces.report.fleet.frontier import frontier_picture
from windtunnel.output_file import write_atomically
from windtunnel.views.text import plain

WIDTH, HEIGHT = 900.0, 160.0
COLUMNS = 300  # of the picture
JOBS_SHOWN = 240  # of a policy: those that waited longest or held most, as bars to choose
LANES, LANE = 24, 9.0  # rows of bars, and the height of one
INK = 1.5  # least width of a bar


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
        unit = unit_of(values, unit)
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
        lane=LANE,
        job_columns=JOB_COLUMNS,
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
    bars, lanes = _bars(run, first, last, gpus)
    return {
        "policy": run.policy,
        "points": " ".join(points),
        "bars": bars,
        "lanes": lanes,
        "count": len(run.name),
        "span": shown(last - first, "s"),
    }


JOB_COLUMNS = ("job", "GPUs", "submitted", "waited", "started", "ended", "why it waited")


def _bars(run: Occupancy, first: float, last: float, gpus: int) -> tuple[list[dict[str, Any]], int]:
    """Jobs as bars in rows, without overlap while there are rows, longest wait first, with what a chosen one says."""
    count = len(run.name)
    by_wait = sorted(range(count), key=lambda at: (-run.waited_s[at], at))[: JOBS_SHOWN // 2]
    by_work = sorted(range(count), key=lambda at: (-run.gpu_seconds[at], at))
    chosen = list(dict.fromkeys([*by_wait, *by_work]))[:JOBS_SHOWN]
    size = [_held(run, at) for at in range(count)]
    at_submission = _held_at([run.start_s[at] - run.waited_s[at] for at in chosen], run, size)
    ends, bars = [first] * LANES, []
    for at, held in sorted(zip(chosen, at_submission, strict=True), key=lambda pair: run.start_s[pair[0]]):
        lane = min(
            range(LANES),
            key=lambda one: (ends[one] > run.start_s[at], one if ends[one] <= run.start_s[at] else ends[one]),
        )
        ends[lane] = run.end_s[at]
        left = (run.start_s[at] - first) / (last - first) * WIDTH
        wide = (run.end_s[at] - run.start_s[at]) / (last - first) * WIDTH
        waited = run.waited_s[at]
        times = (run.start_s[at] - waited - first, waited, run.start_s[at] - first, run.end_s[at] - first)
        why = _why(waited, held, size[at], gpus)
        bars.append(
            {
                "x": f"{min(left, WIDTH - INK):.1f}",
                "y": f"{lane * LANE:.1f}",
                "width": f"{max(wide, INK):.1f}",
                "waited": waited > 0,
                "wait": waited,
                "cells": [plain(run.name[at]), f"{size[at]:,.3g}", *(shown(one, "s") for one in times), why],
            }
        )
    used = [one for one in range(LANES) if ends[one] > first]
    return sorted(bars, key=lambda bar: -float(bar["wait"])), max(used, default=0) + 1


def _held(run: Occupancy, at: int) -> float:
    """GPUs of a job: the mean over its stay."""
    return run.gpu_seconds[at] / max(run.end_s[at] - run.start_s[at], 1e-9)


def _held_at(times: Sequence[float], run: Occupancy, size: Sequence[float]) -> list[float]:
    """GPUs held by the jobs of a run just after each time."""
    events = sorted(
        [(one, size[at]) for at, one in enumerate(run.start_s)] + [(one, -size[at]) for at, one in enumerate(run.end_s)]
    )
    found, held, next_event = [0.0] * len(times), 0.0, 0
    for place in sorted(range(len(times)), key=lambda one: times[one]):
        while next_event < len(events) and events[next_event][0] <= times[place]:
            held += events[next_event][1]
            next_event += 1
        found[place] = max(held, 0.0)
    return found


def _why(waited: float, held: float, size: float, gpus: int) -> str:
    """What is known of the moment it came: GPUs held by jobs that ran then, and those that it needs."""
    if waited <= 0:
        return "it did not wait"
    free = gpus - held
    if size > free + 0.5:
        return f"{held:,.0f} of {gpus:,} GPUs were held when it came"
    return f"{free:,.0f} GPUs were free when it came: the policy, its clock or placement held it back"
