"""Which jobs Slurm stops for another: the least of those that it may, by QOS or by tier of their partition."""

from __future__ import annotations

from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.policies.slurm.cluster import PREEMPT_OFF, Cluster
from windtunnel.studies.fleet.policies.slurm.nodes import mask_of
from windtunnel.studies.fleet.policies.slurm.rules import Rules
from windtunnel.studies.fleet.policies.slurm.state import State, state_units

REORDERS = 2  # of candidates: the first, and preempt_reorder_count of 1


def victims(rules: Rules, job: Running, among: int, board: Board, state: State) -> list[Running]:
    """The jobs that are stopped for this one; none where it may not, or where stopping all would not do."""
    cluster = rules.cluster
    now_ns, since_ns = board.moment.ns, state.preempting.get(job.index)
    still_going_on = since_ns is not None and now_ns - since_ns < cluster.again_s * NS
    candidates = [] if still_going_on else stoppable(rules, job, among, board, state)
    if not candidates:
        return []
    candidates.sort(key=lambda other: _worth(cluster, other))
    tries = 0
    while True:
        free, removed, placed = state.free.copy(), list[Running](), None
        for other in candidates:
            free.add(state_units(other, state))
            free.load(state_units(other, state), other.owner.cpus, -1)
            removed.append(other)
            placed = free.choose(rules.need(job), among)
            if placed is not None:
                break
        if placed is None:
            return []
        claim = mask_of(node for node, _ in placed)
        tries += 1
        if tries > REORDERS or len(candidates) <= tries:
            break
        last, before = removed[-1], removed[:-1]
        shared = {
            other.index: (mask_of(node for node, _ in state_units(other, state)) & claim).bit_count()
            for other in before
        }
        before.sort(key=lambda other: -shared[other.index])
        candidates = [last, *before, *candidates[len(removed) :]]
    state.preempting[job.index] = now_ns
    return [other for other in removed if mask_of(node for node, _ in state_units(other, state)) & claim]


def stoppable(rules: Rules, job: Running, among: int, board: Board, state: State) -> list[Running]:
    """The running jobs on some of these nodes that may be stopped for this one."""
    cluster = rules.cluster
    if not cluster.preempts_by:
        return []
    jobs = [other for other in board.running.values() if _may_stop(cluster, job, other, board, state)]
    return [other for other in jobs if mask_of(node for node, _ in state_units(other, state)) & among]


def _may_stop(cluster: Cluster, job: Running, other: Running, board: Board, state: State) -> bool:
    if other.index in state.doomed or mode_of(cluster, other) == PREEMPT_OFF:
        return False
    if board.moment.ns - other.placed_ns < cluster.exempt_s * NS:
        return False
    if cluster.preempts_by == "qos":
        qos = cluster.qos.get(job.owner.qos)
        return qos is not None and other.owner.qos in qos.stops
    ours, theirs = (cluster.partition(each.queue) for each in (job, other))
    return ours is not None and theirs is not None and ours.tier > theirs.tier


def _worth(cluster: Cluster, job: Running) -> tuple[float, ...]:
    """By which candidates are ordered: what is stopped first."""
    if cluster.youngest_first:
        return (-job.placed_ns,)
    nodes = len(job.placement)
    if cluster.preempts_by == "qos":
        qos = cluster.qos.get(job.owner.qos)
        return (qos.priority if qos else 0, nodes, job.index)
    partition = cluster.partition(job.queue)
    return (partition.tier if partition else 1, nodes, job.index)


def mode_of(cluster: Cluster, job: Running) -> str:
    """How a job is preempted."""
    qos = cluster.qos.get(job.owner.qos) if cluster.preempts_by == "qos" else None
    partition = cluster.partition(job.queue) if cluster.preempts_by == "partition" else None
    own = qos.preempt if qos else partition.preempt if partition else ""
    return own or cluster.preempt
