"""One step of a pipeline whose stages lie on several types of GPU.

The step is lowered once for each type as if all GPUs were of it. Which ops there are, and what waits for what, is the
same every time; so each rank's ops are taken from the step of the type that it lies on. A send between types takes the
longer of both, as does a collective that all ranks meet in. What slows what on a GPU is that GPU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.step.step import step_of
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.simulated import Simulated
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.lowering.step_actions import hop
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Schedule
from windtunnel.studies.training.schedules.table import Scalar

Pieces = tuple[Piece, ...]


def simulate_by_stage(
    pricers: Sequence[Pricer], pieces: Sequence[Pieces], schedule: Schedule, type_of: Sequence[int]
) -> Simulated:
    """Lower and replay. `pricers`, `pieces`: of each type; `type_of`: that of each pipeline rank."""
    steps = [lower(pricer.layout, piece, schedule, pricer) for pricer, piece in zip(pricers, pieces, strict=True)]
    of_rank = np.array(type_of, np.int64)
    step = _joined(steps, of_rank, _crossing(pricers))
    factors = [np.array(pricer.training.slowdown_factors()) for pricer in pricers]
    classes = len(factors[0])
    slowdown = np.zeros((classes * len(factors),) * 2)
    for number, factor in enumerate(factors):
        slowdown[number * classes : (number + 1) * classes, number * classes : (number + 1) * classes] = factor
    own = step.interference + classes * of_rank[step.graph.program]
    interference = np.where(step.interference > 0, own, 0).astype(np.uint8)
    stages = schedule.stages
    program_of = np.repeat(np.arange(stages), pricers[0].layout.cluster.n_gpus // stages)
    ready = step_of(step.graph, step.duration_ns, interference, slowdown, step.nic_share, program_of)
    chain = tuple(pieces[type_of[schedule.holders(v)[0]]][v] for v in range(schedule.n_virtual))
    return Simulated(chain, step, ready.replay())


def _crossing(pricers: Sequence[Pricer]) -> tuple[int, str]:
    """A send from one type to another: they share no scale-up domain, and the slower network decides."""
    return max(hop(pricer, far=True) for pricer in pricers)


def _joined(steps: Sequence[LoweredStep], of_rank: NDArray[np.int64], crossing: tuple[int, str]) -> LoweredStep:
    first = steps[0]
    assert all(np.array_equal(first.graph.dep_idx, step.graph.dep_idx) for step in steps[1:]), "steps of other ops"
    base = [0, *accumulate(len(step.segments) for step in steps)]
    categories, of_category = _all_names(
        [step.graph.categories for step in steps], base, [f"segment {number}" for number in range(base[-1])]
    )
    labels, of_label = _all_names(
        [step.graph.labels for step in steps], base, [name for step in steps for name in step.segment_names]
    )
    crossing_ns, across = crossing
    if across not in categories:
        categories.append(across)
    owner = of_rank[first.graph.program]
    duration = _chosen(owner, [step.duration_ns for step in steps])
    nic = _chosen(owner, [step.nic_share for step in steps])
    category = _chosen(owner, [new[step.graph.category] for step, new in zip(steps, of_category, strict=True)])
    label = _chosen(owner, [new[step.graph.label] for step, new in zip(steps, of_label, strict=True)])
    meets = first.graph.rendezvous >= 0
    duration[meets] = np.max([step.duration_ns[meets] for step in steps], axis=0)
    nic[meets] = np.max([step.nic_share[meets] for step in steps], axis=0)
    sent = np.flatnonzero(first.sender >= 0)
    crosses = sent[of_rank[first.sender[sent]] != of_rank[first.receiver[sent]]]
    duration[crosses], category[crosses] = crossing_ns, categories.index(across)
    segment_of = np.full_like(first.segment_of, -1)
    for stage in range(len(segment_of)):
        number = int(of_rank[first.schedule.holders(stage)[0]])
        own = steps[number].segment_of[stage]
        segment_of[stage] = np.where(own >= 0, own + base[number], -1)
    traffic: dict[str, float] = {}
    for number, step in enumerate(steps):
        for key, value in step.traffic_bytes.items():
            traffic[key] = traffic.get(key, 0.0) + float((of_rank == number).mean()) * value
    graph = replace(
        first.graph,
        category=category.astype(np.uint16),
        label=label.astype(np.int32),
        categories=tuple(categories),
        labels=tuple(labels),
    )
    return replace(
        first,
        graph=graph,
        duration_ns=duration,
        interference=_chosen(owner, [step.interference for step in steps]),
        segments=tuple(segment for step in steps for segment in step.segments),
        segment_names=tuple(name for step in steps for name in step.segment_names),
        segment_of=segment_of,
        optimizer=tuple(steps[number].optimizer[rank] for rank, number in enumerate(of_rank.tolist())),
        traffic_bytes=traffic,
        nic_share=nic,
    )


def _chosen(owner: NDArray[np.int64], columns: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
    """Of each op, the value in the step of its own type."""
    values = columns[0].copy()
    for number, column in enumerate(columns[1:], 1):
        values[owner == number] = column[owner == number]
    return values


def _all_names(
    names: Sequence[tuple[str, ...]], base: Sequence[int], heads: list[str]
) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Names of all steps together, those of passes first; and of each step, where its own names are in that list."""
    rest = dict.fromkeys(name for own, at, end in zip(names, base, base[1:], strict=False) for name in own[end - at :])
    place = {name: len(heads) + number for number, name in enumerate(rest)}
    arrays = [
        np.array([*range(at, end), *(place[name] for name in own[end - at :])], np.int64)
        for own, at, end in zip(names, base, base[1:], strict=False)
    ]
    return [*heads, *rest], arrays
