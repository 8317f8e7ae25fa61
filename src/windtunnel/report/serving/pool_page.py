"""One offline HTML page of a pool: each model's latencies, replicas over time, GPUs and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.output_file import write_atomically
from windtunnel.report.pages import page_template
from windtunnel.report.serving.pool_console import COLUMNS, lines_of, rows_of

WIDTH, HEIGHT = 460.0, 120.0


def write_pool_page(found: Mapping[str, Any], name: str, path: Path) -> None:
    """Write the page. `found`: `PoolResult.to_dict()`."""
    write_atomically(path, render_pool(found, name).encode())


def render_pool(found: Mapping[str, Any], name: str) -> str:
    """The whole page; the same result gives the same text."""
    end = max(found["total"]["duration_s"], 1e-9)
    view = {
        "name": name,
        "columns": COLUMNS,
        "rows": rows_of(found),
        "lines": lines_of(found),
        "charts": [_chart(key, one["replicas"], end) for key, one in found["models"].items()],
        "width": WIDTH,
        "height": HEIGHT,
        "specs": {
            key: json.dumps(one["spec"], indent=1, sort_keys=True, default=str) for key, one in found["models"].items()
        },
    }
    return page_template("serving_pool.html.j2").render(**view)


def _chart(name: str, points: Sequence[Mapping[str, Any]], end: float) -> dict[str, Any]:
    most = max([point["serving"] + point["starting"] for point in points] or [1]) or 1

    def line(values: Sequence[float]) -> str:
        parts, before = [], None
        for point, value in zip(points, values, strict=True):
            x, y = min(point["at_s"] / end, 1.0) * WIDTH, HEIGHT * (1 - value / most)
            parts.append(f"M{x:.1f},{y:.1f}" if before is None else f"H{x:.1f}V{y:.1f}")
            before = y
        return "".join(parts) + f"H{WIDTH:.1f}" if parts else ""

    return {
        "name": name,
        "serving": line([point["serving"] for point in points]),
        "all": line([point["serving"] + point["starting"] for point in points]),
        "ticks": [{"y": f"{HEIGHT * (1 - n / most):.1f}", "label": str(n)} for n in sorted({0, most // 2, most})],
        "times": [{"x": f"{share * WIDTH:.1f}", "label": f"{share * end:,.0f} s"} for share in (0.0, 0.5, 1.0)],
    }
