"""AdaptDL's clock under Pollux, compiled: the rules of `clock.py` and of the product's policy, in one loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oracles.adaptdl.clock import RESTART_S, TICK_S
from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.fleet.adaptdl_kernels import (
    MOST_GPUS,
    Array,
    Measured,
    State,
    choose,
    most_gpus,
    place,
    rate,
    speedups,
)
from windtunnel.physics.engine.compiled.fleet.allocation_kernels import allocate
from windtunnel.studies.fleet.measured.chosen import ChosenBatch, outside, state_of


def run(works: Sequence[ChosenBatch], submit_s: Any, nodes: Sequence[int], until_s: float | None) -> Any:
    """Records of jobs after a run in AdaptDL's clock under Pollux. Raises UserError where tables do not reach."""
    measured = works[0].measured
    state = state_of([work.which for work in works], submit_s)
    until = math.inf if until_s is None else float(until_s)
    gpus = np.array(nodes, np.int64)
    row, state = run_pollux(measured, state, gpus, float(TICK_S), float(RESTART_S), until)
    if row >= 0:
        raise outside(works[row].app, state.jobs[row])
    return state.jobs


@njit(cache=True)
def _advance(m: Measured, state: State, row: int, now_s: float, tick_s: float) -> bool:
    """Let a tick pass for one job; False where the tables do not reach."""
    job = state.jobs[row]
    if job["gpus"] == 0:
        return True
    epochs, ends = m.apps[job["app"]]["epochs"], m.apps[job["app"]]["ends"]
    delay = min(job["restart_left_s"], tick_s)
    job["restart_left_s"] -= delay
    used, left, now_s = delay, tick_s - delay, now_s + delay
    while left > 0 and np.isnan(job["end_s"]):
        speed = rate(m, state, row)
        if np.isnan(speed):
            return False
        until = m.ends[ends + job["epoch"]]
        if job["progress"] + speed * left < until:
            job["progress"] += speed * left
            used += left
            left = 0.0
        else:
            whole = np.rint((until - job["progress"]) / speed)
            job["epoch"] += 1
            job["rated"] = 0
            job["progress"] = until
            now_s += whole
            used += whole
            left -= whole
            if job["epoch"] > epochs - 1:
                job["end_s"] = now_s
        choose(m, state, row)
    job["gpu_seconds"] += used * job["gpus"]
    return True


@njit(cache=True)
def run_pollux(
    m: Measured, state: State, node_gpus: Array, tick_s: float, restart_s: float, until_s: float
) -> tuple[int, State]:
    """Run jobs, which are in the order of their indices, until all are done, or `until_s` in ticks.

    Returns the job that the tables do not reach (-1: none) and the state, whose room for what was seen may have grown.
    """
    jobs = state.jobs
    count, nodes = len(jobs), len(node_gpus)
    capacity = node_gpus.sum()
    cells = np.zeros((count, nodes), np.int64)
    order = np.argsort(jobs["submit_s"], kind="mergesort")
    active, room = np.zeros(count, np.bool_), np.empty(nodes, np.int64)
    arrived, now_s, longest = 0, 0.0, m.apps["epochs"].max()
    while True:
        running = np.flatnonzero(active)
        if now_s >= until_s or (arrived == count and len(running) == 0):
            return -1, state
        if len(running) == 0 and jobs[order[arrived]]["submit_s"] > now_s + tick_s:
            now_s = (np.ceil(jobs[order[arrived]]["submit_s"] / tick_s) - 1) * tick_s
        for at in range(len(running)):
            row: Any = running[at]
            if jobs[row]["seen"] + longest + 1 > state.seen.shape[1]:
                wider = np.empty((count, 2 * (state.seen.shape[1] + longest), 5))
                wider[:, : state.seen.shape[1]] = state.seen
                state = State(jobs, state.speed, wider, state.goodput)
            if not _advance(m, state, row, now_s, tick_s):
                return row, state
            active[row] = np.isnan(jobs[row]["end_s"])
        now_s += tick_s
        while arrived < count and jobs[order[arrived]]["submit_s"] <= now_s:
            active[order[arrived]] = True
            arrived += 1
        running = np.flatnonzero(active)
        if len(running) == 0:
            continue
        submits = jobs["submit_s"][running]
        running = running[np.argsort(submits, kind="mergesort")]
        running = running[np.argsort(jobs["gpu_seconds"][running], kind="mergesort")]
        total = len(running)
        most, factor = np.empty(total, np.int64), np.empty(total)
        before, after = np.empty((total, nodes), np.int64), np.empty((total, nodes), np.int64)
        gained = np.zeros((total, 2, MOST_GPUS + 1))
        for at in range(total):
            row = running[at]
            most[at] = min(most_gpus(m, state, row), capacity)
            speedups(m, state, row, most[at], -(-capacity // total), gained[at])
            age = now_s - jobs[row]["submit_s"]
            factor[at] = max(age - max(jobs[row]["restarts"], 0) * restart_s, 0.0) / (age + restart_s)
            before[at] = cells[row]
        allocate(before, gained, factor, most, node_gpus, nodes / capacity, after)
        for at in range(total):
            row = running[at]
            on, moved = 0, False
            for node in range(nodes):
                moved |= after[at, node] != before[at, node]
                if after[at, node] > 0:
                    room[on] = after[at, node]
                    on += 1
            if not moved:
                continue
            cells[row] = after[at]
            place(m, state, row, room, on, jobs[row]["epoch"])
            if on > 0:
                jobs[row]["restart_left_s"] = restart_s
                jobs[row]["restarts"] += 1
                if np.isnan(jobs[row]["start_s"]):
                    jobs[row]["start_s"] = now_s
