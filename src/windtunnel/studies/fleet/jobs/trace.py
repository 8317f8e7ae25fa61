"""A trace of jobs as columns: what every reader makes and every clock runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NUMBERS = ("line", "submit_s", "gpus", "duration_s", "deadline_s", "iterations", "batch_size", "start_s")


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs in the order of their file; NaN or an empty text where it does not say. Times are the trace's own."""

    source: str
    name: Sequence[str]
    line: Integers  # of the file, from 1
    submit_s: Floats
    gpus: Integers
    duration_s: Floats  # on `gpus` GPUs
    deadline_s: Floats
    iterations: Floats
    batch_size: Floats
    start_s: Floats  # as it happened
    model: Sequence[str]
    user: Sequence[str]
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further columns of this layout, as texts

    def __len__(self) -> int:
        return len(self.name)

    def where(self, index: int) -> str:
        """Where a job stands, for messages."""
        return f"{self.source} line {int(self.line[index])}"

    def take(self, rows: Integers) -> Jobs:
        """The jobs of these rows only."""
        pick = rows.tolist()
        taken: dict[str, Any] = {name: getattr(self, name)[rows] for name in NUMBERS}
        taken |= {name: [getattr(self, name)[at] for at in pick] for name in ("name", "model", "user")}
        taken["columns"] = {key: [values[at] for at in pick] for key, values in self.columns.items()}
        return replace(self, **taken)


def held_at_once(jobs: Jobs) -> int:
    """The most GPUs that jobs held at one time, by the trace's own starts; 0 where it says none."""
    began = np.flatnonzero((jobs.duration_s > 0) & ~np.isnan(jobs.start_s))
    times = np.concatenate([jobs.start_s[began], jobs.start_s[began] + jobs.duration_s[began]])
    change = np.concatenate([jobs.gpus[began], -jobs.gpus[began]])
    held = np.cumsum(change[np.lexsort((change, times))])  # at one time ends come first
    return int(held.max(initial=0))
