"""Tiresias: two-dimensional least attained service, in discrete queues.

Attained service = GPUs requested x seconds held. A job starts in the first queue and moves down when its service
reaches that queue's threshold; higher queues come first, inside one the order of entry. Walking that order, whatever
fits runs, and a running job that no longer fits stops. A threshold crossing is an event (`wake_s`). Source: J. Gu et
al., "Tiresias", NSDI 2019; queue threshold of the default: adaptdl, simulator/tiresias.py (16 GPU-h).
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.studies.fleet.decision import Decision, Snapshot
from windtunnel.studies.fleet.traits import FAILING, Traits

Queues = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Tiresias:
    """Thresholds between the queues, ascending."""

    thresholds_gpu_s: tuple[float, ...] = (57_600.0,)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Walk the queues; `memory` holds them as tuples of job indices."""
        jobs = {job.index: job for job in snapshot.jobs}
        before: Queues = snapshot.memory or ((),) * (len(self.thresholds_gpu_s) + 1)
        queues = [[index for index in queue if index in jobs] for queue in before]
        queued = {index for queue in queues for index in queue}
        queues[0].extend(index for index in jobs if index not in queued)
        for index, job in jobs.items():
            if not job.placement:
                continue
            at = next(level for level, queue in enumerate(queues) if index in queue)
            if at < len(self.thresholds_gpu_s) and job.executed_s * job.gpus >= self.thresholds_gpu_s[at]:
                queues[at].remove(index)
                queues[at + 1].append(index)
        free = snapshot.capacity
        gpus: dict[int, int] = {}
        wake_s: float | None = None
        for level, queue in enumerate(queues):
            for index in queue:
                job = jobs[index]
                if job.gpus > free:
                    continue
                gpus[index] = job.gpus
                free -= job.gpus
                if level < len(self.thresholds_gpu_s):
                    rest_s = self.thresholds_gpu_s[level] / job.gpus - job.executed_s
                    wake_s = min(wake_s or float("inf"), snapshot.now_s + rest_s)
        return Decision(gpus, memory=tuple(map(tuple, queues)), wake_s=wake_s)


POLICY = Traits(
    name="tiresias",
    asks="all",
    make=lambda site, options: Tiresias(),
    measured="each",
    capacity=FAILING,
    source="J. Gu et al., Tiresias, NSDI 2019",
)
