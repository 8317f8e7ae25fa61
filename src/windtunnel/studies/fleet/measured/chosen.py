"""Jobs whose batch the scheduler's model chooses, and which learn that model while they run.

Measured applications and jobs are laid out flat for `engine/compiled/fleet/adaptdl_kernels.py`, which holds the rules.
The model of goodput, samples per second times how much a sample is worth:

    T_iter = s T_g + (T_g^c + T_s^c)^(1/c)      T_g = a_c + b_c m     (m samples per GPU, s accumulations, 1 <= c <= 10)
    T_s = 0 on one GPU, a_r + b_r (n - 2) inside a node, a_n + b_n (n - 2) across nodes
    efficiency = (phi + B0) / (phi + B),  phi = B0 var / sqr         goodput = B / T_iter x efficiency

Seven parameters, fitted to all steps seen by least root-mean-square error of log T_g and log T_iter plus
1e-3 (c - 1)^2 + 1e-2 ((b_n / a_n)^2 + (b_r / a_r)^2). What has not been seen stays at its floor: unseen scale looks
free. Source: A. Qiao et al., "Pollux", OSDI 2021; adaptdl, simulator/goodput.py (Apache-2.0), as rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import UserError
from windtunnel.physics.engine.compiled.fleet import adaptdl_kernels as kernels
from windtunnel.physics.engine.compiled.fleet.goodput_kernels import SIZES, splits
from windtunnel.physics.engine.compiled.fleet.simplex_kernels import Surfaces
from windtunnel.studies.fleet.measured.application import ONE_GPU, OWN_BATCH, Application, Placement

Array = NDArray[np.float64]
ROOM = 32  # configurations that a job may have seen before its room grows


def measured_of(applications: Iterable[Application]) -> kernels.Measured:
    """Tables of several applications, laid out flat, in their order."""
    apps = list(applications)
    records = np.zeros(len(apps), kernels.APPLICATION)
    ends: list[float] = []
    sizes: list[int] = []
    statistics: list[Array] = []
    keys: list[int] = []
    rows: list[Array] = []
    for record, app in zip(records, apps, strict=True):
        limits = app.initial_batch, app.largest_batch, app.smallest_local, app.largest_local
        for name, value in zip(("initial", "largest", "smallest_local", "largest_local"), limits, strict=True):
            record[name] = value
        record["own_batch"], record["one_gpu"] = OWN_BATCH.get(app.name, 0), app.name in ONE_GPU
        record["epochs"], record["longest"] = app.epochs, max(len(run.progress) for run in app.validation.values())
        record["ends"], record["sizes"], record["statistics"] = len(ends), len(sizes), sum(map(len, statistics))
        ends += [app.epoch_end(epoch) for epoch in range(app.epochs)]
        for size, run in app.validation.items():
            sizes.append(size)
            block = np.full((int(record["longest"]), 2), np.nan)
            block[: len(run.progress)] = np.stack([run.grad_sqr, run.grad_var], axis=1)
            statistics.append(block)
        record["keys"] = len(keys)
        by_key = {_key(placement): table for placement, table in app.placements.items()}
        for key in sorted(by_key.keys() - {0}):
            keys.append(key)
            rows.append(by_key[key])
        record["sizes_end"], record["keys_end"] = len(sizes), len(keys)
    choices = np.zeros((len(apps), kernels.MOST_GPUS + 1, SIZES, 3))
    counts = np.zeros((len(apps), kernels.MOST_GPUS + 1), np.int64)
    measured = kernels.Measured(
        records,
        np.array(ends),
        np.array(sizes, np.int64),
        np.concatenate(statistics),
        np.array(keys, np.uint64),
        np.cumsum([0, *map(len, rows)]),
        np.concatenate([np.zeros((0, 3)), *rows]),
        _surfaces(apps),
        choices,
        counts,
        np.full(kernels.KEPT, -1, np.int64),
        np.empty((kernels.KEPT, 2)),
    )
    for which in range(len(apps)):
        limits_ = kernels.limits_of(measured, which)
        for gpus in range(1, kernels.MOST_GPUS + 1):
            counts[which, gpus] = splits(limits_, gpus, choices[which, gpus])
    return measured


def _surfaces(apps: Sequence[Application]) -> Surfaces:
    """Their triangulations, where there are points enough for one."""
    parts = [(np.zeros((0, 4, 3)), np.zeros((0, 5)), np.zeros((0, 4), np.int64), np.zeros((0, 4, 2)))]
    lifts, begins = np.zeros((len(apps), 2)), [0]
    for which, app in enumerate(apps):
        surface = app.surface
        begins.append(begins[-1])
        if surface is not None:
            tri = surface.tri
            lifts[which] = tri.paraboloid_scale, tri.paraboloid_shift
            near = np.where(tri.neighbors < 0, -1, tri.neighbors + begins[-1])
            parts.append((tri.transform, tri.equations, near, app.values[tri.simplices]))
            begins[-1] += len(near)
    transforms, planes, neighbours, values = map(np.concatenate, zip(*parts, strict=True))
    return Surfaces(transforms, planes, neighbours, values, lifts, np.array(begins))


def _key(placement: Placement) -> int:
    return int(kernels.key_of(np.array(placement), len(placement)))


def state_of(which: Sequence[int], submit_s: object) -> kernels.State:
    """Jobs before anything has happened; `which`: their applications' places in the flat tables."""
    jobs = np.zeros(len(which), kernels.JOB)
    jobs["app"], jobs["submit_s"] = which, submit_s
    jobs["start_s"] = jobs["end_s"] = math.nan
    jobs["restarts"] = -1
    room = np.empty((len(which), ROOM, 5))
    return kernels.State(jobs, np.zeros((len(which), 7)), room, np.zeros((len(which), 2, kernels.MOST_GPUS + 1)))


