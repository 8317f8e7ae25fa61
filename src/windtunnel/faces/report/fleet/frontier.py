"""The picture of what lending costs: queueing delay over preempted GPU-hours, marks sized by late requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.faces.report.fleet.console import shown

WIDTH, HEIGHT, MARGIN = 900.0, 320.0, 40.0
COLUMNS = {"queueing_delay_mean_s": "s", "jct_mean_s": "s", "preempted_gpu_hours": "x", "loan_violations": "fine"}
SMALLEST, LARGEST = 5.0, 24.0  # radius of a mark


def frontier_picture(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Marks and rows; `points` as `fleet/loans/frontier.py` gives them."""
    lost = [float(point["preempted_gpu_hours"]) for point in points]
    delay = [float(point["queueing_delay_mean_s"] or 0.0) for point in points]
    late = [float(point["loan_violations"]) for point in points]
    marks = []
    for point, x, y, missed in zip(points, _spread(lost), _spread(delay), late, strict=True):
        radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(missed / max(max(late), 1e-12))
        across, up = MARGIN + x * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - y * (HEIGHT - 2 * MARGIN)
        marks.append((across, up, radius, f"{point['headroom']:.1%}: {shown(missed, 'fine')}"))
    rows = [
        (f"{point['headroom']:.1%}", *(shown(point[key], unit) for key, unit in COLUMNS.items())) for point in points
    ]
    return {"width": WIDTH, "height": HEIGHT, "marks": marks, "rows": rows}


def _spread(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]
