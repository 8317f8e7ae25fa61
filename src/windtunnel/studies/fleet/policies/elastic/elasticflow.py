"""ElasticFlow: deadlines are promised on admission, and kept with as few GPUs as that takes.

Admission, one by one in order of arrival: the newcomer is accepted if all accepted jobs and it can be planned in
deadline order (`engine/compiled/fleet/elastic_plan_kernels.py`), each as late and as narrow as possible; else it is
turned away. Spare GPUs now go, one level at a time, to the job with the largest reduction of GPU-time per added GPU;
jobs that hold none come first. All is planned anew at arrivals, ends and the next change in any plan; decisions are at
least a slot apart, and plans change at whole slots.
Source: D. Gu et al., "ElasticFlow", ASPLOS 2023, section 4; pkusys/ElasticFlow, scheduler.py, as rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.fleet.clock.decision import Decision, JobView, Snapshot
from windtunnel.studies.fleet.clock.work import Scaling
from windtunnel.studies.fleet.policies.elastic.edf import by_deadline
from windtunnel.studies.fleet.speeds.scaling import slot_of
from windtunnel.studies.fleet.traits import Traits

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import Jobs, Line, Plan

PER_JOB = 16  # entries of a timeline: two for each plan of a job, which is planned at most once a level
Kept = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]


class Room(NamedTuple):
    """Arrays in which plans of jobs are made."""

    free: Line
    wide: Line
    plan: Plan
    plans: Kept  # by job: times, GPUs from each on, how many
    end: NDArray[np.float64]


@dataclass(frozen=True)
class ElasticFlow:
    """`slot_s`: least time between decisions, and what plans are rounded to."""

    slot_s: float = 60.0
    _rooms: dict[int, Room] = field(default_factory=dict, init=False, repr=False, compare=False)  # by number of jobs

    def decide(self, snapshot: Snapshot) -> Decision:
        """Jobs need `work` (`clock/work.py`, Scaling) and `done`. Memory: jobs that were accepted."""
        accepted: frozenset[int] = snapshot.memory or frozenset()
        ordered = sorted(snapshot.jobs, key=by_deadline)
        going = [job for job in ordered if job.index in accepted]
        rejected: list[int] = []
        planned: tuple[Jobs, Room, bool] | None = None
        newcomers = [job for job in snapshot.jobs if job.index not in accepted]
        for newcomer in sorted(newcomers, key=lambda job: (job.submit_s, job.index)):
            job_states = sorted([*going, newcomer], key=by_deadline)
            planned = self._plans(job_states, snapshot)
            if planned[2]:
                going = job_states
            else:
                rejected.append(newcomer.index)
                planned = None
        gpus: dict[int, int] = {}
        wake_s = None
        if going:
            job_table, room, _ = planned or self._plans(going, snapshot)
            gpus, change_s = _allocation(going, job_table, room, snapshot.capacity)
            wake_s = change_s if math.isfinite(change_s) else None
        memory = frozenset(job.index for job in going)
        return Decision(gpus, reject=tuple(rejected), wake_s=wake_s, memory=memory)

    def _plans(self, jobs: Sequence[JobView], snapshot: Snapshot) -> tuple[Jobs, Room, bool]:
        """Plans of jobs in deadline order, and whether all are in time."""
        from windtunnel.physics.engine.compiled.fleet.elastic_spread_kernels import plan_all

        if len(jobs) not in self._rooms:
            self._rooms[len(jobs)] = _room_of(len(jobs))
        room = self._rooms[len(jobs)]
        job_table = jobs_of(jobs, snapshot.now_s, snapshot.capacity, self.slot_s)
        return job_table, room, bool(plan_all(job_table, room.plan, room.free, room.plans, room.end))


def _room_of(jobs: int) -> Room:
    from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import line, room

    length = PER_JOB * jobs + 64
    allocations = np.empty((jobs, length)), np.empty((jobs, length), np.int64), np.zeros(jobs, np.int64)
    return Room(line(length), line(length), room(length), allocations, np.zeros((jobs, 2)))


def jobs_of(jobs: Sequence[JobView], now_s: float, capacity: int, slot_s: float) -> Jobs:
    """Jobs in deadline order, as the planner takes them."""
    from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import Jobs

    works: list[Scaling] = [job.work for job in jobs]
    counts = [len(work.rates) for work in works]
    level, rate = np.zeros((len(jobs), max(counts)), np.int64), np.zeros((len(jobs), max(counts)))
    for row, (work, count) in enumerate(zip(works, counts, strict=True)):
        level[row, :count], rate[row, :count] = work.columns
    largest = np.array([work.most_gpus for work in works], np.int64)
    left = np.maximum(np.array([work.iterations for work in works]) - [job.progress[1] for job in jobs], 0.0)
    deadline = np.array([math.inf if job.deadline_s is None else job.deadline_s for job in jobs])
    return Jobs(
        level, rate, np.array(counts, np.int64), largest, left, deadline, float(now_s), capacity, float(slot_s), False
    )


def _allocation(jobs: Sequence[JobView], job_table: Jobs, room: Room, capacity: int) -> tuple[dict[int, int], float]:
    """GPUs of each job now, spare ones given to those who gain most; and when the first plan changes."""
    from windtunnel.physics.engine.compiled.fleet.elastic_spread_kernels import spread_gpus

    gpus_of = room.plans[1][:, 0].copy()
    spare = capacity - int(gpus_of.sum())
    assert room.free.gpus[0] == spare, "the timeline and the jobs disagree on what is free"
    if spare:
        order, end = np.arange(len(jobs)), room.end.copy()
        spread_gpus(job_table, order, gpus_of, end, room.free, room.plans, room.wide, room.plan)
    times, _, counts = room.plans
    changing = np.flatnonzero(counts > 1)
    change_s = float(times[changing, 1].min()) if len(changing) else math.inf
    return {job.index: int(count) for job, count in zip(jobs, gpus_of.tolist(), strict=True) if count}, change_s


POLICY = Traits(
    name="elasticflow",
    asks="all",
    make=lambda site, options: ElasticFlow(slot_of(site.gpu)),
    needs=frozenset({"speed", "deadline"}),
    sizes=True,
    slots=True,
    restarts=False,
)
