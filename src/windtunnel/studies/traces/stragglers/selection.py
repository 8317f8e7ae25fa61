"""The parts of a trace that a user wants mended, from words such as "stage=3": which ops they are.

worker=12        the worker of that rank, or of that name as the screen prints it ("replica 2 stage 1")
stage=3          a pipeline stage
replica=8        a data-parallel replica
step=40          a training step, in operation tables
op=gemm          a kind of op as the screen prints it, an op by its name, or all whose name begins with it
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.studies.traces.trace import Trace

_FIELDS = ("worker", "stage", "replica", "step", "op")
_REMEDY = "name a part, as worker=12, stage=3, replica=8, step=40 or op=backward-compute"
_MOST_KNOWN = 40


def chosen_ops(trace: Trace, wanted: Sequence[str]) -> NDArray[np.bool_]:
    """bool[n]: the ops of all parts in `wanted` together.

    Raises:
        SpecError: no part, or one that this trace does not tell apart.
        UnknownNameError: no such worker, stage, replica, step or op.
    """
    chosen = np.zeros(trace.graph.n_ops, np.bool_)
    for text in wanted:
        field, equals, value = (word.strip() for word in text.partition("="))
        field = "worker" if field == "rank" else field
        if not equals or not value or field not in _FIELDS:
            raise SpecError("without", text, _REMEDY)
        chosen |= _of(trace, field, value, text)
    return chosen


def _of(trace: Trace, field: str, value: str, text: str) -> NDArray[np.bool_]:
    if field == "op":
        return _ops_called(trace, value)
    if field == "step":
        if len(trace.steps) == 1:
            raise SpecError("without", text, "this trace is of one step, or is replayed as one")
        return np.asarray(trace.step == _index(field, value, [str(step) for step in trace.steps]))
    if field == "worker":
        by_rank = np.flatnonzero(trace.worker_rank == int(value)) if _is_number(value) else np.zeros(0, np.int64)
        if len(by_rank):
            return np.isin(trace.worker, by_rank)
        return np.asarray(trace.worker == _index(field, value, trace.worker_names))
    of_worker = trace.stage if field == "stage" else trace.replica
    numbers = sorted({int(number) for number in of_worker if number >= 0})
    if not numbers:
        raise SpecError("without", text, f"this trace does not say the {field} of its ranks; name workers instead")
    number = numbers[_index(field, value, [str(number) for number in numbers])]
    return np.asarray(of_worker[trace.worker] == number)


def _ops_called(trace: Trace, value: str) -> NDArray[np.bool_]:
    graph, wanted = trace.graph, value.lower()
    kinds = [number for number, name in enumerate(graph.categories) if name.lower() == wanted]
    of_op = np.isin(graph.category, kinds)
    if not of_op.any():
        labels = [n for n, label in enumerate(graph.labels) if label.lower() == wanted]
        labels = labels or [n for n, label in enumerate(graph.labels) if label.lower().startswith(wanted)]
        of_op = np.isin(graph.label, labels)
    if not of_op.any():
        used = [graph.categories[int(number)] for number in np.unique(graph.category)]
        raise UnknownNameError("op", value, used[:_MOST_KNOWN], "Names of single ops do as well.")
    return np.asarray(of_op)


def _index(field: str, value: str, names: Sequence[str]) -> int:
    wanted = str(int(value)) if _is_number(value) else value.lower()
    for number, name in enumerate(names):
        if name.lower() == wanted:
            return number
    raise UnknownNameError(field, value, names[:_MOST_KNOWN])


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 19
