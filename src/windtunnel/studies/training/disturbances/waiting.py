"""Waiting per communicator, read off a replayed step.

At a collective each member waits from the moment it could begin (the op before it on its stream and everything it
depends on have ended) until the last member comes. A receiver of the pipeline waits from the moment it has nothing
else to do until its input begins to arrive. Inside a cell the others wait for the rank that sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Timeline
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.disturbances.attribution import longest_first, ready_ns
from windtunnel.physics.step.result import Waiting
from windtunnel.studies.training.disturbances.pace_setters import PaceSetters
from windtunnel.studies.training.disturbances.replicas import Unfolded
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.step import COMPUTE, DP, PP_BACKWARD, PP_FORWARD, STREAMS, LoweredStep


def waiting_of(at: ReplayedStep, layout: Layout) -> tuple[Waiting, ...]:
    """Every communicator of the step that has more than one member, longest mean waiting first."""
    inside = at.cells(_inside(layout, at.setters))
    return longest_first([*at.stages_collectives(), *at.collectives_across(), *at.pipeline(), *inside])


def _inside(layout: Layout, setters: PaceSetters) -> str:
    """The communicators in which the ranks of a pass meet."""
    plan = layout.plan
    names = [name for name, size in (("tp", plan.tp), ("cp", plan.cp), ("ep", plan.ep)) if size > 1]
    if layout.reduces_in_passes and setters.tied > 1:
        names.append("sharded dp")
    return " x ".join(names)


class ReplayedStep:
    """A replayed step as tables [classes of replicas, ops of the step graph]."""

    def __init__(self, unfolded: Unfolded, timeline: Timeline, step: LoweredStep, setters: PaceSetters) -> None:
        self.unfolded, self.timeline, self.step, self.setters = unfolded, timeline, step, setters
        self.graph, n = step.graph, step.graph.n_ops
        self.start, self.end = timeline.start_ns.reshape(-1, n), timeline.end_ns.reshape(-1, n)
        self.duration = self.end - self.start
        slowed = unfolded.step.duration_ns.reshape(-1, n)
        share = 1.0 - np.minimum(step.duration_ns / np.maximum(slowed, 1), 1.0)
        share[:, step.duration_ns == 0] = 0.0
        self.added = self.duration * share  # by disturbances, to each op
        self.sizes, self.classes_of = unfolded.sizes, unfolded.class_of
        self.representative = np.unique(unfolded.class_of, return_index=True)[1]
        self.stream = step.graph.stream % len(STREAMS)
        self.program = step.graph.program.astype(np.int64)

    @cached_property
    def ready_ns(self) -> NDArray[np.int64]:
        """When each op could begin on its own account."""
        return self.ready()

    def stages_collectives(self) -> Iterator[Waiting]:
        """Data-parallel collectives: one group of communicators per stage, across all replicas."""
        if self.setters.replicas == 1:
            return
        across = np.flatnonzero((self.stream == DP) & (self.graph.rendezvous < 0))
        waits = (self.start - self.ready_ns)[:, across]
        for stage in np.unique(self.program[across]).tolist():
            own = waits[:, self.program[across] == stage].sum(axis=1)
            yield self._waiting(f"dp of stage {stage}", own[:, None], [stage])

    def collectives_across(self) -> Iterator[Waiting]:
        """Collectives in which stages meet: the gradient norm of all ranks, tied embeddings of a pipeline's ends."""
        joined = np.flatnonzero(self.graph.rendezvous >= 0)
        for label in np.unique(self.graph.label[joined]).tolist():
            ops = joined[self.graph.label[joined] == label]
            if len(ops) > 1 or self.setters.replicas > 1:
                waits = (self.start - self.ready_ns)[:, ops]
                yield self._waiting(self.graph.labels[label], waits, self.program[ops].tolist())

    def _waiting(self, name: str, waits: NDArray[np.int64], stages: list[int]) -> Waiting:
        """`waits`: [classes, stages of members]."""
        mean = float((waits * self.sizes[:, None]).sum() / (self.sizes.sum() * waits.shape[1]))
        worst = int(waits.max())
        last = -1
        if worst > 0:
            # Who waits least comes last; among equals one that is itself disturbed.
            row, column = np.nonzero(waits == waits.min())
            ranks = self.speaker(row, np.array(stages)[column])
            last = int(ranks[np.lexsort((ranks, self.setters.ranks.kind[ranks] == 0))[0]])
        return Waiting(name, round(mean), worst, last)

    def pipeline(self) -> Iterator[Waiting]:
        """Receivers of each pair of neighbours."""
        graph = self.graph
        op = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
        needs = graph.dep_idx.astype(np.int64)
        arrives = (self.stream[needs] == PP_FORWARD) | (self.stream[needs] == PP_BACKWARD)
        comes = (self.stream[op] == COMPUTE) & (graph.rendezvous[op] < 0)
        comes &= arrives | (self.program[op] != self.program[needs])
        if not comes.any():
            return
        op, needs, arrives = op[comes], needs[comes], arrives[comes]
        source = np.where(arrives, graph.dep_idx[np.minimum(graph.dep_ptr[needs], len(graph.dep_idx) - 1)], needs)
        sender, receiver = self.program[source], self.program[op]
        # A transfer on a stream of its own keeps the receiver busy; one that its sender holds leaves it idle.
        until = np.where(arrives, self.start[:, needs], self.end[:, needs])
        binds = self.end[:, needs] == self.start[:, op]
        waits = np.where(binds, np.maximum(until - self.ready(comes)[:, op], 0), 0)
        pairs = np.unique(np.stack([sender, receiver], axis=1), axis=0)
        for first, second in pairs.tolist():
            own = waits[:, (sender == first) & (receiver == second)].sum(axis=1)
            mean = float((own * self.sizes).sum() / self.sizes.sum())
            last = int(self.speaker(own.argmax()[None], np.array([first]))[0]) if own.max() > 0 else -1
            yield Waiting(f"pp {first} to {second}", round(mean), int(own.max()), last)

    def cells(self, name: str) -> Iterator[Waiting]:
        """Cells whose pace a disturbed rank sets: the mean is over the members of these cells only."""
        who = self.setters
        if not name:
            return
        computes = self.graph.kind == OpKind.COMPUTE
        own = who.own.reshape(who.stages, who.replicas, who.cell)
        for stage in range(who.stages):
            ops = np.flatnonzero(computes & (self.program == stage))
            per_class = self.added[:, ops].sum(axis=1)
            disturbed = np.flatnonzero((who.pace[self.representative, stage] >= 0) & (per_class > 0))
            if not len(disturbed):
                continue
            replicas = np.flatnonzero(np.isin(self.classes_of, disturbed))
            waits = (1.0 - own[stage, replicas]) * per_class[self.classes_of[replicas]][:, None]
            worst = float(waits.max())
            last = int(who.pace[replicas[int(waits.max(axis=1).argmax())], stage]) if worst > 0 else -1
            yield Waiting(f"{name} of stage {stage}", round(float(waits.mean())), round(worst), last)

    def ready(self, leave: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """[classes, ops]: when each op could begin on its own account, dependencies in `leave` apart."""
        left = None if leave is None else np.tile(leave, len(self.start))
        return ready_ns(self.unfolded.step.graph, self.end.ravel(), left).reshape(self.end.shape)

    def speaker(self, number: NDArray[np.int64], stage: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rank to name for each cell of a class of replicas."""
        return self.setters.speaker(self.representative[number], stage)
