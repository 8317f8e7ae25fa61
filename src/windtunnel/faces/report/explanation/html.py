"""One HTML file that shows an Explanation: headline, verdict, what each part costs, which workers and steps are slow.

Needs nothing else: no network, no server, no library. Python decides what is drawn where;
`templates/explain.html.j2` arranges and words it, and `templates/explain.js` only moves the tooltip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.report.explanation.console import less, share_words, time_words
from windtunnel.output_file import write_atomically
from windtunnel.studies.traces.stragglers.explanation import Explanation, Part
from windtunnel.views import text as figures
from windtunnel.views.text import plain

_ROWS = 12  # parts of one sort; the JSON has them all
_CELLS = 12_000  # of the heat map
_BARS = 400  # steps drawn
_LEAST_SPAN = 0.05  # of the scales of the map and the chart, so that noise stays pale and low
_DARK = 0.6  # cells hotter than this need light letters
_CHART_W, _CHART_H = 1000.0, 180.0


def write_explanation(explanation: Explanation, path: Path | str) -> None:
    """Write the page at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), render_explanation_html(explanation).encode())


def render_explanation_html(explanation: Explanation) -> str:
    """The whole page. The same explanation gives the same text."""
    return page_template("explain.html.j2").render(**_view(explanation)).encode("utf-8", "replace").decode()


def _view(found: Explanation) -> dict[str, Any]:
    names = [plain(name) for name in found.files]
    return {
        "title": names[0].rsplit("/", 1)[-1] if names else "trace",
        "more": f"and {len(names) - 1} more" if len(names) > 1 else "",
        "chips": [
            ("", plain(found.source)),
            *(
                (noun if n == 1 else noun + "s", f"{n:,}")
                for n, noun in ((found.n_ops, "op"), (found.n_workers, "worker"), (found.n_steps, "step"))
                if noun != "step" or n > 1  # else the recording as a whole, however many it holds
            ),
        ],
        "verdict": plain(found.verdict),
        "tiles": _tiles(found),
        "asked": found.asked,
        "replayed_ns": found.replayed_ns,
        "sorts": [
            _sort(title, parts, hint)
            for title, parts, hint in (
                ("By stage", found.by_stage, "stage "),
                ("By replica", found.by_replica, "replica "),
                ("By kind of op", found.by_kind, ""),
                ("By worker", found.by_worker, ""),
            )
            if len(parts) > 1
        ],
        "few": found.slowest_workers if len(found.worker_slowdown) > 1 else None,
        "map": _map(found),
        "steps": _steps(found),
        "notes": [plain(note) for note in found.notes],
        # What the console says of a gain, too.
        **{"less": less, "time_words": time_words, "share_words": share_words},
    }


def _tiles(found: Explanation) -> list[dict[str, Any]]:
    measured, replayed, ideal = found.measured_ns, found.replayed_ns, found.ideal_ns
    longest = max(measured, replayed, ideal, 1)
    lost = max(0.0, 1 - 1 / found.slowdown) if found.slowdown > 0 else 0.0
    off = f"{abs(replayed / measured - 1):.1%} {'above' if replayed > measured else 'below'} it" if measured else ""
    of = "mean of the steps" if found.n_steps > 1 else "the whole recording"
    shown = [
        ("Step time", measured, f"as measured, {of}", "measured"),
        ("Replayed", replayed, f"dependencies and durations only, {off}", "replayed"),
        ("Ideal", ideal, "the same, every op as long as its peers", "ideal"),
    ]
    tiles: list[dict[str, Any]] = [
        {
            "name": "Slowdown",
            "value": f"{found.slowdown:.3f}",
            "unit": "×",
            "note": f"{lost:.1%} of the time is lost to stragglers",
            "width": f"{lost * 100:.2f}",
            "kind": "lost",
        }
    ]
    for name, ns, note, kind in shown:
        value, unit = figures.duration(ns).split(" ")
        width = f"{ns / longest * 100:.2f}"
        tiles.append({"name": name, "value": value, "unit": unit, "note": note, "width": width, "kind": kind})
    return tiles


def _sort(title: str, parts: Sequence[Part], prefix: str) -> dict[str, Any]:
    shown = parts[:_ROWS]
    longest = max((abs(part.saved_ns) for part in shown), default=0) or 1
    rest = len(parts) - len(shown)
    more = f"and {rest:,} more, in the JSON" if rest else ""
    return {"title": title, "prefix": prefix, "parts": shown, "longest_ns": longest, "rest": more}


