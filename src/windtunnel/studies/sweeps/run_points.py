"""Runs points in a worker process: a verb by its name, its scalars as outputs, its failure as a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from windtunnel.errors import UserError
from windtunnel.files.document import read_mapping
from windtunnel.questions import question_class, read, run
from windtunnel.questions.changing import nested, set_paths
from windtunnel.questions.words import parts_from_files

if TYPE_CHECKING:
    from collections.abc import Callable


QUESTION = "question"  # in place of a module
Row = dict[str, Any]  # status, reason, outputs


def run_points(function: str, points: Sequence[Mapping[str, object]]) -> list[Row]:
    """`function`: `question:VERB`, or `module:name` that is called; `points`: inputs by dotted name. One row each."""
    module, _, name = function.partition(":")
    if module == QUESTION:
        return [_row(partial(_answer, name), inputs) for inputs in points]
    called = getattr(import_module(module), name)
    return [_row(partial(_call, called), inputs) for inputs in points]


def _answer(verb: str, inputs: Mapping[str, object]) -> object:
    """The answer to the question that inputs ask; a part may be the name of its file. Raises UserError."""
    data: dict[str, object] = {}
    for field in parts_from_files(question_class(verb)):
        file = inputs.get(field.path)
        if isinstance(file, str):
            data[field.path] = dict(read_mapping(file, f"it holds the fields of {field.path}"))
    others = {name: value for name, value in inputs.items() if name not in data}
    set_paths(data, question_class(verb), others)
    return run(read({"question": verb, **data}))


def _call(called: Callable[..., object], inputs: Mapping[str, object]) -> object:
    arguments = nested(inputs)
    unmet = _unmet(called, arguments)
    if unmet:
        raise UserError(unmet)
    return called(**arguments)


def _row(answered: Callable[[Mapping[str, object]], object], inputs: Mapping[str, object]) -> Row:
    try:
        answer = answered(inputs)
        outputs = scalars(answer)
    except UserError as error:
        return {"status": "refused", "reason": str(error), "outputs": {}}
    except Exception as error:  # a failed point is a row, never a lost sweep; its reason is kept
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "outputs": {}}
    trouble = getattr(answer, "infeasible", None)
    reason = "" if trouble is None else f"{trouble.reason}: needs {trouble.needed_bytes} of {trouble.capacity_bytes} B"
    return {"status": str(outputs.pop("status", "ok")), "reason": reason, "outputs": outputs}


def _unmet(called: Callable[..., object], entry: Mapping[str, object]) -> str:
    """What is wrong with the names of the inputs; empty if nothing, or if the function does not say what it takes."""
    try:
        takes = signature(called)
    except (TypeError, ValueError):
        return ""
    try:
        takes.bind(**entry)
    except TypeError as error:
        return f"{error}: inputs are {', '.join(takes.parameters)}"
    return ""


def scalars(answer: Any) -> dict[str, object]:
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
    outputs = {name: value for name, value in both.items() if isinstance(value, (bool, int, float, str))}
    if hasattr(answer, "step_time_s"):
        outputs["step_time_s"] = answer.step_time_s
    if hasattr(answer, "peak_memory"):
        outputs["peak_memory_bytes"] = answer.peak_memory.device_bytes
    return dict(sorted(outputs.items()))
