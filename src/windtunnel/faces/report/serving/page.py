"""Offline HTML pages: of a serving result (latencies, latency-rate curves, use of time and memory, sources), and of a
pool of models (latencies, replicas over time, GPUs and cost of each)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.report.serving.console import COLUMNS, POOL_COLUMNS, ROWS, duration, lines_of, rows_of
from windtunnel.output_file import write_atomically

WIDTH, HEIGHT = 380.0, 220.0
POOL_WIDTH, POOL_HEIGHT = 460.0, 120.0
CHARTS = (
    ("TTFT", "ttft_mean_s", "ttft_p99_s", "ttft_s"),
    ("TPOT", "tpot_mean_s", "tpot_p99_s", "tpot_s"),
    ("end to end", "e2e_mean_s", None, None),
)


def write_page(result: Mapping[str, Any], curve: Any, path: Path) -> None:
    """Write the page. `result`: `ServingResult.to_dict()`; `curve`: what has `to_dict()` with its points, or None."""
    write_atomically(path, render_page(result, None if curve is None else curve.to_dict()["points"]).encode())


def render_page(result: Mapping[str, Any], points: Sequence[Mapping[str, Any]] | None) -> str:
    """The whole page; the same result gives the same text."""
    spec = result["spec"]
    view = {
        "model": spec["model"],
        "where": f"{result['gpus']} × {spec['gpu']}",
        "engine": spec["engine"],
        "feasible": result["feasible"],
        "reason": result["reason"],
        "regime": result["regime"],
        "promised": result.get("ttft_is_promised", False),
        "columns": COLUMNS,
        "rows": [
            {"name": label, "values": [duration(result[key][name]) for name in COLUMNS]}
            for key, label in ROWS
            if result.get(key) is not None
        ],
        "tiles": _tiles(result),
        "charts": _charts(points, result) if points else [],
        "width": WIDTH,
        "height": HEIGHT,
        "memory": [
            (name.replace("_", " "), f"{value / 2**30:.1f} GiB")
            for name, value in result["memory_bytes_per_gpu"].items()
            if name in ("weights", "activations", "reserved", "kv_cache")
        ],
        "sources": result["sources"],
        "spec": json.dumps(spec, indent=1, sort_keys=True, default=str),
    }
    return page_template("serving.html.j2").render(**view).encode("utf-8", "replace").decode()


def _tiles(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    tiles = [
        (f"{result['output_tokens_per_s']:,.0f}", "output tokens per second"),
        (f"{result['requests_per_s']:,.3g}", "requests per second"),
        (f"{result['utilisation']:.0%}", "of the time at work"),
        (f"{result['batch_mean']:,.1f}", "sequences in a step"),
        (f"{result['kv_use_mean']:.0%}", "of the KV cache used"),
        (f"{result['preemptions']:,}", "preemptions"),
    ]
    if result["slo_attainment"] is not None:
        tiles.insert(0, (f"{result['slo_attainment']:.1%}", "of requests meet the limits"))
    if result["search"] is not None and result["goodput_requests_per_s"] is not None:
        tiles.insert(0, (f"{result['goodput_requests_per_s']:.3g}", "requests per second of goodput"))
    return tiles


def _charts(points: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    charts = []
    most = max(float(point["rate_per_s"]) for point in points)
    for name, mean, tail, limit in CHARTS:
        keys = [key for key in (mean, tail) if key is not None]
        values = [float(point[key]) for point in points for key in keys if point[key]]
        if not values:
            continue
        bound = result["slo"].get(limit) if limit else None
        top = min(max(values), 20.0 * bound) if bound else max(values)
        low, high = math.log(min([*values, bound or math.inf])) - 0.1, math.log(max(top, bound or 0.0)) + 0.1

        def at(value: float, low: float = low, high: float = high) -> float:
            return HEIGHT - min(max((math.log(value) - low) / (high - low), 0.0), 1.0) * HEIGHT

        lines = []
        for kind, key in zip(("mean", "p99"), keys, strict=False):
            dots = [
                {
                    "x": f"{float(point['rate_per_s']) / most * WIDTH:.1f}",
                    "y": f"{at(float(point[key])):.1f}",
                    "rate": float(point["rate_per_s"]),
                    "value": float(point[key]),
                    "tip": f"{point['rate_per_s']:.3g} requests/s: {kind} {duration(float(point[key]))},"
                    f" {point['regime']}",
                    "over": point["regime"] != "stable",
                }
                for point in points
                if point[key]
            ]
            lines.append({"kind": kind, "dots": dots, "path": "M" + "L".join(f"{d['x']},{d['y']}" for d in dots)})
        limited = float(bound) if bound else math.exp((low + high) / 2.0)  # where the line that can be dragged begins
        charts.append(
            {
                "name": name,
                "lines": lines,
                "ticks": [{"y": f"{at(value):.1f}", "label": duration(value)} for value in _round_logs(low, high)],
                "rates": [{"x": f"{rate / most * WIDTH:.1f}", "label": f"{rate:g}"} for rate in _round_steps(most)],
                "line": {
                    "low": f"{low:.4f}",
                    "high": f"{high:.4f}",
                    "start": f"{math.log(limited):.4f}",
                    "label": duration(limited),
                    "y": f"{at(limited):.1f}",
                },
            }
        )
    return charts


def _round_steps(most: float) -> list[float]:
    """Zero to at most `most` in four to ten steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(part * power for part in (0.1, 0.2, 0.5, 1.0) if most / (part * power) <= 6.0 or part == 1.0)
    return [round(step * place, 9) for place in range(int(most / step + 1e-9) + 1)]


