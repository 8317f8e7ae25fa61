"""A lowered step: its graph, how long each op takes, and which op is which action of the schedule.

A program's streams are `compute`, one per direction of arriving pipeline traffic, and `dp`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.price import Price
from windtunnel.physics.graph import Graph
from windtunnel.physics.model import Model
from windtunnel.studies.training.lowering.pass_builder import Segment
from windtunnel.studies.training.schedules import Schedule

STREAMS = ("compute", "pp forward", "pp backward", "dp")
COMPUTE, PP_FORWARD, PP_BACKWARD, DP = range(4)


@dataclass(frozen=True, eq=False)
class LoweredStep:
    """A lowered step. Ops of pass `i` have category `i`; the other categories are named in `graph.categories`."""

    graph: Graph
    duration_ns: NDArray[np.int64]
    interference: NDArray[np.uint8]
    segments: tuple[Segment, ...]
    segment_names: tuple[str, ...]
    segment_of: NDArray[np.int32]  # [virtual stages, kinds] -> segment, -1 where there is none
    action_first: NDArray[np.int64]  # [actions] first op of each action
    action_last: NDArray[np.int64]  # [actions] last compute op of each action
    schedule: Schedule
    optimizer: tuple[Price, ...]  # per program
    traffic_bytes: dict[str, float]  # per GPU and step, mean over programs, of what is not inside passes
    nic_share: NDArray[np.float64]  # [ops] share of a GPU's NIC that each op takes while it runs
    sender: NDArray[np.int64]  # [ops] of a send: the program that it comes from; -1 elsewhere
    receiver: NDArray[np.int64]  # [ops] of a send: the program that it goes to; -1 elsewhere

    def runs(self) -> NDArray[np.int64]:
        """int64[segments]: how often each pass runs, over all programs."""
        used = self.segment_of[self.schedule.stage_of, self.schedule.kind]
        return np.bincount(used, minlength=len(self.segments))


@dataclass(frozen=True, eq=False)
class Tokens:
    """Where a step's tokens tell: ops of actions and ops of receives, each in one row, and what sends count as."""

    ops: slice  # of all actions
    segment: NDArray[np.int64]  # [ops] the pass that each is of
    part: NDArray[np.int64]  # [ops] which part of it, of how many
    parts: NDArray[np.int64]
    far: NDArray[np.int64]  # [ops] of a send: 1 across scale-up domains, 0 inside one; -1 elsewhere
    receives: slice
    received_far: NDArray[np.int64]  # [receives]
    sends: dict[str, int]  # how many there are, by what their bytes count as
    reach: tuple[bool, ...]  # whether any of them are far


# Steps without what hangs on their tokens. The model and the schedule, which go in by identity, are kept with them.
FRAMES: OrderedDict[tuple[object, ...], tuple[Model, Schedule, LoweredStep, Tokens]] = OrderedDict()
