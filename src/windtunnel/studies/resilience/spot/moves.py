"""What it costs to move from one layout to another when machines come and go (Parcae, NSDI 2024).

Of N nodes, node i < D P holds stage i mod P; k of the N go, drawn at random. To (d', p') from (D, P):

    nothing changed                              0
    same depth, every stage has d' replicas      groups + process start                             (intra-stage)
    same depth otherwise                         the largest short stage, or the sum of those without a source, +
                                                 restart
    another depth                                what the last stage's node lacks + broadcast of the largest stage, +
                                                 restart

Restart = groups + process start + model build, and a rendezvous where the job has more nodes than survived. As in
Parcae's artifact (github JF-D/Parcae efedee7): of a new pipeline only the last stage's missing bytes count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.compiled.spot_kernels import mean_move_ms
from windtunnel.studies.resilience.spot.tables import STATE_BYTES, Layout, SpotModel
from windtunnel.studies.resilience.spot.trace import Minute

DRAWS = 200


@dataclass
class Moves:
    """Mean costs of moves of one model, kept by what they depend on. The same seed gives the same costs."""

    model: SpotModel
    draws: int = DRAWS
    seed: int = 0
    costs: dict[tuple[Minute, Layout], dict[Layout, float]] = field(default_factory=dict)
    samples: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict)  # of nodes, by how many are lost

    def from_layout(self, layout: Layout, minute: Minute) -> dict[Layout, float]:
        """Milliseconds to every layout that fits after the events of `minute`."""
        key = (minute, layout)
        if key not in self.costs:
            targets = self.model.layouts(minute.nodes)
            chosen = self._chosen(minute.before, minute.removed)
            costs = move_ms(self.model, layout, targets, minute.removed, chosen)
            self.costs[key] = dict(zip(targets, costs.tolist(), strict=True))
        return self.costs[key]

    def _chosen(self, nodes: int, lost: int) -> NDArray[np.int64]:
        """Draws of lost nodes; the same for every layout."""
        if not lost or nodes < lost:
            return np.full((1, max(lost, 1)), np.iinfo(np.int64).max)
        if (nodes, lost) not in self.samples:
            random = np.random.default_rng((self.seed, nodes, lost))
            draws = [random.choice(nodes, lost, replace=False) for _ in range(self.draws)]
            self.samples[nodes, lost] = np.array(draws, np.int64)
        return self.samples[nodes, lost]


def move_ms(
    model: SpotModel, layout: Layout, targets: Sequence[Layout], lost: int, draws: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Mean cost in ms of moving to each of `targets`, (targets,); `draws` (n, lost) are numbers of nodes that went."""
    if not targets:
        return np.zeros(0)
    d, p = layout
    deepest = max(*(target[1] for target in targets), 1)
    cuts, spread = np.zeros((deepest + 1, deepest + 2), np.int64), np.zeros(deepest + 1)
    for depth in {target[1] for target in targets}:
        cuts[depth, : depth + 1] = model.cuts(depth)
        spread[depth] = model.stage_ms(depth).max()
    return np.asarray(
        mean_move_ms(
            d,
            p,
            lost,
            draws,
            np.array(targets, np.int64),
            model.cuts(p) if p else np.zeros(1, np.int64),
            model.stage_ms(p) if p else np.zeros(1),
            cuts,
            spread,
            np.array([model.restart_ms(target, adding=True) for target in targets]),
            np.array([model.restart_ms(target, adding=False) for target in targets]),
            np.array([model.regroup_ms(target) for target in targets]),
            np.concatenate([[0.0], np.cumsum(model.layer_parameters)]),
            model.transfer.size_bytes,
            model.transfer.time_us,
            float(STATE_BYTES),
        )
    )
