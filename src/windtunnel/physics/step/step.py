"""A priced step: one program for each class of ranks, what each op takes alone, and who slows whom.

Plans (`training`) and recorded programs (`programs`) become one; from here on both are asked in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Slowdown, Timeline, replay
from windtunnel.physics.engine.sharing import Sharing
from windtunnel.physics.graph import Graph
from windtunnel.physics.step.nic_sharing import step_sharing


@dataclass(frozen=True, eq=False)
class Step:
    """A step under given disturbances. Ranks of one program share one timeline."""

    graph: Graph
    duration_ns: NDArray[np.int64]  # [ops] each alone on its GPU and its NIC
    interference: NDArray[np.uint8]  # [ops] class of what an op slows and is slowed by; 0: neither
    slowdown: NDArray[np.float64]  # [classes, classes] as `engine.Slowdown` takes them
    sharing: Sharing | None  # of NICs; None where nothing uses one
    program_of: NDArray[np.int64]  # [ranks]

    def replay(self, duration_ns: NDArray[np.int64] | None = None) -> Timeline:
        """When each op runs; `duration_ns`: int64[ops] instead of the step's own."""
        durations = self.duration_ns if duration_ns is None else duration_ns
        return replay(self.graph, durations, Slowdown(self.interference, self.slowdown), self.sharing)


def step_of(
    graph: Graph,
    duration_ns: NDArray[np.int64],
    interference: NDArray[np.uint8],
    slowdown: NDArray[np.float64],
    nic_share: NDArray[np.float64],
    program_of: NDArray[np.int64],
) -> Step:
    """A step whose ops take `nic_share` (float64[ops]) of the NIC of each of their GPUs; the others as in `Step`."""
    return Step(graph, duration_ns, interference, slowdown, step_sharing(graph, nic_share), program_of)
