"""A failure process fitted to a user's own log.

The log is a CSV with one row per interruption, `time_h,cause[,component][,node]`, or with counts, `cause,count
[,component]`. What the log does not hold has to be said: how many GPUs were watched, and for how long.

    bursts            failures within ten minutes of another, less what a Poisson process has anyway, over all others
    rate of a cause   its count over the exposure (the maximum likelihood of a Poisson process), less its part of the
                      second failures of bursts, which the process adds by itself
    lemons            nodes that failed more often than chance: at least three times, and with probability below 1e-4
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.table import read_table
from windtunnel.studies.resilience.failures.process import DAY_S, Bursts, Cause, FailureProcess, Lemons, Per, Symptom

BURST_S = 600.0
UNLIKELY = 1e-4
BY_JOB = ("software", "manual", "planned")


def fit_log(path: str | Path, gpus: int, days: float, gpus_per_node: int = 8) -> FailureProcess:
    """The process that makes the log likeliest.

    Raises InputFileError for a file of another form, SpecError where no time passed.
    """
    if not days > 0:
        raise SpecError("days", days, "say for how many days the log was kept")
    rows = _rows(Path(path))
    nodes = -(-gpus // gpus_per_node)
    counts: Counter[tuple[str, str]] = Counter()
    for at, row in enumerate(rows):
        component = (row.get("component") or "unknown").strip().lower()
        counts[(row["cause"].strip(), component)] += _count(path, at, row)
    timed = all((row.get("time_h") or "").strip() for row in rows)
    bursts = _bursts(path, rows, days) if timed else Bursts()
    causes = tuple(
        _cause(name, component, n / (1.0 + bursts.share), gpus, nodes, days)
        for (name, component), n in sorted(counts.items())
    )
    lemons = _lemons([(row.get("node") or "").strip() for row in rows], nodes)
    return FailureProcess(Path(path).stem, f"fitted to {Path(path).name}", causes, lemons, bursts)


def _rows(path: Path) -> list[dict[str, str]]:
    rows = [row for _, row in read_table(path, "give a CSV with time_h,cause,component,node").rows()]
    if not rows or "cause" not in rows[0] or not ("time_h" in rows[0] or "count" in rows[0]):
        raise InputFileError(path, "has no columns cause and time_h or count", "give time_h,cause or cause,count")
    if any(not (row["cause"] or "").strip() for row in rows):
        raise InputFileError(path, "has a row without a cause", "fill it in, if only with `unknown`")
    return rows


def _count(path: str | Path, at: int, row: dict[str, str]) -> int:
    text = (row.get("count") or "1").strip()
    if not (text.isascii() and text.isdigit()):
        raise InputFileError(path, f"row {at + 1}: count {text!r} is no whole number", "correct the row")
    return int(text)


def _cause(name: str, component: str, count: float, gpus: int, nodes: int, days: float) -> Cause:
    per: Per = "job" if component in BY_JOB else "gpu" if component == "gpu" else "node"
    exposure = {"gpu": gpus, "node": nodes, "job": 1}[per] * days * DAY_S
    symptom: Symptom = "planned" if component == "planned" else "manual" if component == "manual" else "explicit"
    lowered = name.lower()
    if "hang" in lowered or "timeout" in lowered:
        symptom = "hang"
    elif "silent" in lowered or lowered == "nan":
        symptom = "silent"
    return Cause(name, component, per, count / exposure, 0 if component in ("software", "manual") else 1, symptom)


def _bursts(path: str | Path, rows: list[dict[str, str]], days: float) -> Bursts:
    try:
        times = sorted(float(row["time_h"]) * 3600.0 for row in rows)
    except ValueError:
        raise InputFileError(path, "has a time_h that is no number", "give hours since the start of the log") from None
    close = [b - a for a, b in pairwise(times) if b - a < BURST_S]
    by_chance = -math.expm1(-len(times) / (days * DAY_S) * BURST_S)
    second = len(close) / len(times) - by_chance
    return Bursts(min(0.99, second / (1.0 - second)), sum(close) / len(close)) if second > 0 else Bursts()


def _lemons(nodes_of_rows: list[str], nodes: int) -> Lemons:
    counts = Counter(node for node in nodes_of_rows if node)
    total = sum(counts.values())
    if total < 10:
        return Lemons()
    lemon = [n for n in counts.values() if n >= 3 and _at_least(n, total / nodes) < UNLIKELY]
    if not lemon or len(lemon) >= nodes:
        return Lemons()
    return Lemons(len(lemon) / nodes, min(sum(lemon) / total, 0.99))


def _at_least(n: int, mean: float) -> float:
    """P[Poisson(mean) >= n]."""
    below = math.fsum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(n))
    return max(0.0, 1.0 - below)
