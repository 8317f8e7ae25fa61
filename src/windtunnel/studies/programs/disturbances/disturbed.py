"""A priced job under disturbances: the pace of every rank, the exactly folded graph, and samples of it.

Who held up whom: every rank replays by itself, so gaps in its timeline are waiting for others.

At a collective or message each member waits from the moment it could begin until it does. What then takes longer
because a peer's link is slow, is waiting for that peer too: only the rank of the slowest link works all the while.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Exposure
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.disturbances.attribution import (
    Explanation,
    Ranks,
    longest_first,
    path_parts,
    rank_classes,
    ranks_of,
    ready_ns,
    thinned,
)
from windtunnel.physics.step.disturbances.disturbances import Disturbances
from windtunnel.physics.step.disturbances.disturbed_step import DisturbedStep, Replayed
from windtunnel.physics.step.disturbances.effect import effect_of
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.physics.step.result import Disturbed, Waiting
from windtunnel.studies.programs.disturbances.pace import pace_of
from windtunnel.studies.programs.disturbances.samples import sampled
from windtunnel.studies.programs.lowering.lower import CapturedGraph, PricedJob, family_words
from windtunnel.studies.programs.lowering.stages import stage_of


def disturbed_job(priced: PricedJob, parts: Sequence[Slow]) -> DisturbedStep[CapturedGraph]:
    """A job under these disturbances or any of them."""
    return DisturbedStep(tuple(parts), lambda slow: priced.graph(pace_of(priced, slow)))


def disturb(priced: PricedJob, job: DisturbedStep[CapturedGraph], disturbances: Disturbances) -> tuple[int, Disturbed]:
    """The makespan under everything that was asked for, in nanoseconds, and what explains it.

    With samples it is their median, and every rank stands for itself: noise makes them differ.
    """
    world = priced.job.world_size

    def simulated(captured: CapturedGraph, with_samples: bool) -> tuple[int, tuple[int, ...]]:
        if with_samples:
            return world, (1,) * world
        return captured.step.graph.n_programs, tuple(np.bincount(captured.step.program_of).tolist())

    return effect_of(
        job,
        disturbances,
        sample=partial(sampled, priced, job.parts, disturbances.seed, job.makespan(()) / 1e9),
        explain=partial(who_waits, priced),
        place=ranks_on(priced, ()).place,
        simulated=simulated,
    )


def who_waits(priced: PricedJob, now: Replayed[CapturedGraph], slow: Sequence[Slow]) -> Explanation:
    """What every rank did in a replayed step that `slow` disturbs, and whom it waited for."""
    captured, graph = now.step, now.step.step.graph
    ranks = ranks_on(priced, slow)
    classes, runs = rank_classes(captured.step, now.timeline, ranks, partial(_held_up, now))
    names = [name.removeprefix("exposed ") for name in graph.categories]
    path = path_parts(captured.step, now.timeline, ranks, names, lambda path: captured.first_rank[graph.program[path]])
    return Explanation(classes, runs, thinned(path), waiting_of(priced, now))


def ranks_on(priced: PricedJob, slow: Sequence[Slow]) -> Ranks:
    """Ranks by their places in the pipeline's and the data-parallel groups."""
    job = priced.job
    data = next((n for n, family in enumerate(job.families) if family.name.startswith(("dp", "fsdp", "data"))), -1)
    replica = priced.places.place_of[data] if data >= 0 else np.zeros(job.world_size, np.int64)
    return ranks_of(stage_of(priced), np.maximum(replica, 0), slow)


def _held_up(
    now: Replayed[CapturedGraph], split: Exposure, ranks: NDArray[np.int64], program: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[len(ranks)]: what slow links of peers add to the exposed transfers of these programs, kind by kind."""
    graph, shape = now.step.step.graph, split.communication_ns.shape
    kind = graph.program.astype(np.int64) * shape[1] + graph.category
    duration_ns = (now.timeline.end_ns - now.timeline.start_ns).astype(np.float64)
    calls = np.flatnonzero((graph.kind >= OpKind.COLLECTIVE) & (graph.kind <= OpKind.RECV))
    size = shape[0] * shape[1]
    whole = np.bincount(kind[calls], duration_ns[calls], size)
    added = np.bincount(kind[calls], (duration_ns * now.step.peers_share)[calls], size)
    share = np.divide(added, whole, out=np.zeros(size), where=whole > 0.0).reshape(shape)
    held_ns: NDArray[np.int64] = np.rint((split.communication_ns * share).sum(axis=1)).astype(np.int64)
    return held_ns[program]


def waiting_of(priced: PricedJob, now: Replayed[CapturedGraph]) -> tuple[Waiting, ...]:
    """Waiting for the last member, by family of groups: each rank's sum over the step, longest mean first."""
    captured, timeline = now.step, now.timeline
    graph = captured.step.graph
    local = np.arange(graph.n_ops) - captured.first_op[graph.program]
    use = np.empty(graph.n_ops, np.int64)
    family = np.full(graph.n_ops, -1, np.int64)
    for number, template in enumerate(priced.templates):
        mine = captured.template_of[graph.program] == number
        use[mine] = template.use_of[local[mine]]
        of_use = np.array([template.slots[use.slot].family for use in template.uses] or [-1], np.int64)
        family[mine] = np.where(use[mine] >= 0, of_use[use[mine]], -1)
    ready = ready_ns(graph, timeline.end_ns)
    weight = graph.multiplicity
    waiting = []
    for number in np.unique(family[family >= 0]).tolist():
        ops = np.flatnonzero(family == number)
        waits = np.zeros(graph.n_programs, np.int64)
        np.add.at(waits, graph.program[ops], timeline.start_ns[ops] - ready[ops])
        members = np.unique(graph.program[ops])
        own = waits[members]
        mean = round(float((own * weight[members]).sum() / weight[members].sum()))
        last = -1
        if own.max() > 0:  # who waits least comes last; among equals the most disturbed
            pace = captured.pace
            trouble = np.maximum(pace.compute, pace.links)[captured.first_rank[members]]
            last = int(captured.first_rank[members[np.lexsort((-trouble, own))[0]]])
        waiting.append(Waiting(family_words(priced.job.families[number].name), mean, int(own.max()), last))
    return longest_first(waiting)
