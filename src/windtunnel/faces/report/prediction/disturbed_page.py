"""What disturbances did to a step, for the page: blame bars, the critical path over the pipeline, and waiting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windtunnel.faces.report import figures
from windtunnel.faces.report.figures import MINUS, plain
from windtunnel.faces.report.prediction.categories import Category, label_of, time_categories
from windtunnel.faces.report.prediction.charts import PASSES
from windtunnel.faces.report.prediction.disturbed_lines import band, percent, samples_words
from windtunnel.faces.report.prediction.ranks import Ranks, foremost, makespan_ns, path_words, told_apart, where_words
from windtunnel.physics.step.result import Disturbed, Result, Waiting
from windtunnel.units import format_percent

BLAMED_MOST = 30
WAITING_EACH = 3  # communicators of a kind that are shown at once
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))
TALL_PX = 240  # the whole path's height, for as many stages as there are


def disturbed_view(result: Result, categories: Mapping[str, Category]) -> dict[str, Any] | None:
    """Everything that the page's section needs but the heat maps; None for an undisturbed result."""
    disturbed = result.disturbed
    if disturbed is None:
        return None
    ranks = Ranks(disturbed)
    shown = foremost(disturbed.waiting, WAITING_EACH)
    rest = [one for one in disturbed.waiting if one.worst_ns > 0 and one not in shown]
    return {
        "lost": f"{disturbed.gpus_lost:,.1f}",
        "base": figures.duration(disturbed.undisturbed_step_time_ns),
        "simulated": told_apart(disturbed, result.n_gpus),
        "samples": samples_words(disturbed.samples) if disturbed.samples else "",
        "blame": _blame(disturbed, ranks, result.step_time_ns),
        "more_blame": max(0, len(disturbed.blame) - BLAMED_MOST),
        "spread": any(one.without_p5_p50_p95_ns for one in disturbed.blame),
        "path": _path(disturbed, categories, ranks),
        "path_words": path_words(disturbed, ranks),
        "waiting": _waiting(shown, disturbed, ranks),
        "waiting_rest": _waiting(rest, disturbed, ranks),
    }


def _blame(disturbed: Disturbed, ranks: Ranks, step_ns: int) -> list[dict[str, str]]:
    shown = disturbed.blame[:BLAMED_MOST]
    most = max((max(one.alone_ns, one.without_ns) for one in shown), default=0) or 1
    return [
        {
            "what": plain(one.what),
            "where": where_words(one, ranks),
            "alone": percent(one.alone_ns, disturbed.undisturbed_step_time_ns, "+"),
            "alone_width": f"{max(one.alone_ns, 0) / most * 100:.2f}",
            "mended": percent(one.without_ns, step_ns, MINUS),
            "mended_width": f"{max(one.without_ns, 0) / most * 100:.2f}",
            "band": band(one, step_ns),
        }
        for one in shown
    ]


def _waiting(those: list[Waiting], disturbed: Disturbed, ranks: Ranks) -> list[dict[str, Any]]:
    most = max((one.worst_ns for one in disturbed.waiting), default=0) or 1
    rows = []
    for one in those:
        rows.append(
            {
                "communicator": plain(one.communicator),
                "mean": figures.times([one.mean_ns, most - one.mean_ns])[0],
                "worst": figures.times([one.worst_ns, most - one.worst_ns])[0],
                "mean_width": f"{one.mean_ns / most * 100:.2f}",
                "worst_width": f"{one.worst_ns / most * 100:.2f}",
                "last": ranks.words(one.last_rank) if one.last_rank >= 0 else "",
                "disturbed": bool(ranks.disturbances(one.last_rank)),
            }
        )
    return rows


def _path(disturbed: Disturbed, categories: Mapping[str, Category], ranks: Ranks) -> dict[str, Any] | None:
    """Parts as rectangles: time across, one row per stage."""
    parts, total = disturbed.critical_path, makespan_ns(disturbed)
    if not parts or not total:
        return None
    stages = max(max(part.stage for part in parts), max(one.stage for one in disturbed.rank_classes)) + 1
    painted = _colours({part.what for part in parts}, categories)
    unit = 10.0 ** math.floor(math.log10(total))
    step = next(unit * factor for factor in (0.1, 0.2, 0.5, 1.0) if total / (unit * factor) <= 11)
    unit_ns, unit_name = next((n, name) for n, name in _UNITS if total >= n)
    rows = [
        {
            "slot": painted[part.what].slot,
            "left": f"{part.start_ns / total * 100:.3f}",
            "width": f"{(part.end_ns - part.start_ns) / total * 100:.3f}",
            "top": f"{part.stage / stages * 100:.3f}",
            "disturbed": bool(ranks.disturbances(part.rank)),
            "tip": f"{ranks.words(part.rank)}\nstage {part.stage}, replica {part.replica}: mostly"
            f" {plain(painted[part.what].label)}\n{figures.duration(part.end_ns - part.start_ns)},"
            f" {format_percent((part.end_ns - part.start_ns) / total)} of the step",
        }
        for part in parts
    ]
    every = max(1, math.ceil(stages / 12))
    return {
        "rows": rows,
        "legend": [{"slot": one.slot, "label": plain(one.label)} for one in dict.fromkeys(painted.values())],
        "height": min(max(TALL_PX, 6 * stages), 26 * stages),
        "row": f"{100 / stages:.3f}",
        "stages": [{"at": f"{(n + 0.5) / stages * 100:.3f}", "name": f"stage {n}"} for n in range(0, stages, every)],
        "ticks": [
            {"at": f"{n * step / total * 100:.3f}", "label": f"{n * step / unit_ns:g} {unit_name}" if n else "0"}
            for n in range(math.floor(total * 0.97 / step) + 1)
        ],
    }


def _colours(words: set[str], categories: Mapping[str, Category]) -> dict[str, Category]:
    """What a part of the path mostly is, in the colours of the timeline."""
    unknown = time_categories(
        {word for word in words if f"exposed {word}" not in categories and word not in categories}
    )
    found = {}
    order = [*PASSES]
    for word in sorted(words, key=lambda word: (order.index(word) if word in order else len(order), word)):
        if word.split(" ")[0] in PASSES:
            found[word] = PASSES["weight" if "weight" in word else word.split(" ")[0]]
        else:
            same = categories.get(f"exposed {word}") or categories.get(word) or unknown[word]
            found[word] = Category(word, label_of(word), same.slot)
    return found
