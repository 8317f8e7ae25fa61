"""Runs points in a worker process: a verb by its name, its scalars as outputs, its failure as a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from windtunnel.errors import UserError
from windtunnel.sweeps.points import nested

Row = dict[str, Any]  # status, reason, outputs


def run_points(function: str, points: Sequence[Mapping[str, Any]]) -> list[Row]:
    """`function`: `module:name`; `points`: inputs by dotted name. One row each, in order."""
    module, _, name = function.partition(":")
    called = getattr(import_module(module), name)
    return [_row(called, inputs) for inputs in points]


def _row(called: Any, inputs: Mapping[str, Any]) -> Row:
    try:
        answer = called(**nested(inputs))
    except UserError as error:
        return {"status": "refused", "reason": str(error), "outputs": {}}
    except Exception as error:  # a failed point is a row, never a lost sweep; its reason is kept
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "outputs": {}}
    outputs = scalars(answer)
    trouble = getattr(answer, "infeasible", None)
    reason = "" if trouble is None else f"{trouble.reason}: needs {trouble.needed_bytes} of {trouble.capacity_bytes} B"
    return {"status": str(outputs.pop("status", "ok")), "reason": reason, "outputs": outputs}


def scalars(answer: Any) -> dict[str, Any]:
    """The numbers, words and truths of an answer, and of the first plan where it ranks plans.

    Of a Result also its step in seconds and its peak memory.
    """
    if hasattr(answer, "peak_memory") and is_dataclass(
        answer
    ):  # a Result, whose document is its fields, copied in depth
        document: Any = {field.name: getattr(answer, field.name) for field in fields(answer)}
    else:
        document = answer.to_dict() if hasattr(answer, "to_dict") else answer
    if not isinstance(document, Mapping):
        return {"value": document}
    first = document.get("plans") or [{}]
    both = {**first[0], **document}
    found = {name: value for name, value in both.items() if isinstance(value, (bool, int, float, str))}
    if hasattr(answer, "step_time_s"):
        found["step_time_s"] = answer.step_time_s
    if hasattr(answer, "peak_memory"):
        found["peak_memory_bytes"] = answer.peak_memory.device_bytes
    return dict(sorted(found.items()))