class ChosenBatch:
    """A job whose batch is chosen. One of the few objects here that change: what it has seen only grows."""

    def __init__(self, app: Application, measured: kernels.Measured, which: int) -> None:
        self.app = app
        self.which = which
        self.measured = measured
        self.state = state_of([which], 0.0)

    @property
    def most_gpus(self) -> int:
        """At most twice as many as were ever tried."""
        return int(kernels.most_gpus(self.measured, self.state, 0))

    def rate(self, placement: Placement, epoch: int) -> float:
        """Progress per second at the batch that is best by what is known; what it shows is learned at once.

        Raises UserError where the tables do not reach.
        """
        kernels.place(self.measured, self.state, 0, np.array(placement, np.int64), len(placement), epoch)
        seen = self.state.seen
        if self.state.jobs[0]["seen"] == seen.shape[1]:
            self.state = self.state._replace(seen=np.concatenate([seen, np.empty_like(seen)], axis=1))
        rate = float(kernels.rate(self.measured, self.state, 0))
        if math.isnan(rate):
            raise outside(self.app, self.state.jobs[0])
        return rate

    def speedups(self, most: int, reference: int) -> Array:
        """[on several nodes, GPUs]: goodput on 0 to `most` GPUs over that on `reference` GPUs of one node."""
        out = np.empty((2, most + 1))
        kernels.speedups(self.measured, self.state, 0, most, reference, out)
        return out


def outside(app: Application, job: np.void) -> UserError:
    """What to say of a job that runs where its application was not measured."""
    batch = int(job["gpus"] * job["atomic"] * (job["accumulations"] + 1))
    if not app.initial_batch <= batch <= app.largest_batch:
        return UserError(
            f"{app.name} was not measured at a batch of {batch}:"
            f" ask for one from {app.initial_batch} to {app.largest_batch}"
        )
    return UserError(
        f"{app.name} on {job['gpus']} GPUs of {job['nodes']} nodes with {job['atomic']} samples each is outside the"
        " measured tables: ask for another number of GPUs, or give tables that reach it"
    )
