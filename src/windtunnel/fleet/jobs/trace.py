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
        """These rows only."""
        pick = rows.tolist()
        taken: dict[str, Any] = {name: getattr(self, name)[rows] for name in NUMBERS}
        taken |= {name: [getattr(self, name)[at] for at in pick] for name in ("name", "model", "user")}
        taken["columns"] = {key: [values[at] for at in pick] for key, values in self.columns.items()}
        return replace(self, **taken)
