"""A run of Slurm's policy from one end to the other in compiled code: `engine/compiled/fleet/slurm_kernels.py`.

The same starts as the policy on the clock, which it leaves what the kernels do not know: preemption, nodes that fail,
restarts, GPUs as a count, types of GPUs, weights of nodes, loops with phases, deferred scheduling with priorities that
change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.policies.slurm.nodes import S_NS, Gang, mask_of
from windtunnel.studies.fleet.policies.slurm.order import Fairness
from windtunnel.studies.fleet.policies.slurm.rules import Rules

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.arrays import Array

Ints = NDArray[np.int64]
LEAST = 500  # jobs from which loading, or compiling, is worth it


def can_run(policy: Rules, jobs: list[Running]) -> bool:
    """Whether compiled code knows all of it."""
    cluster = policy.cluster
    return (
        policy.per_node > 0
        and policy.unit == 1
        and not cluster.preempts_by
        and not cluster.heavy
        and not (any(cluster.types) and any(job.owner.gpu for job in jobs))
        and not policy.epoch_s
        and not (policy.main_interval_s or policy.main_phase_s or policy.backfill_phase_s)
        and not (policy.deferred and policy.recalculates)
        and min(job.submit_ns for job in jobs) >= 0
        and all(job.work.restart_s == 0 for job in jobs)
    )


def run_whole(policy: Rules, jobs: list[Running], nodes: int) -> None:
    """Jobs start, hold nodes and end; on return each is as the clock would leave it."""
    from windtunnel.physics.engine.compiled.fleet import slurm_arrays as places
    from windtunnel.physics.engine.compiled.fleet import slurm_kernels as kernels
    from windtunnel.physics.engine.compiled.fleet.slurm_order import order as order_queue

    order = sorted(jobs, key=lambda job: (job.submit_ns, job.index))
    memory = memory_of(policy, order, nodes)
    now, table, priority, queue = memory["now"], memory["jobs"], memory["priority"], memory["queue"]
    fairness, every_ns = Fairness(), int(memory["site"][places.EVERY])
    if not every_ns:
        priority[:] = [policy.priority(job, job.submit_ns, {}) for job in order]
    while kernels.run(**memory) == places.TICK:
        now_ns = int(now[places.NOW])
        running = {}
        for row in memory["lists"][places.BY_LIMIT, : now[places.RUNNING]].tolist():
            order[row].placed_ns = int(table[places.START, row])
            running[row] = order[row]
        fairness.tick(running, now_ns, policy.cluster)
        for row in queue[: now[places.WAITING]].tolist():
            priority[row] = policy.priority(order[row], now_ns, fairness.factors)
        last = int(np.searchsorted(table[places.SUBMIT, :-1], now_ns - now_ns % every_ns + every_ns))
        for row in range(int(now[places.NEXT]), last):
            priority[row] = policy.priority(order[row], order[row].submit_ns, fairness.factors)
        order_queue(now, table, priority, queue)
    start, lasts = table[places.START].tolist(), table[places.LASTS].tolist()
    for row, job in enumerate(order):
        if start[row] >= 0:
            job.start_ns = job.placed_ns = start[row]
            job.end_ns = start[row] + lasts[row]
            job.gpu_ns = lasts[row] * job.gpus


def numbers(values: Iterable[Hashable]) -> Ints:
    """A number for each distinct value, by first appearance."""
    number_of: dict[Hashable, int] = {}
    return np.array([number_of.setdefault(value, len(number_of)) for value in values], np.int64)


def memory_of(policy: Rules, order: list[Running], nodes: int) -> dict[str, Array]:
    """The arrays of the kernels, by name, for jobs by submission."""
    from windtunnel.physics.engine.compiled.fleet import slurm_arrays as places

    table, masks = _table(policy, order), _masks(policy, order, nodes)
    table[places.PARTITION, :-1] = numbers(_partition(policy, job) for job in order)
    groups = table[places.GROUP, :-1]
    of_group = [policy.limits(order[at]) for at in np.unique(groups, return_index=True)[1]]
    counters = {name: at for at, name in enumerate(dict.fromkeys(each[0] for group in of_group for each in group))}
    caps = [
        [counters[name], *(-1 if most is None else most for most in mosts)]
        for group in of_group
        for name, _, *mosts in group
    ]
    per_node, cluster = policy.per_node, policy.cluster
    sizes = list(cluster.sizes) or [per_node] * nodes
    cpus = cluster.node_cpus or sizes
    busy = [max(cpus) - count for count in cpus]
    at_least = [mask_of(node for node, size in enumerate(sizes) if size >= count) for count in range(per_node + 1)]
    users, lines, kinds = (int(table[row].max()) + 1 for row in (places.USER, places.LINE, places.KIND))
    site = np.zeros(16, np.int64)
    site[: places.EVERY] = [
        round(policy.backfill_interval_s * NS),
        max(round(policy.resolution_s * NS), 1),
        round(policy.window_s * NS),
        round(policy.batch_s * NS),
        round(policy.completing_s * NS),
        round(policy.reserved_after_s * NS),
    ]
    if policy.recalculates:
        site[places.EVERY] = round(cluster.calculated_every_s * NS)
    site[places.MAIN_DEPTH : places.PARTITIONS] = [
        policy.main_depth,
        policy.depth,
        policy.depth_user,
        policy.depth_partition,
        policy.deferred,
    ]
    site[places.PARTITIONS :] = len(masks) - 5, users, lines, max(cpus)
    now = np.zeros(12, np.int64)
    now[[places.WAKE, places.CALCULATED]] = places.NEVER
    now[places.CHANGED] = 1
    steps = 2 * min(policy.depth, len(order)) + 3
    words = masks.shape[1]
    return {
        "now": now,
        "site": site,
        "jobs": table,
        "priority": np.zeros(len(order)),
        "sets": masks,
        "lists": np.zeros((5, nodes * per_node + 1), np.int64),
        "queue": np.zeros(len(order), np.int64),
        "job_nodes": np.zeros(int(table[places.FIRST, -1]), np.int64),
        "free": np.array([sizes, sizes, busy, busy], np.int64),
        "least": np.array([[_words(mask, nodes) for mask in at_least]] * 2, np.int64),
        "spans": np.zeros((4, nodes), np.int64),
        "first": np.cumsum([0, *map(len, of_group)]).astype(np.int64),
        "caps": np.array(caps or np.empty((0, 3)), np.int64),
        "used": np.zeros((len(counters), 2), np.int64),
        "counts": np.zeros((users + lines + kinds, 4), np.int64),
        "times": np.zeros(steps, np.int64),
        "steps": np.zeros((steps, words), np.int64),
    }


def _partition(policy: Rules, job: Running) -> str:
    partition = policy.cluster.partition(job.queue)
    return partition.name if partition else ""


def _masks(policy: Rules, order: list[Running], nodes: int) -> Ints:
    """Nodes of partitions by first appearance, of all, and room for four more."""
    whole = (1 << nodes) - 1
    sample = {_partition(policy, job): job for job in reversed(order)}
    masks = [policy.nodes_of(sample[name], whole) for name in dict.fromkeys(_partition(policy, job) for job in order)]
    return np.array([_words(mask, nodes) for mask in (*masks, whole, 0, 0, 0, 0)], np.int64)


def _words(mask: int, nodes: int) -> list[int]:
    from windtunnel.physics.engine.compiled.fleet.slurm_arrays import BITS

    return [mask >> BITS * word & (1 << BITS) - 1 for word in range(-(-nodes // BITS))]


def _table(policy: Rules, order: list[Running]) -> Ints:
    """What is known of each job beforehand, as rows."""
    from windtunnel.physics.engine.compiled.fleet import slurm_arrays as places

    table = np.zeros((15, len(order) + 1), np.int64)
    jobs = table[:, :-1]
    by_tier = policy.ordered_by_tier
    bands = [policy.band(job) if by_tier else (0, 0) for job in order]
    ranks = {band: at for at, band in enumerate(sorted(set(bands)))}
    jobs[places.SUBMIT] = [job.submit_ns for job in order]
    jobs[places.LASTS] = [round(job.work.phase_end(0) * NS) for job in order]
    jobs[places.LIMIT] = [policy.limit_ns(job) for job in order]
    needs = [policy.need(job) for job in order]
    jobs[places.GPUS] = [job.gpus for job in order]
    jobs[places.EACH] = [need.each for need in needs if isinstance(need, Gang)]
    if policy.cluster.node_cpus:
        jobs[places.CPUS] = [job.owner.cpus for job in order]
    jobs[places.BAND] = [ranks[band] for band in bands]
    after = jobs[places.SUBMIT] // S_NS if by_tier else jobs[places.SUBMIT]
    jobs[places.AFTER, np.lexsort(([job.index for job in order], after))] = np.arange(len(order))
    jobs[places.LINE] = numbers(job.queue for job in order)
    jobs[places.USER] = numbers(job.owner.user for job in order)
    jobs[places.KIND] = numbers((need, job.queue) for need, job in zip(needs, order, strict=True))
    jobs[places.GROUP] = numbers((job.queue, job.owner) for job in order)
    jobs[places.START] = -1
    table[places.FIRST, 1:] = np.cumsum(-(-jobs[places.GPUS] // jobs[places.EACH]))
    return table