def _map(found: Explanation) -> dict[str, Any] | None:
    """Workers as cells: a row per stage and a column per replica where both are known, else one after the other."""
    slow: Mapping[str, float] = found.worker_slowdown
    if len(slow) < 2:
        return None
    low = max(min(slow.values()), 1.0)
    span = max(max(slow.values()) - low, _LEAST_SPAN)
    place = found.worker_place
    known = all(replica >= 0 and stage >= 0 for replica, stage in place.values())
    names = list(slow)[:_CELLS]
    left_out = len(slow) - len(names)
    stages = sorted({place[name][1] for name in names}) if known else []
    replicas = sorted({place[name][0] for name in names}) if known else []
    names.sort(key=(lambda name: (place[name][1], place[name][0])) if known else _natural)
    cells = [
        {
            "tip": f"{plain(name)}\nslowdown {slow[name]:.3f}",
            "heat": f"{heat:.3f}",
            "dark": heat > _DARK,
            "label": "" if known else plain(name),
            "column": replicas.index(place[name][0]) + 2 if known else 0,
            "row": stages.index(place[name][1]) + 1 if known else 0,
        }
        for name, heat in ((name, min(max(slow[name] - low, 0.0) / span, 1.0)) for name in names)
    ]
    every = -(-len(replicas) // 16) or 1
    return {
        "grid": known,
        "cells": cells,
        "stages": stages,
        "columns": len(replicas),
        "ticks": [{"column": at + 2, "name": replicas[at]} for at in range(0, len(replicas), every)],
        "low": f"{low:.2f}",
        "high": f"{low + span:.2f}",
        "rest": f"The slowest {len(names):,} workers of {len(slow):,}." if left_out else "",
        "meaning": "A worker's slowdown is the smaller of its replica's and its stage's."
        if known
        else "Slowdown with only this rank as measured, all else ideal.",
    }


def _natural(name: str) -> tuple[int, str]:
    digits = name.rsplit(" ", 1)[-1]
    return (int(digits) if digits.isascii() and digits.isdigit() else 0, name)


def _steps(found: Explanation) -> dict[str, Any] | None:
    """Slowdown per step as columns above 1."""
    if len(found.step_slowdown) < 2:
        return None
    items = list(found.step_slowdown.items())[:_BARS]
    top = max(max(value for _, value in items), found.slowdown, 1 + _LEAST_SPAN)
    low = min(1.0, *(value for _, value in items))
    high = top + 0.06 * (top - low)
    width = _CHART_W / len(items)

    def y(value: float) -> float:
        return _CHART_H * (high - value) / (high - low)

    bars = [
        {
            "x": f"{at * width + width * 0.12:.2f}",
            "width": f"{width * 0.76:.2f}",
            "y": f"{min(y(value), y(1.0)):.2f}",
            "height": f"{max(abs(y(1.0) - y(value)), 0.8):.2f}",
            "tip": f"step {step}\nslowdown {value:.3f}, "
            f"{figures.duration(found.step_measured_ns.get(step, 0))} measured",
        }
        for at, (step, value) in enumerate(items)
    ]
    every = -(-len(items) // 12)
    return {
        "bars": bars,
        "mean_y": f"{y(found.slowdown):.2f}",
        "mean_at": f"{y(found.slowdown) / _CHART_H * 100:.2f}",
        "mean": f"{found.slowdown:.3f}",
        "one_y": f"{y(1.0):.2f}",
        "lines": [
            {"at": f"{y(v) / _CHART_H * 100:.2f}", "y": f"{y(v):.2f}", "label": f"{v:.2f}"} for v in _nice(low, top)
        ],
        "ticks": [
            {"at": f"{(at + 0.5) * width / _CHART_W * 100:.2f}", "label": items[at][0]}
            for at in range(0, len(items), every)
        ],
        "rest": f"The first {_BARS} of {len(found.step_slowdown):,} steps." if len(found.step_slowdown) > _BARS else "",
    }


def _nice(low: float, high: float) -> list[float]:
    step = figures.round_step((high - low) / 5)
    first = int(low / step)
    return [at * step for at in range(first, first + 8) if low - 1e-9 <= at * step <= high]
