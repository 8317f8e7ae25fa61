"""A planned step under disturbances: its classes of replicas, and samples of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.samples import Source, Variant, sample_steps
from windtunnel.physics.graph import OpKind
from windtunnel.physics.hardware.topology import topology_of
from windtunnel.physics.step.disturbances.attribution import Explanation
from windtunnel.physics.step.disturbances.disturbances import SAMPLES, Disturbances, turns_of
from windtunnel.physics.step.disturbances.disturbed_step import DisturbedStep, Replayed
from windtunnel.physics.step.disturbances.effect import effect_of
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.physics.step.result import Disturbed
from windtunnel.studies.training.disturbances.attribution import who_waits
from windtunnel.studies.training.disturbances.cells import cell_factors, cells_of, in_step, placed, tied_replicas
from windtunnel.studies.training.disturbances.contention import LinkFactors, uplink_factors
from windtunnel.studies.training.disturbances.noise import passes_of, random_source, warming
from windtunnel.studies.training.disturbances.replicas import Unfolded, meets_across, unfold
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.pricing import Pricer


def disturb(
    step: LoweredStep,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    undisturbed_ns: int,
    disturbances: Disturbances,
    sources: Mapping[str, Source],
) -> tuple[int, Disturbed]:
    """The makespan under `disturbances` in nanoseconds, and what explains it.

    With samples the makespan is their median, and every replica stands for itself: noise makes them differ.

    Args:
        step: As lowered, undisturbed; and what it was lowered from.
        layout: Its layout.
        pieces: Its pieces.
        pricer: Its prices.
        undisturbed_ns: Its makespan.
        disturbances: What is asked for.
        sources: More that makes steps differ, by name; sampled and blamed like what is random among `disturbances`.
            Their units are blocks of `tied_replicas` replicas, their ops those of `step.graph`.

    Raises:
        SpecError: a disturbance that this layout has no place for.
    """
    disturbances = placed(disturbances, layout)
    if sources and not disturbances.samples:
        disturbances = replace(disturbances, samples=SAMPLES)
    parts = (*disturbances.parts, *(Slow(name, (), 1.0, link=False, kind="source") for name in sources))
    planned = PlannedStep(step, layout, pieces, pricer, undisturbed_ns)
    job = planned.disturbed(parts)

    def explained(now: Replayed[Unfolded], slow: Sequence[Slow]) -> Explanation:
        return who_waits(now.step, now.timeline, step, layout, slow)

    def place(rank: int) -> tuple[int, int]:
        replica, stage = cells_of(layout, (rank,))
        return int(stage[0]), int(replica[0])

    def simulated(unfolded: Unfolded, sampled: bool) -> tuple[int, tuple[int, ...]]:
        if not sampled:
            return unfolded.step.graph.n_programs, tuple(unfolded.sizes.tolist())
        tied = tied_replicas(layout)
        units = layout.dp // tied
        return units * layout.plan.pp, (tied,) * units

    sample = partial(planned.makespans, job, planned.random_sources(parts, disturbances.seed, sources))
    return effect_of(job, disturbances, sample=sample, explain=explained, place=place, simulated=simulated)


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """An undisturbed step, and what it was lowered from."""

    step: LoweredStep
    layout: Layout
    pieces: tuple[Piece, ...]
    pricer: Pricer
    undisturbed_ns: int

    def disturbed(self, parts: tuple[Slow, ...]) -> DisturbedStep[Unfolded]:
        """It under these disturbances or any of them."""
        return DisturbedStep(parts, self.unfolded, makespans={frozenset(): self.undisturbed_ns})

    def unfolded(self, slow: tuple[Slow, ...]) -> Unfolded:
        """Its classes of replicas under these; chance apart."""
        factors = cell_factors(self.layout, slow)
        return unfold(self.step, self.layout, self.pieces, self.pricer, *factors, uneven_fabric(self.layout, slow))

    def random_sources(self, parts: Sequence[Slow], seed: int, more: Mapping[str, Source]) -> dict[int, Source]:
        """What draws for each random disturbance, by its number; `more`: for those of other modules, by their text."""
        return {
            number: more[parts[number].text]
            if parts[number].kind == "source"
            else random_source(parts[number], turn, self.step, self.layout, seed)
            for number, turn in turns_of(parts).items()
        }

    def makespans(
        self, job: DisturbedStep[Unfolded], random: Mapping[int, Source], sets: Sequence[frozenset[int]], count: int
    ) -> list[NDArray[np.int64]]:
        """int64[count] makespans for each of these sets of the job's disturbances, all on the same draws."""
        graph, varying = self.step.graph, passes_of(self.step)
        if any(part.kind == "thermal" for part in job.parts):  # the optimizer of a hot GPU takes longer too
            varying = varying | (graph.kind == OpKind.COMPUTE)
        variants = [self._variant(job, random, numbers) for numbers in sets]
        return list(sample_steps(graph, meets_across(graph), varying, variants, count))

    def _variant(self, job: DisturbedStep[Unfolded], random: Mapping[int, Source], numbers: frozenset[int]) -> Variant:
        steady, tied, slow = job.replayed(numbers), tied_replicas(self.layout), job.chosen(numbers)
        durations = (steady.timeline.end_ns - steady.timeline.start_ns).reshape(-1, self.step.graph.n_ops)
        sources = tuple(random[number] for number in sorted(numbers) if number in random)
        if any(disturbance.kind == "thermal" for disturbance in slow):
            shared = in_step(self.layout, uneven_fabric(self.layout, slow).inside)
            links = np.maximum(cell_factors(self.layout, slow)[1], shared)
            step_s = self.undisturbed_ns / 1e9
            sources += warming(slow, self.step, self.layout, self.pieces, self.pricer, links, step_s)
        return Variant(durations, np.ascontiguousarray(steady.step.class_of[::tied]), sources)


def uneven_fabric(layout: Layout, slow: tuple[Slow, ...]) -> LinkFactors:
    """What degraded uplinks do to each cell, and flows that are hashed to single uplinks instead of spread over all."""
    uplinks = [disturbance for disturbance in slow if disturbance.kind == "uplink"]
    hashed = next((disturbance for disturbance in slow if disturbance.kind == "ecmp"), None)
    if not uplinks and hashed is None:
        return LinkFactors.none(layout)
    single = topology_of(layout.cluster, ecmp_seed=0).uplinks
    shares_by_leaf: dict[int, NDArray[np.float64]] = {}
    for uplink in uplinks:
        which = slice(None) if uplink.uplink < 0 else uplink.uplink
        shares = shares_by_leaf.setdefault(uplink.leaf, np.ones(single))
        shares[which] = np.minimum(shares[which], uplink.share)
    if hashed is None:  # a leaf's traffic is spread over all of its uplinks
        return uplink_factors(layout, {leaf: shares.mean() for leaf, shares in shares_by_leaf.items()})
    return uplink_factors(layout, shares_by_leaf, hashed.seed)
