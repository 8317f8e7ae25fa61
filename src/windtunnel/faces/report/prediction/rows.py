"""Rows that the console and the page share: parts of a GPU's memory, what limits a step, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from windtunnel.faces.report import figures
from windtunnel.faces.report.figures import plain
from windtunnel.faces.report.prediction.categories import CONTEXT, UNUSED, Category, family_of, memory_categories
from windtunnel.physics.step.result import Advice, Limit, Result, StageMemory
from windtunnel.units import format_bytes


def memory_parts(stage: StageMemory) -> list[tuple[Category, int]]:
    """Parts at the peak, in reading order: the allocated categories, what the allocator caches, and what is outside it.

    The allocated and the reserved peak may fall at different moments; the cached part is their difference.
    """
    parts = {
        **stage.categories,
        UNUSED: stage.peak_reserved_bytes - stage.peak_allocated_bytes,
        CONTEXT: stage.device_bytes - stage.peak_reserved_bytes,
    }
    return [(category, parts[key]) for key, category in memory_categories(parts).items()]


_WORK = ("compute", "memory", "optimizer")


def limit_groups(limits: Sequence[Limit]) -> list[tuple[str, list[Limit]]]:
    """(title, limits, largest first) of each group that has any."""
    ordered = sorted(limits, key=lambda limit: (-limit.share, limit.what))
    work = [limit for limit in ordered if family_of(limit.what) in _WORK]
    overheads = [limit for limit in ordered if family_of(limit.what) not in _WORK]
    return [(title, group) for title, group in (("overheads", overheads), ("the work itself", work)) if group]


KINDS = {
    "plan": "",
    "numbers": "in other formats of numbers: another computation",
    "others": "not advice, as the framework is not known to have it; `predict` takes it",
}


class Row(NamedTuple):
    """One change, ready to be shown."""

    gain: str
    step: str
    memory: str
    flags: str


def advice_view(result: Result) -> tuple[str, str, list[tuple[str, list[Row]]]]:
    """Title, a note under it and (name, rows) of each kind; an empty title where nothing was tried."""
    if not result.advice_tried:
        return "", "", []
    out = result.infeasible is not None
    title = "Ways out that were predicted to fit" if out else "What would make it faster, each predicted"
    note = f"{result.advice_tried:,} legal changes of the plan tried; step against now, step, peak memory"
    if not result.advice:
        told = "none fits: see `windtunnel plan`" if out else "none makes the step shorter by half a percent"
        return title, f"{note}; {told}", []
    groups = []
    for kind, name in KINDS.items():
        rows = [_row(one) for one in result.advice if one.kind == kind]
        if rows:
            groups.append((name, rows))
    return title, note, groups


def _row(one: Advice) -> Row:
    memory = format_bytes(one.peak_memory_bytes)
    return Row(f"{-100 * one.gain:+.1f} %", figures.duration(one.step_time_ns), memory, plain(one.flags))
