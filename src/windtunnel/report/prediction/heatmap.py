"""Heat maps of ranks, host x GPU and stage x replica, as small data that the page's script paints.

A rank's colour is the share of the step for which it is busy. Ranks come as runs of classes, so 100,000 of them are a
few kilobytes; the page unrolls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.report.figures import plain
from windtunnel.report.prediction.ranks import makespan_ns
from windtunnel.result import Disturbed, Result

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
