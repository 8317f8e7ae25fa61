"""Runs points in a worker process: a verb by its name, its scalars as outputs, its failure as a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any

from windtunnel.errors import UserError
from windtunnel.studies.sweeps.points import nested

Row = dict[str, Any]  # status, reason, outputs


def run_points(function: str, points: Sequence[Mapping[str, Any]]) -> list[Row]:
    """`function`: `module:name`; `points`: inputs by dotted name. One row each, in order."""
    module, _, name = function.partition(":")
    called = getattr(import_module(module), name)
    return [_row(called, inputs) for inputs in points]


def _row(called: Any, inputs: Mapping[str, Any]) -> Row:
    asked = nested(inputs)
    unmet = _unmet(called, asked)
    if unmet:
        return {"status": "refused", "reason": unmet, "outputs": {}}
    try:
        answer = called(**asked)
        outputs = scalars(answer)
    except UserError as error:
        return {"status": "refused", "reason": str(error), "outputs": {}}
    except Exception as error:  # a failed point is a row, never a lost sweep; its reason is kept
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "outputs": {}}
    trouble = getattr(answer, "infeasible", None)
    reason = "" if trouble is None else f"{trouble.reason}: needs {trouble.needed_bytes} of {trouble.capacity_bytes} B"
    return {"status": str(outputs.pop("status", "ok")), "reason": reason, "outputs": outputs}


def _unmet(called: Any, asked: Mapping[str, Any]) -> str:
    """What is wrong with the names of the inputs; empty if nothing, or if the function does not say what it takes."""
    try:
        takes = signature(called)
    except (TypeError, ValueError):
        return ""
    try:
        takes.bind(**asked)
    except TypeError as error:
        return f"{error}: inputs are {', '.join(takes.parameters)}"
    return ""


def scalars(answer: Any) -> dict[str, Any]:
    """The numbers, words and truths of an answer, and of the first plan where it ranks plans.

    Of a Result also its step in seconds and its peak memory.
    """
    # A Result's document is its fields, copied in depth.
    shallow = is_dataclass(answer) and (hasattr(answer, "peak_memory") or not hasattr(answer, "to_dict"))
    if shallow:
        document: Any = {field.name: getattr(answer, field.name) for field in fields(answer)}
    else:
        document = answer.to_dict() if hasattr(answer, "to_dict") else answer
    if not isinstance(document, Mapping):
        document = {"value": document}
    first = document.get("plans") or [{}]
    both = {**first[0], **document}
    found = {name: value for name, value in both.items() if isinstance(value, (bool, int, float, str))}
    if hasattr(answer, "step_time_s"):
        found["step_time_s"] = answer.step_time_s
    if hasattr(answer, "peak_memory"):
        found["peak_memory_bytes"] = answer.peak_memory.device_bytes
    return dict(sorted(found.items()))