def _round_logs(low: float, high: float) -> list[float]:
    """Round values between e^low and e^high, not too many: 1, 2 and 5 times powers of ten, finer where that is few."""
    for digits in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)):
        powers = range(math.floor(low / math.log(10.0)) - 1, math.ceil(high / math.log(10.0)) + 1)
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [value for value in found if low <= math.log(value) <= high]
        if len(found) >= 3:
            return found
    return found


def write_pool_page(found: Mapping[str, Any], name: str, path: Path) -> None:
    """Write the page. `found`: `PoolResult.to_dict()`."""
    write_atomically(path, render_pool(found, name).encode())


def render_pool(found: Mapping[str, Any], name: str) -> str:
    """The whole page; the same result gives the same text."""
    end = max(found["total"]["duration_s"], 1e-9)
    view = {
        "name": name,
        "columns": POOL_COLUMNS,
        "rows": rows_of(found),
        "lines": lines_of(found),
        "charts": [_replica_chart(key, one["replicas"], end) for key, one in found["models"].items()],
        "width": POOL_WIDTH,
        "height": POOL_HEIGHT,
        "specs": {
            key: json.dumps(one["spec"], indent=1, sort_keys=True, default=str) for key, one in found["models"].items()
        },
    }
    return page_template("serving_pool.html.j2").render(**view)


def _replica_chart(name: str, points: Sequence[Mapping[str, Any]], end: float) -> dict[str, Any]:
    most = max([point["serving"] + point["starting"] for point in points] or [1]) or 1

    def line(values: Sequence[float]) -> str:
        parts, before = [], None
        for point, value in zip(points, values, strict=True):
            x, y = min(point["at_s"] / end, 1.0) * POOL_WIDTH, POOL_HEIGHT * (1 - value / most)
            parts.append(f"M{x:.1f},{y:.1f}" if before is None else f"H{x:.1f}V{y:.1f}")
            before = y
        return "".join(parts) + f"H{POOL_WIDTH:.1f}" if parts else ""

    return {
        "name": name,
        "serving": line([point["serving"] for point in points]),
        "all": line([point["serving"] + point["starting"] for point in points]),
        "ticks": [{"y": f"{POOL_HEIGHT * (1 - n / most):.1f}", "label": str(n)} for n in sorted({0, most // 2, most})],
        "times": [{"x": f"{share * POOL_WIDTH:.1f}", "label": f"{share * end:,.0f} s"} for share in (0.0, 0.5, 1.0)],
    }
