"""Optimus: GPUs one at a time to the job whose remaining time shrinks most.

One GPU each, in order of arrival, while there are any; then repeatedly one more to the job with the largest
remaining iterations x (T(n) - T(n + 1)), T the iteration time at the job's fixed batch on packed nodes, until no GPU is
left or none gains; of equals the earlier. n is at most batch / smallest local batch. A job that keeps its n keeps its
nodes; the others are placed in order of n. Where T is known for some n only (powers of two), steps go from one to the
next, and what they save counts by GPU.
Source: Y. Peng et al., "Optimus", EuroSys 2018, as in adaptdl, simulator/optimus.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.studies.fleet.clock.decision import Decision, Snapshot
from windtunnel.studies.fleet.traits import FAILING, Traits


@dataclass(frozen=True)
class Optimus:
    """No parameter."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` with `most_gpus`, `remaining_iterations(done)` and `iteration_s(gpus)`."""
        free = snapshot.capacity
        size: dict[int, int] = {}
        gain: dict[int, float] = {}
        jobs = {job.index: job for job in snapshot.jobs}

        def larger(index: int) -> int:
            step = getattr(jobs[index].work, "next_gpus", None)
            return size[index] + 1 if step is None else int(step(size[index]))

        def gained(index: int) -> float:
            work, count = jobs[index].work, size[index]
            more = larger(index) - count
            if count + more > work.most_gpus or free < more:
                return 0.0
            saved_s: float = work.iteration_s(count) - work.iteration_s(count + more)
            return saved_s / more * remaining[index]

        remaining = {index: float(job.work.remaining_iterations(job.progress)) for index, job in jobs.items()}
        for index in jobs:
            least = getattr(jobs[index].work, "least_gpus", 1)
            if free < least:
                size[index], gain[index] = 0, 0.0
                continue
            size[index] = least
            free -= least
            gain[index] = gained(index)
        while free > 0:
            best = max(gain, key=gain.__getitem__)
            if gain[best] <= 0:
                break
            more = larger(best) - size[best]
            if more <= free:
                size[best] += more
                free -= more
            gain[best] = gained(best)
        order = sorted(size, key=size.__getitem__)
        return Decision({index: size[index] for index in order if size[index] > 0})


POLICY = Traits(
    name="optimus",
    asks="rounds",
    make=lambda site, options: Optimus(),
    needs=frozenset({"speed"}),
    sizes=True,
    capacity=FAILING,
    interval_s=60.0,
)
