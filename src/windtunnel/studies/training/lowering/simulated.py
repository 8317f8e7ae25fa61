"""One step of a layout: lowered, priced and replayed. Every question about it starts from here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.physics.engine import Timeline
from windtunnel.physics.step.step import step_of
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Simulated:
    """A step with its timeline."""

    pieces: tuple[Piece, ...]
    step: LoweredStep
    timeline: Timeline

    @property
    def makespan_ns(self) -> int:
        """How long it takes."""
        return self.timeline.makespan_ns


def simulate(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, pricer: Pricer) -> Simulated:
    """Lower and replay the step that these pieces make."""
    step = lower(layout, pieces, schedule, pricer)
    slowdown, stages = np.array(pricer.training.slowdown_factors()), step.graph.n_programs
    program_of = np.repeat(np.arange(stages), layout.cluster.n_gpus // stages)
    ready = step_of(step.graph, step.duration_ns, step.interference, slowdown, step.nic_share, program_of)
    return Simulated(pieces, step, ready.replay())
