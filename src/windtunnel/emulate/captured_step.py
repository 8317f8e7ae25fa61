"""A captured step under disturbances: the pace of every rank, its exactly folded graph, and its replay.

    gpu, random, thermal    a factor on the kernels of those ranks (thermal: hot, or heating up over the samples)
    stage                   the same for all ranks at one place of the pipeline's groups
    link, lost              a factor on what these ranks move between nodes; a collective goes at its slowest member
    pause, noise, jitter    drawn sample by sample: `captured_samples.py`

Each rank is disturbed by itself, and who waits for whom follows from the captured program alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.emulate.captured_links import captured_sharing
from windtunnel.engine import Slowdown, Timeline, replay
from windtunnel.errors import SpecError
from windtunnel.programs.lowering.lower import CapturedGraph, PricedJob
from windtunnel.programs.lowering.placement import Pace
from windtunnel.training.disturbance_words import Slow
from windtunnel.training.disturbances.cells import Disturbances, link_times

HOT = ("gpu", "random", "thermal")
REFUSED = {
    "uplink": "flows of a captured script are not laid on single uplinks: use link=nodeN.nicM:SHARE for its nodes",
    "ecmp": "flows of a captured script are not hashed to single uplinks: leave it out",
}


@dataclass(frozen=True, eq=False)
class Replayed:
    """A step under some disturbances."""

    captured: CapturedGraph
    timeline: Timeline


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """A priced job and what was replayed of it so far, by the numbers of the disturbances that hold."""

    priced: PricedJob
    parts: tuple[Slow, ...] = ()
    known: dict[frozenset[int], Replayed] = field(default_factory=dict)
    makespans: dict[frozenset[int], int] = field(default_factory=dict)

    def pace(self, numbers: Iterable[int]) -> Pace:
        """What these disturbances do to each rank; chance apart."""
        return pace_of(self.priced, [self.parts[number] for number in sorted(numbers)])

    def replayed(self, numbers: Iterable[int]) -> Replayed:
        """The step under these, kept."""
        key = self._steady(numbers)
        if key not in self.known:
            self.known[key] = replayed(self.priced, self.pace(key))
            self.makespans[key] = self.known[key].timeline.makespan_ns
        return self.known[key]

    def makespan(self, numbers: Iterable[int]) -> int:
        """Its length; the graph is not kept."""
        key = self._steady(numbers)
        if key not in self.makespans:
            self.makespans[key] = replayed(self.priced, self.pace(key)).timeline.makespan_ns
        return self.makespans[key]

    def _steady(self, numbers: Iterable[int]) -> frozenset[int]:
        return frozenset(number for number in numbers if not self.parts[number].random)


def replayed(priced: PricedJob, pace: Pace | None = None, *, fold: bool = True) -> Replayed:
    """Assemble and replay a step."""
    captured = priced.graph(pace, fold=fold)
    return Replayed(captured, replay_captured(priced, captured, captured.duration_ns))


def replay_captured(priced: PricedJob, captured: CapturedGraph, duration_ns: NDArray[np.int64]) -> Timeline:
    """Replay with what slows what on a GPU, and NICs shared."""
    factors = np.array(priced.pricer.training.slowdown_factors())
    return replay(captured.graph, duration_ns, Slowdown(captured.interference, factors), captured_sharing(captured))


def placed_on(priced: PricedJob, asked: Disturbances) -> Disturbances:
    """The same with the ranks of uneven stages. Raises SpecError on what a captured script has no place for."""
    slow = []
    for one in asked.slow:
        if one.kind in REFUSED:
            raise SpecError("slow", one.text, REFUSED[one.kind])
        slow.append(replace(one, gpus=_stage(priced, one)) if one.kind == "stage" else one)
    return replace(asked, slow=tuple(slow))


def pace_of(priced: PricedJob, slow: Sequence[Slow]) -> Pace:
    """Factors on each rank's kernels and links; what changes with time counts with what it comes to in the end."""
    pace = Pace.even(priced.job.world_size)
    for one in slow:
        if one.kind in HOT and one.gpus:
            gpus = list(one.gpus)  # each once: two faults of one GPU do not add up, the worse one counts
            pace.compute[gpus] = np.maximum(pace.compute[gpus], one.factor)
    for one in slow:
        if one.kind == "stage":  # more work on a slow GPU takes both times as long
            pace.compute[list(one.gpus)] *= one.factor
    for gpu, times in link_times(slow, priced.places.cluster).items():
        pace.links[gpu] = max(float(pace.links[gpu]), times)
    return pace


def stage_of(priced: PricedJob) -> NDArray[np.int64]:
    """int64[world]: place of each rank in its pipeline; 0 where the script sends no messages."""
    family = _pipeline(priced)
    return np.maximum(priced.places.place_of[family], 0) if family >= 0 else np.zeros(priced.job.world_size, np.int64)


def class_names(priced: PricedJob) -> tuple[str, ...]:
    """What a reader calls the ranks that run each captured program: by their stage where there is a pipeline."""
    if len(priced.templates) == 1:
        return ("every rank",)
    stage, runs = stage_of(priced), priced.job.runs
    captured = [one.program.rank for one in priced.templates]
    stages = [sorted(set(stage[runs == rank].tolist())) for rank in captured]
    names = []
    for rank, own in zip(captured, stages, strict=True):
        place = f"stage {own[0]}" if _pipeline(priced) >= 0 and len(own) == 1 else ""
        names.append(place if place and stages.count(own) == 1 else f"{place + ', ' if place else ''}ranks like {rank}")
    return tuple(names)


def _pipeline(priced: PricedJob) -> int:
    """The family over which messages go; -1 without one. By name, else the one with most messages."""
    counts: dict[int, int] = {}
    for template in priced.templates:
        for use in template.uses:
            slot = template.slots[use.slot]
            if slot.direction:
                counts[slot.family] = counts.get(slot.family, 0) + 1
    names = priced.job.families
    return max(counts, key=lambda number: (names[number].name.startswith("pp"), counts[number], -number), default=-1)


def _stage(priced: PricedJob, one: Slow) -> tuple[int, ...]:
    family = _pipeline(priced)
    if family < 0:
        raise SpecError("slow", one.text, "this script sends no messages from stage to stage: use gpu=NUMBER:FACTOR")
    places = priced.places.place_of[family]
    if one.stage > places.max():
        raise SpecError("slow", one.text, f"pipeline stages are numbered 0 to {places.max()}")
    return tuple(np.flatnonzero(places == one.stage).tolist())
