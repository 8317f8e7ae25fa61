"""One step of a layout: lowered, priced and replayed. Every question about it starts from here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.engine import Slowdown, Timeline, replay
from windtunnel.training.layout import Layout
from windtunnel.training.lowering.lower import lower
from windtunnel.training.lowering.model_chunks import Piece
from windtunnel.training.lowering.step import Step
from windtunnel.training.nics import step_sharing
from windtunnel.training.pricing import Pricer
from windtunnel.training.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Simulated:
    """A step with its timeline."""

    pieces: tuple[Piece, ...]
    step: Step
    timeline: Timeline

    @property
    def makespan_ns(self) -> int:
        """How long it takes."""
        return self.timeline.makespan_ns


def simulate(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, pricer: Pricer) -> Simulated:
    """Lower and replay the step that these pieces make."""
    step = lower(layout, pieces, schedule, pricer)
    slowdown = Slowdown(step.interference, np.array(pricer.training.slowdown_factors()))
    sharing = step_sharing(step.graph, step.nic_share)
    return Simulated(pieces, step, replay(step.graph, step.duration_ns, slowdown, sharing))
