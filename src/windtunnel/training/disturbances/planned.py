"""A step under disturbances: how long it takes, what each disturbance costs, and how it spreads over samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine import Slowdown, Timeline, replay
from windtunnel.engine.samples import Source, Variant, sample_steps
from windtunnel.graph import OpKind
from windtunnel.hardware.topology import topology_of
from windtunnel.result import Blame, Disturbed, Samples, Waiting
from windtunnel.training.disturbances.attribution import explain
from windtunnel.training.disturbances.cells import (
    SAMPLES,
    Disturbances,
    Slow,
    cell_factors,
    cells_of,
    in_step,
    placed,
    tied_replicas,
)
from windtunnel.training.disturbances.contention import LinkFactors, uplink_factors, uplink_names
from windtunnel.training.disturbances.noise import passes_of, random_source, warming
from windtunnel.training.disturbances.replicas import Unfolded, meets_across, unfold
from windtunnel.training.layout import Layout
from windtunnel.training.lowering.model_chunks import Piece
from windtunnel.training.lowering.step import Step
from windtunnel.training.pricing import Pricer

BLAMED_AT_MOST = 64  # disturbances whose own cost is worked out: two replays each
SAMPLED_AT_MOST = 8  # disturbances whose cost is also followed from sample to sample
NOWHERE = -1


def disturb(
    step: Step,
    layout: Layout,
    pieces: tuple[Piece, ...],
    pricer: Pricer,
    undisturbed_ns: int,
    disturbances: Disturbances,
    *,
    link_factors: Callable[[tuple[Slow, ...]], LinkFactors] | None = None,
    sources: Mapping[str, Source] | None = None,
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
        link_factors: What links that cells share come to under given disturbances; None = by `uplink` and `ecmp`.
        sources: More that makes steps differ, by name; sampled and blamed like what is random among `disturbances`.
            Their units are blocks of `tied_replicas` replicas, their ops those of `step.graph`.

    Raises:
        SpecError: a disturbance that this layout has no place for.
    """
    asked, more = placed(disturbances, layout), dict(sources or {})
    if more and not asked.samples:
        asked = replace(asked, samples=SAMPLES)
    parts = (*asked.parts, *(Slow(name, (), 1.0, link=False, kind="source") for name in more))
    links = link_factors or partial(uneven_fabric, layout)
    job = DisturbedStep(step, layout, pieces, pricer, undisturbed_ns, parts, asked.seed, links, more)
    everything = frozenset(range(len(parts)))
    if asked.sampled or more:
        found = job.samples(asked.samples)
        low, middle, high = _percentiles(found.whole)
        samples = Samples(asked.jitter, asked.samples, asked.seed, low, middle, high)
        final, units = middle, layout.dp // tied_replicas(layout)
        programs, sizes = units * layout.plan.pp, (tied_replicas(layout),) * units
    else:
        found, samples, unfolded = Sampled(), None, job.fixed(everything).unfolded
        final = job.makespan(everything)
        programs, sizes = unfolded.graph.n_programs, tuple(int(size) for size in unfolded.sizes)
    blame = []
    for number, one in enumerate(parts):
        if number in found.without:
            spread = _percentiles(found.whole - found.without[number])
            alone = int(np.median(found.alone[number])) if number in found.alone else job.makespan({number})
            cost = Blame(one.text, alone - undisturbed_ns, spread[1], *_where(one, layout), spread)
        elif number < BLAMED_AT_MOST and not one.random:
            alone, rest = job.makespan({number}), job.makespan(everything - {number})
            cost = Blame(one.text, alone - undisturbed_ns, job.makespan(everything) - rest, *_where(one, layout))
        else:
            continue
        blame.append(cost)
    steady = job.fixed(everything)
    found_out = explain(steady.unfolded, steady.timeline, step, layout, asked.slow)
    always = job.fixed(frozenset())
    usual = explain(always.unfolded, always.timeline, step, layout, ()).waiting
    found_out = found_out._replace(waiting=beyond(found_out.waiting, usual))
    return final, Disturbed(
        undisturbed_step_time_ns=undisturbed_ns,
        gpus_lost=layout.cluster.n_gpus * (1.0 - undisturbed_ns / final) if final else 0.0,
        programs=programs,
        replica_classes=sizes,
        blame=tuple(sorted(blame, key=lambda one: (-one.without_ns, -one.alone_ns, one.what))),
        samples=samples,
        **found_out._asdict(),
    )


def with_waiting(disturbed: Disturbed, waiting_ns: int, n_gpus: int, step_ns: int) -> Disturbed:
    """The same with what every step waits anyway, so that its times compare with the step's."""
    undisturbed = disturbed.undisturbed_step_time_ns + waiting_ns
    samples = disturbed.samples
    if samples:
        samples = replace(
            samples,
            p5_ns=samples.p5_ns + waiting_ns,
            p50_ns=samples.p50_ns + waiting_ns,
            p95_ns=samples.p95_ns + waiting_ns,
        )
    lost = n_gpus * (1.0 - undisturbed / step_ns) if step_ns else 0.0
    return replace(disturbed, undisturbed_step_time_ns=undisturbed, gpus_lost=lost, samples=samples)


def beyond(waiting: tuple[Waiting, ...], usual: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
    """What is waited more than in an undisturbed step, longest mean first."""
    known = {one.communicator: one.mean_ns for one in usual}
    more = []
    for one in waiting:
        less = known.get(one.communicator, 0)
        mean, worst = one.mean_ns - less, one.worst_ns - less
        if mean > 0:
            more.append(replace(one, mean_ns=mean, worst_ns=max(mean, worst)))
    return tuple(sorted(more, key=lambda one: (-one.mean_ns, one.communicator)))


def uneven_fabric(layout: Layout, slow: tuple[Slow, ...]) -> LinkFactors:
    """What degraded uplinks do to each cell, and flows that are hashed to single uplinks instead of spread over all."""
    uplinks = [one for one in slow if one.kind == "uplink"]
    hashed = next((one for one in slow if one.kind == "ecmp"), None)
    if not uplinks and hashed is None:
        return LinkFactors.none(layout)
    single = topology_of(layout.cluster, ecmp_seed=0).uplinks
    kept: dict[int, NDArray[np.float64]] = {}
    for one in uplinks:
        which = slice(None) if one.uplink < 0 else one.uplink
        shares = kept.setdefault(one.leaf, np.ones(single))
        shares[which] = np.minimum(shares[which], one.share)
    if hashed is None:  # a leaf's traffic is spread over all of its uplinks
        even = topology_of(layout.cluster)
        weak = {name: float(shares.mean()) for leaf, shares in kept.items() for name in uplink_names(even, leaf)}
        return uplink_factors(layout, weak)
    real = topology_of(layout.cluster, ecmp_seed=hashed.seed)
    each = {
        name: float(share)
        for leaf, shares in kept.items()
        for number, share in enumerate(shares)
        for name in uplink_names(real, leaf, number)
    }
    return uplink_factors(layout, each, hashed.seed)


def replayed(unfolded: Unfolded, pricer: Pricer) -> Timeline:
    """The timeline of a step whose replicas differ."""
    factors = np.array(pricer.training.slowdown_factors())
    return replay(unfolded.graph, unfolded.duration_ns, Slowdown(unfolded.interference, factors), unfolded.sharing)


@dataclass(frozen=True, eq=False)
class Sampled:
    """Samples of the step: as asked, without one of its disturbances, and with one alone where chance is in it."""

    whole: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    without: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    alone: dict[int, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Fixed:
    """The step under disturbances that do not change from step to step; what heats up is hot."""

    unfolded: Unfolded
    timeline: Timeline


@dataclass(frozen=True, eq=False)
class DisturbedStep:
    """A step, its disturbances, and what was worked out so far under some of them, told apart by their numbers."""

    step: Step
    layout: Layout
    pieces: tuple[Piece, ...]
    pricer: Pricer
    undisturbed_ns: int
    parts: tuple[Slow, ...]
    seed: int
    link_factors: Callable[[tuple[Slow, ...]], LinkFactors]
    more: dict[str, Source]  # by the text of the part that stands for it
    known: dict[frozenset[int], Fixed] = field(default_factory=dict)
    makespans: dict[frozenset[int], int] = field(default_factory=dict)

    def chosen(self, numbers: frozenset[int] | set[int]) -> tuple[Slow, ...]:
        """Those of these numbers."""
        return tuple(self.parts[number] for number in sorted(numbers))

    def unfolded(self, numbers: frozenset[int] | set[int]) -> Unfolded:
        """The step's classes of replicas under these; chance apart."""
        slow = self.chosen(numbers)
        factors = cell_factors(self.layout, slow)
        return unfold(self.step, self.layout, self.pieces, self.pricer, *factors, self.link_factors(slow))

    def fixed(self, numbers: frozenset[int] | set[int]) -> Fixed:
        """The step under these, chance apart; replayed once for each set."""
        key = frozenset(number for number in numbers if not self.parts[number].random)
        if key not in self.known:
            unfolded = self.unfolded(key)
            self.known[key] = Fixed(unfolded, replayed(unfolded, self.pricer))
        return self.known[key]

    def makespan(self, numbers: frozenset[int] | set[int]) -> int:
        """Nanoseconds of the step under these, chance apart."""
        key = frozenset(number for number in numbers if not self.parts[number].random)
        if not key:
            return self.undisturbed_ns
        if key not in self.makespans:
            # Blame asks for dozens of sets, of which only the time is wanted: their graphs are not kept.
            found = self.known.get(key)
            timeline = found.timeline if found else replayed(self.unfolded(key), self.pricer)
            self.makespans[key] = timeline.makespan_ns
        return self.makespans[key]

    def samples(self, count: int) -> Sampled:
        """Steps with all disturbances, without single ones, and with single ones alone, all on the same draws."""
        everything = set(range(len(self.parts)))
        varied = [number for number in everything if self.parts[number].random or self.parts[number].kind == "thermal"]
        steady = [number for number in everything if number not in varied]
        blamed = (varied + steady)[:SAMPLED_AT_MOST]
        alone = [number for number in blamed if number in varied]
        before: Counter[str] = Counter()
        random: dict[int, Source] = {}
        for number, one in enumerate(self.parts):
            if one.kind == "source":
                random[number] = self.more[one.text]
            elif one.random:
                random[number] = random_source(one, before[one.kind], self.step, self.layout, self.seed)
                before[one.kind] += 1
        wanted = [everything, *(everything - {number} for number in blamed), *({number} for number in alone)]
        found = self._sampled({frozenset(numbers) for numbers in wanted}, random, count)
        return Sampled(
            found[frozenset(everything)],
            {number: found[frozenset(everything - {number})] for number in blamed},
            {number: found[frozenset({number})] for number in alone},
        )

    def _sampled(
        self, sets: set[frozenset[int]], random: dict[int, Source], count: int
    ) -> dict[frozenset[int], NDArray[np.int64]]:
        graph, varying = self.step.graph, passes_of(self.step)
        if any(one.kind == "thermal" for one in self.parts):  # the optimizer of a hot GPU takes longer too
            varying = varying | (graph.kind == OpKind.COMPUTE)
        variants = {numbers: self._variant(numbers, random) for numbers in sorted(sets, key=sorted)}
        differing = [numbers for numbers, one in variants.items() if one.sources]
        found = sample_steps(graph, meets_across(graph), varying, [variants[one] for one in differing], count)
        same = {numbers: np.full(count, self.makespan(numbers)) for numbers in sets if numbers not in differing}
        return dict(zip(differing, found, strict=True)) | same

    def _variant(self, numbers: frozenset[int], random: dict[int, Source]) -> Variant:
        fixed, tied = self.fixed(numbers), tied_replicas(self.layout)
        taken = (fixed.timeline.end_ns - fixed.timeline.start_ns).reshape(-1, self.step.graph.n_ops)
        sources = tuple(random[number] for number in sorted(numbers) if number in random)
        if any(self.parts[number].kind == "thermal" for number in numbers):
            slow, seconds = self.chosen(numbers), self.undisturbed_ns / 1e9
            links = np.maximum(cell_factors(self.layout, slow)[1], in_step(self.layout, self.link_factors(slow).inside))
            sources += warming(slow, self.step, self.layout, self.pieces, self.pricer, links, seconds)
        return Variant(taken, np.ascontiguousarray(fixed.unfolded.class_of[::tied]), sources)


def _percentiles(values: NDArray[np.int64]) -> tuple[int, int, int]:
    low, middle, high = (int(value) for value in np.percentile(values, [5, 50, 95]))
    return low, middle, high


def _where(one: Slow, layout: Layout) -> tuple[int, int]:
    """Stage and replica of the first GPU that a disturbance befalls."""
    if one.kind == "stage":
        return one.stage, NOWHERE
    if not one.gpus:
        return NOWHERE, NOWHERE
    replica, stage = cells_of(layout, one.gpus[:1])
    return int(stage[0]), int(replica[0])
