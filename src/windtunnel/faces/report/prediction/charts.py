"""Geometry of the report's pictures: parts of bars and what they are parts of, and every path; and heat maps of
ranks, host x GPU and stage x replica, as small data that the page's script paints.

A rank's colour is the share of the step for which it is busy. Ranks come as runs of classes, so 100,000 of them are a
few kilobytes; the page unrolls them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windtunnel.faces.report import figures
from windtunnel.faces.report.figures import plain
from windtunnel.faces.report.prediction.categories import Category, label_on_lane
from windtunnel.faces.report.prediction.ranks import makespan_ns
from windtunnel.faces.report.prediction.rows import memory_parts
from windtunnel.faces.report.prediction.trace import streams_of
from windtunnel.physics.step.result import Disturbed, Interval, Result, StageReport
from windtunnel.units import format_bytes

Parts = list[tuple[Category, int]]  # of a bar: what each is, and how much
_PATH_W, _PATH_H = 1000, 100
# Passes of a pipeline are told apart by shade: all are compute.
PASSES = {
    "forward": Category("forward", "forward", "compute-1"),
    "backward": Category("backward", "backward", "compute-0"),
    "weight": Category("weight", "weight gradient", "compute-2"),
}


def band(p5: int, middle: int, p95: int) -> dict[str, str]:
    """Where the p5-p95 band and the prediction lie on a track that shows as much again around the band."""
    margin = max((p95 - p5) * 0.4, 1.0)
    low, span = p5 - margin, p95 - p5 + 2 * margin
    return {
        "left": f"{(p5 - low) / span * 100:.2f}",
        "width": f"{(p95 - p5) / span * 100:.2f}",
        "middle": f"{min(max((middle - low) / span, 0.0), 1.0) * 100:.2f}",
    }


def breakdown(result: Result, categories: Mapping[str, Category]) -> dict[str, Any]:
    """The whole step as one stacked bar and its legend; printed times and shares add up exactly."""
    keys = [key for key in categories if result.breakdown_ns.get(key)]
    parts = [result.breakdown_ns[key] for key in keys]
    amounts, shares = figures.times(parts), figures.shares(parts)
    rows = list(zip((categories[key] for key in keys), parts, amounts, shares, strict=False))
    return {"rows": rows, "whole": sum(parts), "total": amounts[-1]}


def classes(result: Result) -> dict[str, Any]:
    """What rank classes are, in words, and the room in pixels that the longest of their names needs."""
    numbers = {one.stage for one in result.stages} | {one.stage for one in result.memory}
    names = list(map(result.class_name, numbers))
    word = "class of ranks" if any("rank" in name for name in names) else "pipeline stage"
    return {"word": word, "name_width": max(66, 7 * max(map(len, names), default=0))}


def stage_rows(result: Result, categories: Mapping[str, Category]) -> list[tuple[StageReport, int, Parts]]:
    """One stacked bar per stage, in the colours of the whole: the stage, its time and the parts of that."""
    return [
        (
            stage,
            sum(stage.breakdown_ns.values()),
            [(categories[key], stage.breakdown_ns[key]) for key in categories if stage.breakdown_ns.get(key)],
        )
        for stage in sorted(result.stages, key=lambda stage: stage.stage)
    ]


def memory_bars(result: Result) -> dict[str, Any]:
    """One stacked bar per stage, on a scale that holds capacity and fullest stage, and the fullest stage as a table."""
    if not result.memory:
        return {"rows": []}
    most = (max(result.capacity_of(stage), stage.device_bytes) for stage in result.memory)
    scale = max(most) * 1.04 or 1
    bars = [
        (stage, [(category, n_bytes) for category, n_bytes in memory_parts(stage) if n_bytes > 0])
        for stage in sorted(result.memory, key=lambda stage: stage.stage)
    ]
    parts = [(category, n_bytes) for category, n_bytes in memory_parts(result.peak_memory) if n_bytes]
    amounts = figures.memory_column([n_bytes for _, n_bytes in parts])
    return {
        "rows": bars,
        "scale": scale,
        "ticks": [(n, n * figures.GIB) for n in _nice_steps(scale / figures.GIB, wanted=6)],
        "legend": [(*part, amount) for part, amount in zip(parts, amounts, strict=False)],
        "total": amounts[-1],
    }


def memory_curves(result: Result) -> list[dict[str, Any]]:
    """Allocated memory over the step: one small picture per stage, all on one scale, step curves over 1000 x 100."""
    stages = [stage for stage in sorted(result.memory, key=lambda stage: stage.stage) if stage.timeline]
    if not stages:
        return []
    top = _top_bytes(result)
    end = _end_ns(result)
    curves = []
    for stage in stages:
        points = sorted(stage.timeline)
        line = "".join(
            f"{'M' if i == 0 else 'H'}{_x(t, end)}{f' {_y(b, top)}' if i == 0 else f'V{_y(b, top)}'}"
            for i, (t, b) in enumerate(points)
        )
        line += f"H{_PATH_W}"
        curves.append(
            {
                "name": result.class_name(stage.stage),
                "line": line,
                "area": f"{line}V{_PATH_H}H{_x(points[0][0], end)}Z",
                "capacity_y": _y(result.capacity_of(stage), top),
                "peak_left": f"{min(stage.peak_time_ns / end, 1.0) * 100:.2f}",
                "peak_top": f"{(1 - stage.peak_allocated_bytes / top) * 100:.2f}",
                "peak": format_bytes(stage.peak_allocated_bytes),
                "over": stage.device_bytes > result.capacity_of(stage),
            }
        )
    return curves


def curve_data(result: Result) -> dict[str, Any]:
    """The same curves as numbers, for the read-out under the pointer."""
    stages = [stage for stage in sorted(result.memory, key=lambda stage: stage.stage) if stage.timeline]
    return {
        "end": _end_ns(result),
        "times": [[t for t, _ in sorted(stage.timeline)] for stage in stages],
        "bytes": [[b for _, b in sorted(stage.timeline)] for stage in stages],
    }


def timeline_data(result: Result, categories: Mapping[str, Category]) -> dict[str, Any]:
    """The excerpt as columns, ops grouped by lane (stage, stream) in order of time; starts count from the first op."""
    streams = streams_of(result)
    lanes = [(stage, stream) for stage, names in streams.items() for stream in names]
    lane_of = {lane: i for i, lane in enumerate(lanes)}
    ops = sorted(
        result.excerpt, key=lambda op: (lane_of[op.stage, op.stream], op.start_ns, -op.end_ns, op.label, op.category)
    )
    first = min((op.start_ns for op in ops), default=0)
    painted = [_painted(op, categories) for op in ops]
    reading_order = [*PASSES, *categories]
    used = sorted(set(painted), key=lambda category: reading_order.index(category.key))
    colour_at = {category: i for i, category in enumerate(used)}
    labels = sorted({op.label for op in ops})
    label_at = {label: i for i, label in enumerate(labels)}
    counts = Counter((op.stage, op.stream) for op in ops)
    return {
        "first": first,
        "span": max((op.end_ns for op in ops), default=0) - first,
        "categories": [{"label": plain(category.label), "slot": category.slot} for category in used],
        "labels": [plain(label) for label in labels],
        "lanes": [
            {"stage": stage, "name": result.class_name(stage), "stream": plain(stream), "count": counts[stage, stream]}
            for stage, stream in lanes
        ],
        "start": [op.start_ns - first for op in ops],
        "length": [op.end_ns - op.start_ns for op in ops],
        "category": [colour_at[category] for category in painted],
        "label": [label_at[op.label] for op in ops],
    }


def _painted(op: Interval, categories: Mapping[str, Category]) -> Category:
    category = categories.get(f"exposed {op.category}", categories[op.category])  # the breakdown's colour
    if category.family != "compute":
        return replace(category, label=label_on_lane(category.key))
    words = re.findall(r"[a-z]+", op.label.lower())
    if not words or words[0] not in ("forward", "backward", "weight"):
        return category
    return PASSES["weight" if "weight" in words else words[0]]


def _nice_steps(top: float, wanted: int) -> list[int]:
    """0, s, 2s ... up to `top`, s of the form 1, 2, 5 x 10^k and at least 1."""
    return list(range(0, math.floor(top) + 1, round(figures.round_step(max(top / wanted, 1.0)))))


def _end_ns(result: Result) -> int:
    return max(result.step_time_ns, max((t for stage in result.memory for t, _ in stage.timeline), default=0), 1)


def _top_bytes(result: Result) -> float:
    most = (max(result.capacity_of(stage), stage.peak_allocated_bytes) for stage in result.memory)
    return max(*most, 1) * 1.05


def _x(time_ns: int, end_ns: int) -> str:
    return f"{time_ns / end_ns * _PATH_W:.1f}".removesuffix(".0")


def _y(n_bytes: float, top: float) -> str:
    return f"{(1 - n_bytes / top) * _PATH_H:.2f}".rstrip("0").rstrip(".")


LEAST_SPAN = 0.01  # of the step that the scale covers, so that a calm job does not look like a troubled one


def heat_data(result: Result) -> dict[str, Any] | None:
    """What the script needs; None where ranks were not told apart."""
    disturbed = result.disturbed
    if disturbed is None or not disturbed.class_runs or makespan_ns(disturbed) <= 0:
        return None
    stages, replicas, cell = _pipeline(result.spec, result.n_gpus)
    low, high = _scale(disturbed)
    texts = sorted({text for one in disturbed.rank_classes for text in one.disturbed_by})
    place = {text: i for i, text in enumerate(texts)}
    return {
        "makespan": makespan_ns(disturbed),
        "low": low,
        "high": high,
        "host": _positive(_at(result.spec, "cluster", "gpus_per_node"), 8),
        "stages": stages,
        "replicas": replicas,
        "cell": cell,
        "texts": [plain(text) for text in texts],
        "waiting": [one.waiting_ns for one in disturbed.rank_classes],
        "by": {
            str(i): [place[t] for t in one.disturbed_by]
            for i, one in enumerate(disturbed.rank_classes)
            if one.disturbed_by
        },
        "runs": [number for run in disturbed.class_runs for number in run],
    }


def _scale(disturbed: Disturbed) -> tuple[float, float]:
    total = makespan_ns(disturbed)
    busy = [one.busy_ns / total for one in disturbed.rank_classes]
    low, high = min(busy), max(busy)
    if high - low < LEAST_SPAN:
        low = max(0.0, min((low + high) / 2, 1.0 - LEAST_SPAN / 2) - LEAST_SPAN / 2)
        high = low + LEAST_SPAN
    return low, high


def _pipeline(spec: Mapping[str, Any], n_gpus: int) -> tuple[int, int, int]:
    """(stages, replicas, ranks of a cell); (0, 0, 0) where the plan does not say."""
    sizes = [_positive(_at(spec, "plan", name), 0) for name in ("pp", "dp", "tp", "cp")]
    stages, replicas, cell = sizes[0], sizes[1], sizes[2] * sizes[3]
    return (stages, replicas, cell) if stages * replicas * cell == n_gpus else (0, 0, 0)


def _at(spec: Mapping[str, Any], part: str, name: str) -> Any:
    found = spec.get(part)
    return found.get(name) if isinstance(found, Mapping) else None


def _positive(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise
