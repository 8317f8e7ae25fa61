"""What to do each minute with the nodes that are there: three policies, one signature.

    parcae      liveput: the first decision of the best sequence over the minutes ahead, moves priced by Monte Carlo
    varuna      the fastest layout for the nodes of this minute; every change restarts from a checkpoint
    on-demand   machines that do not go: the fastest layout of the largest pool, for ever

Parcae's forecast is handed in: the trace itself (`known`), or that nothing changes any more (`persistence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from windtunnel.physics.engine.compiled.spot_kernels import best_first_move
from windtunnel.studies.resilience.spot.moves import Moves
from windtunnel.studies.resilience.spot.tables import Layout, SpotModel
from windtunnel.studies.resilience.spot.trace import Minute, SpotTrace

Forecast = Literal["known", "persistence"]
IDLE: Layout = (0, 0)


@dataclass(frozen=True, slots=True)
class Decision:
    """What ran in one minute."""

    layout: Layout
    move_ms: float  # of this minute's change
    samples: float
    idle_s: float  # of this minute, spent on moving or waiting


def fastest(model: SpotModel, nodes: int) -> Layout:
    """The layout with the most samples a second; of equals the one with fewer replicas. IDLE where none fits."""
    fits = [layout for layout in model.layouts(nodes) if layout in model.samples_per_s]
    return max(fits, key=lambda layout: model.samples_per_s[layout], default=IDLE)


def parcae(moves: Moves, trace: SpotTrace, look_ahead: int, forecast: Forecast = "known") -> list[Decision]:
    """Liveput-optimal decisions for every minute of a trace."""
    model, interval_ms = moves.model, moves.model.interval_s * 1000.0
    most = max((minute.nodes for minute in trace.minutes), default=0)
    search = Search(moves, most)
    layout, left_ms, decisions = IDLE, 0.0, []
    for at, minute in enumerate(trace.minutes):
        ahead = trace.minutes[at : at + look_ahead]
        if forecast == "persistence":
            ahead = (minute, *(Minute(minute.nodes, 0, 0) for _ in ahead[1:]))
        choice = search.first_move(layout, left_ms, ahead)
        cost = moves.from_layout(layout, minute)[choice] if choice != IDLE else 0.0
        if cost > 0:
            left_ms = cost + model.restart_ms(choice, adding=False) if left_ms > 0 else cost
        decisions.append(_minute(model, choice, cost, left_ms))
        layout, left_ms = choice, max(0.0, left_ms - interval_ms)
    return decisions


def varuna(model: SpotModel, trace: SpotTrace) -> list[Decision]:
    """Throughput-optimal decisions; a change, or a node of the job that goes, restarts from a checkpoint."""
    layout, left_ms, decisions = IDLE, 0.0, []
    for minute in trace.minutes:
        choice = fastest(model, minute.nodes)
        cost = 0.0
        if choice != IDLE and (choice != layout or _struck(layout, minute)):
            adding = choice[0] * choice[1] > layout[0] * layout[1] - minute.removed
            cost = model.checkpoint_ms + model.restart_ms(choice, adding=adding)
            left_ms = cost
        decisions.append(_minute(model, choice, cost, left_ms))
        layout, left_ms = choice, max(0.0, left_ms - model.interval_s * 1000.0)
    return decisions


def _struck(layout: Layout, minute: Minute) -> bool:
    """Whether a node that goes is likelier one of the job than idle."""
    busy = layout[0] * layout[1]
    return bool(minute.removed) and busy > (minute.before - busy)


def on_demand(model: SpotModel, trace: SpotTrace) -> list[Decision]:
    """The fastest layout of the largest pool, after one start."""
    most = max((minute.nodes for minute in trace.minutes), default=0)
    layout, decisions = fastest(model, most), []
    left_ms = model.restart_ms(layout, adding=True) if layout != IDLE else 0.0
    for at in range(len(trace.minutes)):
        decisions.append(_minute(model, layout, 0.0 if at else left_ms, left_ms))
        left_ms = max(0.0, left_ms - model.interval_s * 1000.0)
    return decisions


def _minute(model: SpotModel, layout: Layout, cost_ms: float, left_ms: float) -> Decision:
    idle_s = model.interval_s if layout == IDLE else min(left_ms / 1000.0, model.interval_s)
    samples = model.samples_per_s.get(layout, 0.0) * (model.interval_s - idle_s)
    return Decision(layout, cost_ms, samples, idle_s)


class Search:
    """Arrays that the compiled search reads, made once for all minutes of a trace."""

    def __init__(self, moves: Moves, most_nodes: int) -> None:
        self.moves, model = moves, moves.model
        self.layouts = [IDLE, *model.layouts(most_nodes)]
        self.number = {layout: at for at, layout in enumerate(self.layouts)}
        self.rates = np.array([model.samples_per_s.get(layout, 0.0) for layout in self.layouts])
        self.depth = np.array([layout[1] for layout in self.layouts], np.int64)
        self.nodes = np.array([d * p for d, p in self.layouts])
        self.again = np.array([0.0, *(model.restart_ms(layout, adding=False) for layout in self.layouts[1:])])
        self.costs: dict[Minute, np.ndarray[tuple[int, int], np.dtype[np.float64]]] = {}

    def first_move(self, layout: Layout, left_ms: float, ahead: Sequence[Minute]) -> Layout:
        """The best layout for the first of the minutes ahead."""
        fits = np.array([(self.nodes <= minute.nodes) & (self.nodes > 0) for minute in ahead])
        fits[:, 0] = ~fits.any(axis=1)  # to wait is a choice only where nothing fits
        cost = np.array([self._costs(minute) for minute in ahead])
        interval_ms = self.moves.model.interval_s * 1000.0
        chosen = best_first_move(
            self.number[layout], left_ms, fits.astype(np.int64), cost, self.rates, self.depth, self.again, interval_ms
        )
        return self.layouts[chosen]

    def _costs(self, minute: Minute) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        if minute not in self.costs:
            table = np.zeros((len(self.layouts), len(self.layouts)))
            for at, layout in enumerate(self.layouts):
                if layout[0] * layout[1] > minute.before:
                    continue
                for target, cost in self.moves.from_layout(layout, minute).items():
                    table[at, self.number[target]] = cost
            self.costs[minute] = table
        return self.costs[minute]
