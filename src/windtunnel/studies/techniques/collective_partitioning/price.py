"""Centauri-style partitioning (ASPLOS 2024, abstract; formulation ours): collectives cut, and scheduled in tiers.

Inside and across nodes are different links, so by group neighbouring buckets overlap. The identity is in the space, and
what is chosen is what is shortest when played, so a step never gets longer. docs/techniques has the tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from windtunnel.physics.cost.communication.collectives import Group, collective
from windtunnel.physics.cost.price import nanoseconds
from windtunnel.studies.techniques import constants
from windtunnel.studies.techniques.flat import FlatStep, Task, chained, cut_tasks
from windtunnel.studies.techniques.flat.task import SCALE_OUT, SCALE_UP
from windtunnel.studies.techniques.parameters import PIECES, PartitionPlan
from windtunnel.studies.training import Plan
from windtunnel.studies.training.pricing import Pricer

OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p")


def overlapped(plan: Plan) -> Plan:
    """The plan with every overlap on."""
    changes: dict[str, object] = dict.fromkeys(OVERLAPS, True)
    if plan.tp == 1:
        changes.pop("overlap_tp")
    return plan.with_fields(changes)


def rewrite(step: FlatStep, partition: PartitionPlan) -> tuple[FlatStep, PartitionPlan]:
    """The partition of the shortest step, and what was chosen."""
    exchanges = any(task.role == "all_to_all" for task in step.one_batch)
    groups = (False, True) if partition.group is None else (partition.group,)
    pieces = (PIECES if exchanges else (1,)) if partition.pieces is None else (partition.pieces,)
    late = (False, True) if partition.late_weights is None else (partition.late_weights,)
    best: tuple[float, FlatStep, PartitionPlan] | None = None
    for group, count, weights in product(groups, pieces, late):
        chosen = replace(partition, group=group, pieces=count, late_weights=weights)
        flat_step = step.rewritten(partial(partitioned, pricer=step.pricer, chosen=chosen))
        seconds = flat_step.seconds()
        if best is None or seconds < best[0]:
            best = (seconds, flat_step, chosen)
    assert best is not None, "there is always the identity"
    return best[1], best[2]


def partitioned(tasks: tuple[Task, ...], pricer: Pricer, chosen: PartitionPlan) -> tuple[Task, ...]:
    """The tasks with one choice made."""
    if chosen.late_weights:
        tasks = with_late_weights(tasks)
    if chosen.group:
        tasks = by_group(tasks, pricer)
    count = chosen.pieces or 1
    if count == 1:
        return tasks
    launch = round(constants.CUT_LAUNCH_S * 1e9)
    return cut_tasks(tasks, lambda task: count if task.role in ("all_to_all", "expert") else 1, launch)


def by_group(tasks: Sequence[Task], pricer: Pricer) -> tuple[Task, ...]:
    """All-reduces that cross nodes as three collectives, where the three together are shorter on their longest link."""
    return chained(tasks, lambda task: _three(task, pricer))


def _three(task: Task, pricer: Pricer) -> tuple[Task, ...]:
    if task.role != "reduce" or task.lane != SCALE_OUT:
        return (task,)
    layout = pricer.layout
    group = layout.group("edp" if "expert" in task.name else "dp")
    inside, across = group.per_domain, group.domains
    whole = collective("all_reduce", task.bytes_total, group, layout.cluster).seconds
    if inside == 1 or across == 1 or group.size % inside or abs(nanoseconds(whole) - task.work_ns) > 1000:
        return (task,)  # not an all-reduce of this group, or nothing to divide
    near, far = Group(inside, inside), Group(across, 1)
    seconds = [
        collective("reduce_scatter", task.bytes_total, near, layout.cluster).seconds,
        collective("all_reduce", task.bytes_total / inside, far, layout.cluster).seconds,
        collective("all_gather", task.bytes_total, near, layout.cluster).seconds,
    ]
    if max(seconds[0] + seconds[2], seconds[1]) >= whole:
        return (task,)
    names = ("reduce-scatter inside", "all-reduce across", "all-gather inside")
    sizes = (task.bytes_total, task.bytes_total / inside, task.bytes_total)
    lanes = (SCALE_UP, SCALE_OUT, SCALE_UP)
    return tuple(
        replace(
            task, name=f"{task.name}: {name}", lane=lane, work_ns=nanoseconds(second), bytes_total=size, latency_ns=0
        )
        for name, lane, second, size in zip(names, lanes, seconds, sizes, strict=True)
    )


def with_late_weights(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Weight gradients off the chain of the backward pass: only reductions and the update wait for them."""
    new_tasks: list[Task] = []
    new: dict[int, tuple[int, ...]] = {}
    open_weights: list[int] = []
    for number, task in enumerate(tasks):
        after = {other for earlier in task.after for other in new[earlier]}
        if task.role in ("reduce", "update"):
            after |= set(open_weights)
            if task.role == "update":
                open_weights = []
        if task.role == "weight":
            new_tasks.append(replace(task, after=tuple(sorted(after)), urgency=1))
            new[number] = tuple(sorted(after))
            open_weights.append(len(new_tasks) - 1)
            continue
        new_tasks.append(replace(task, after=tuple(sorted(after))))
        new[number] = (len(new_tasks) - 1,)
    return tuple(new_tasks)
