"""Advice as rows: what a change of the plan gives, its step, its memory and its flags. Every one was predicted."""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.report import figures
from windtunnel.report.figures import plain
from windtunnel.result import Advice, Result
from windtunnel.units import format_bytes

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
