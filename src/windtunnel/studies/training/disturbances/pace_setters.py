"""Pace setters: which rank sets the pace of its cell, and which part of a disturbed pass each rank itself works.

The ranks of a cell (tensor x context, and the replicas tied to it by experts or sharded parameters) meet in every
layer. When one of them is slow, all take as long as it does, but only that one works all the while: the others wait
for it inside the pass. A rank's own part of what a disturbance adds is taken as proportional to its own excess,

    own time = nominal + (cell's time - nominal) x (own factor - 1) / (cell's factor - 1)

which is exact for the rank that sets the pace and for undisturbed ones, and linear between for a second slow GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.step.disturbances.attribution import Ranks, ranks_of
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.studies.training.disturbances.cells import tied_replicas
from windtunnel.studies.training.layout import Layout


@dataclass(frozen=True, eq=False)
class PaceSetters:
    """Disturbances rank by rank. Rank = stage x (replicas x cell) + replica x cell + place in the cell."""

    stages: int
    replicas: int
    cell: int
    tied: int  # neighbouring replicas that wait for each other inside a pass
    ranks: Ranks
    own: NDArray[np.float64]  # [ranks] its own part of what its cell's disturbances add to a pass; 1 in a calm cell
    own_link: NDArray[np.float64]  # [ranks] the same of transfers between cells, against its stage's slowest link
    pace: NDArray[np.int64]  # [replicas, stages] the rank that sets the cell's pace; -1 where none is disturbed
    slowest_link: NDArray[np.int64]  # [stages] the rank with its stage's slowest link; -1 where all are sound

    def speaker(self, replica: NDArray[np.int64], stage: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rank to name for each cell: the one that sets its pace, else its first."""
        pace = self.pace[replica, stage]
        return np.where(pace >= 0, pace, (stage * self.replicas + replica) * self.cell)


def pace_setters_of(layout: Layout, slow: Sequence[Slow]) -> PaceSetters:
    """Who is disturbed by what, and who sets the pace of each cell."""
    stages, replicas, cell = layout.plan.pp, layout.dp, layout.plan.tp * layout.plan.cp
    n, tied = stages * replicas * cell, tied_replicas(layout)
    compute, link, more_work = np.ones(n), np.ones(n), np.ones(n)
    slow = [_befalling(disturbance, n // stages) for disturbance in slow]
    for disturbance in slow:
        gpus = np.unique(np.array(disturbance.gpus, np.int64))
        if disturbance.kind == "stage":
            more_work[gpus] *= disturbance.factor
        else:
            factors = link if disturbance.link else compute
            factors[gpus] = np.maximum(factors[gpus], disturbance.factor)
    compute *= more_work
    excess = (compute - 1.0) + (link - 1.0)
    blocks = excess.reshape(-1, tied * cell)  # one row per tied block of cells
    worst = blocks.argmax(axis=1)
    most = _most(compute, tied * cell) + _most(link, tied * cell)
    pace = np.where(most > 0.0, np.arange(len(blocks)) * tied * cell + worst, -1)
    # A slow GPU and a slow link of two ranks of one cell add up in the cell, so both set the pace in part.
    whole = np.repeat(most, tied * cell)
    own = np.divide(excess, whole, out=np.ones(n), where=whole > 0.0)
    stage_most = np.repeat(_most(link, n // stages), n // stages)
    # With slow links elsewhere only, those are to blame; with none at all, no rank is.
    elsewhere = np.full(n, 0.0 if (link > 1.0).any() else 1.0)
    own_link = np.divide(link - 1.0, stage_most, out=elsewhere, where=stage_most > 0.0)
    return PaceSetters(
        stages=stages,
        replicas=replicas,
        cell=cell,
        tied=tied,
        ranks=ranks_of(np.arange(n) // (replicas * cell), np.arange(n) // cell % replicas, slow),
        own=own,
        own_link=own_link,
        pace=np.repeat(pace.reshape(stages, replicas // tied), tied, axis=1).T.copy(),
        slowest_link=_slowest(link, stages),
    )


def _befalling(disturbance: Slow, ranks_of_stage: int) -> Slow:
    """The same with the ranks of an uneven stage."""
    if disturbance.kind != "stage" or disturbance.gpus:
        return disturbance
    return replace(
        disturbance, gpus=tuple(range(disturbance.stage * ranks_of_stage, (disturbance.stage + 1) * ranks_of_stage))
    )


def _slowest(link: NDArray[np.float64], stages: int) -> NDArray[np.int64]:
    rows = link.reshape(stages, -1)
    return np.where(rows.max(axis=1) > 1.0, rows.argmax(axis=1) + np.arange(stages) * rows.shape[1], -1)


def _most(factors: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    most: NDArray[np.float64] = factors.reshape(-1, block).max(axis=1) - 1.0
    return most
