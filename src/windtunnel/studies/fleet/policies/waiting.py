"""The queues of `queues.py` as decisions on a snapshot, for clusters whose nodes come and go.

Same rules: what runs keeps running; the queue is passed in order of (submission, row), or of (time left, submission,
row); `block` ends at the first that does not fit, `skip` passes it, `easy` reserves it and backfills around the
reservation. A gang up to a node goes to the fitting node with least free GPUs, a larger one to free nodes and its
remainder to another; ties to the lowest number. A job that a failure stopped stands where its submission puts it.
With nothing failing the starts are those of the compiled queues.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.studies.fleet.decision import Decision, JobView, Placement, Snapshot

NEVER = 2**62
US = 1e6  # times are compared in whole microseconds: what is left is a float


@dataclass(frozen=True)
class Waiting:
    """`shortest`: order by time left. `rule`: block, skip or easy. `per_node` 0: GPUs are a count."""

    shortest: bool
    rule: str
    per_node: int

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `remaining_s`."""
        running = [job for job in snapshot.jobs if job.placement]
        free = list(snapshot.nodes)
        for job in running:
            for node, count in job.placement:
                free[node] -= count
        gpus = {job.index: job.held for job in running}
        placement = {job.index: job.placement for job in running}
        queue = sorted((job for job in snapshot.jobs if not job.placement), key=self._rank)
        now = round(snapshot.now_s * US)
        too_large = snapshot.capacity + 1  # no gang of this size or more fits, where GPUs are a count
        until = spare = None
        misfits: set[int] = set()
        for job in queue:
            if (job.gpus in misfits or job.gpus >= too_large) and (self.rule == "skip" or until is not None):
                continue
            end = now + round((job.remaining_s or 0.0) * US)
            if until is not None and spare is not None and end > until and job.gpus > spare:
                continue
            found = gang(free, job.gpus, self.per_node)
            if found is None:
                if self.rule == "block":
                    break
                misfits.add(job.gpus)
                if not self.per_node:
                    too_large = min(too_large, job.gpus)
                if self.rule == "easy" and until is None:
                    until, spare = _reservation(job.gpus, sum(free), [*running], gpus, now)
                continue
            if until is not None and spare is not None and end > until:
                spare -= job.gpus
            for node, count in found:
                free[node] -= count
            gpus[job.index] = job.gpus
            placement[job.index] = found
            running.append(job)
        return Decision(gpus, placement)

    def _rank(self, job: JobView) -> tuple[float, float, int]:
        return (job.remaining_s or 0.0) if self.shortest else 0.0, job.submit_s, job.index


def _reservation(need: int, free: int, running: list[JobView], gpus: dict[int, int], now: int) -> tuple[int, int]:
    """(when `need` GPUs are free if nothing else starts, GPUs free then beyond these), in microseconds."""
    until = NEVER  # of GPUs that are enough but scattered nobody knows when they fit: backfill is free then
    for end, index in sorted((now + round((job.remaining_s or 0.0) * US), job.index) for job in running):
        if free >= need:
            break
        until = end
        free += gpus[index]
    return until if free >= need else NEVER, free - need


def gang(free: list[int], gpus: int, per_node: int) -> Placement | None:
    """Where a gang goes by `free` GPUs of each node, or None where it does not fit."""
    if not per_node:
        if sum(free) < gpus:
            return None
        taken = []
        for node, count in enumerate(free):
            if gpus and count:
                taken.append((node, min(count, gpus)))
                gpus -= taken[-1][1]
        return tuple(taken)
    whole, rest = divmod(gpus, per_node)
    chosen: list[tuple[int, int]] = []
    if whole:
        idle = [node for node, count in enumerate(free) if count == per_node][:whole]
        if len(idle) < whole:
            return None
        chosen = [(node, per_node) for node in idle]
    if rest:
        taken_nodes = {node for node, _ in chosen}
        fitting = [(count, node) for node, count in enumerate(free) if count >= rest and node not in taken_nodes]
        if not fitting:
            return None
        chosen.append((min(fitting)[1], rest))
    return tuple(chosen)
