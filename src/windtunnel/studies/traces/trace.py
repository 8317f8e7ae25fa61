"""A trace of a real job, as every importer hands it over: a graph, measured durations, and what each op is.

`Graph` programs are (step, worker) pairs: steps never wait for each other, so each is judged by itself. A *worker* is
what the trace tells apart: a rank, or one rank of a group that works in step (tensor parallel ranks, say).

The duration of a communication op is its *transfer* time, from the arrival of the last member to its end; the waiting
before it follows from the replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.program import Graph
from windtunnel.studies.traces.by_class import StepTime


@dataclass(frozen=True, eq=False)
class Trace:
    """What was read from the files. n ops, w workers, s steps; graph.categories are the kinds of op."""

    source: str  # how messages call the format: "operation table", "Kineto", "Chakra"
    graph: Graph
    duration_ns: NDArray[np.int64]  # [n]
    peers: NDArray[np.int32]  # [n] ops with the same number do the same thing: without stragglers they take as long
    is_communication: NDArray[np.bool_]  # [n] levelled by the median, all others by the mean
    worker: NDArray[np.int32]  # [n]
    step: NDArray[np.int32]  # [n] index into steps
    worker_names: tuple[str, ...]  # [w]
    replica: NDArray[np.int32]  # [w] data-parallel rank, -1 where the trace does not say
    stage: NDArray[np.int32]  # [w] pipeline stage, -1 where the trace does not say
    steps: tuple[int, ...]  # [s] as the trace numbers them
    measured_ns: NDArray[np.int64]  # [s] first start to last end in the trace
    worker_rank: NDArray[np.int64]  # [w] global rank; of equally slow workers the lowest is named first
    ends_step: NDArray[np.bool_] | None = None  # [n] ops with which an ideal step ends; None: with the last of all
    forward_backward_correlation: float | None = None  # of the two times of a micro-batch; None where not known
    rank_steps: tuple[StepTime, ...] = ()  # each step of each rank by class of op, where the format tells
    notes: tuple[str, ...] = ()  # what was left out, repaired or not matched, with counts and the first example

    def __post_init__(self) -> None:
        n, w = self.graph.n_ops, len(self.worker_names)
        for name in ("duration_ns", "peers", "is_communication", "worker", "step"):
            assert len(getattr(self, name)) == n, f"Trace.{name} has no entry per op"
        assert len(self.replica) == len(self.stage) == len(self.worker_rank) == w
        assert len(self.steps) == len(self.measured_ns) > 0
