"""A Survival as one offline HTML page: waterfall by policy, ETTR against GPUs and interval, standbys, one run's
timeline.

Python reckons every curve; the template writes and arranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.report.survival.console import causes, cells
from windtunnel.output_file import write_atomically
from windtunnel.studies.resilience import PolicyEntry, Survival
from windtunnel.studies.resilience.run import Episode
from windtunnel.units import format_count, format_percent, format_time
from windtunnel.views.text import plain, shares

W, H = 460.0, 220.0
COLOURS = {
    "productive": "optimizer-0",
    "checkpoint stall": "memory-0",
    "lost work": "comm-2",
    "detect": "comm-0",
    "localise": "comm-3",
    "schedule": "comm-1",
    "groups": "host-0",
    "warm-up": "host-1",
    "load": "memory-1",
    "fewer machines": "waiting-0",
    "slow hosts": "waiting-2",
}
LINES = ("compute-0", "comm-2", "optimizer-0", "comm-0", "host-0", "memory-0", "comm-1", "waiting-1")
EPISODES_SHOWN = 400


def write_survival(answer: Survival, path: Path | str) -> None:
    """Write the page at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), render_survival_html(answer).encode())


def render_survival_html(answer: Survival) -> str:
    """The whole page. The same answer gives the same text."""
    asked, first = answer.asked, answer.entries[0]
    facts = [
        (f"{asked.gpus:,}", "GPU" if asked.gpus == 1 else "GPUs"),
        (f"{asked.replicas:,} × {asked.stages}", "replicas × stages"),
        (f"{asked.days:g}", "day" if asked.days == 1 else "days"),
        (f"{asked.seeds:,}", "run" if asked.seeds == 1 else "runs"),
        (plain(asked.process.name), "failures"),
        (format_time(answer.mttf_s) if math.isfinite(answer.mttf_s) else "never", "between interruptions"),
        (
            f"{first.interruptions:,.0f}",
            f"interruptions ({first.interruptions_p10:,.0f} – {first.interruptions_p90:,.0f})",
        ),
    ]
    return page_template("survival.html.j2").render(
        facts=facts,
        wall_s=answer.wall_s,
        colours=COLOURS,
        source=plain(asked.process.source),
        policies=[_policy(one) for one in answer.entries],
        parts={part: slot for part, slot in COLOURS.items() if any(one.waterfall[part] > 0 for one in answer.entries)},
        charts=_charts(answer),
        timelines=[_timeline(one) for one in answer.entries],
        causes=causes(first),
        width=f"{W:g}",
        height=f"{H:g}",
    )


def _policy(one: PolicyEntry) -> dict[str, Any]:
    parts = [(part, one.waterfall[part]) for part in COLOURS if one.waterfall[part] > 0]
    printed = shares([seconds for _, seconds in parts], 2)
    return {
        "name": plain(one.policy),
        **cells(one),
        "cost": "" if one.cost_usd is None else f"${format_count(one.cost_usd)}",
        "segments": [(*part, share) for part, share in zip(parts, printed, strict=True)],
    }


Point = tuple[float, float]


def _charts(answer: Survival) -> list[dict[str, Any]]:
    entries = answer.entries
    charts = [
        _chart("ETTR by GPUs", [(one.policy, one.scale_curve, "") for one in entries], lambda x: f"{x / 1024:g}k", [])
    ]
    exact = [(one.policy, [(d, e) for d, e, _ in one.interval_curve], "") for one in entries]
    linear = [(one.policy, [(d, e) for d, _, e in one.interval_curve], "4 4") for one in entries]
    marks = [(one.checkpoint_interval_s, one.ettr_exact) for one in entries]
    charts.append(_chart("ETTR by checkpoint interval (dashed: linear form)", [*exact, *linear], _seconds, marks))
    pooled = [one for one in entries if one.standby_curve]
    if pooled:
        lines = [(one.policy, [(k + 1.0, cost) for k, cost in one.standby_curve], "") for one in pooled]
        marks = [(one.standbys + 1.0, dict(one.standby_curve)[one.standbys]) for one in pooled]
        charts.append(
            _chart("Machines' worth of time lost by standbys", lines, lambda x: f"{x - 1:g}", marks, percent=False)
        )
    return charts


def _seconds(value: float) -> str:
    return format_time(value, 1)


def _chart(
    title: str,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]], str]],
    label: Callable[[float], str],
    marks: Sequence[Point],
    *,
    percent: bool = True,
) -> dict[str, Any]:
    """Lines over a logarithmic axis; each name has one colour."""
    points = [point for _, line, _ in lines for point in line]
    low, high = min(math.log(x) for x, _ in points), max(math.log(x) for x, _ in points)
    least, most = min(y for _, y in points), max(y for _, y in points)
    bottom, top = (math.floor(least * 10) / 10, 1.0) if percent else (0.0, most * 1.05 or 1.0)
    if bottom >= top:
        bottom = top - 0.1

    def at(point: Point) -> Point:
        across = (math.log(point[0]) - low) / (high - low or 1.0)
        return across * W, H - (point[1] - bottom) / (top - bottom) * H

    slots = {name: LINES[at % len(LINES)] for at, name in enumerate(dict.fromkeys(name for name, _, _ in lines))}
    write = format_percent if percent else "{:,.2f}".format
    ticks = lines[0][1] if len(lines[0][1]) <= 9 else lines[0][1][:: max(1, len(lines[0][1]) // 6)]
    return {
        "title": title,
        "lines": [
            {
                "name": plain(name),
                "slot": slots[name],
                "dash": dash,
                "path": "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(at, line)),
                "dots": [(at((x, y)), f"{plain(name)}\n{label(x)}: {write(y)}") for x, y in line] if not dash else [],
            }
            for name, line, dash in lines
        ],
        "marks": [at(point) for point in marks],
        "x": [(at((x, 0.0))[0], label(x)) for x, _ in ticks],
        "y": [
            (H - share * H, (format_percent if percent else "{:,.1f}".format)(bottom + share * (top - bottom)))
            for share in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
        "slots": slots,
    }


def _timeline(one: PolicyEntry) -> tuple[str, list[Episode]]:
    """The first run: what was not productive, the longest stretches first, in their places."""
    longest = sorted(_joined(one.stops), key=lambda each: (each.begin_ns - each.end_ns, each.begin_ns))[:EPISODES_SHOWN]
    return plain(one.policy), sorted(longest, key=lambda each: each.begin_ns)


def _joined(episodes: Sequence[Episode]) -> list[Episode]:
    """Phases of one recovery as one stop, named by the longest."""
    found: list[Episode] = []
    longest_ns = 0
    for each in episodes:
        length = each.end_ns - each.begin_ns
        if found and found[-1].end_ns == each.begin_ns and found[-1].cause == each.cause:
            part = each.part if length > longest_ns else found[-1].part
            found[-1] = Episode(found[-1].begin_ns, each.end_ns, part, each.cause)
            longest_ns = max(longest_ns, length)
        else:
            found.append(each)
            longest_ns = length
    return found
