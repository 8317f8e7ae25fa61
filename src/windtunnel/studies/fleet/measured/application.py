"""How fast an application trains on a placement, and how much a step is worth: measured tables of AdaptDL's artifact.

Step time: where the placement was measured, linear in the local batch between its measurements; else linear over the
Delaunay triangulation of (nodes, replicas, local batch), of placements averaged by counts and of the scalability runs.
A step of a batch B on n replicas: local = ceil(B / n), s = ceil(local / largest local) - 1 accumulations, atomic batch
ceil(local / (s + 1)); iteration = step + s (step - sync). Statistical gain over the initial batch B0 = B / scale:
(var + sqr) / (var / scale + sqr), gradient statistics linear in the batch between measured ones.
Source: petuum/adaptdl, branch osdi21-artifact, simulator/applications.py and simulator.py (Apache-2.0), as rules.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError, UserError

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

Array = NDArray[np.float64]
Columns = Mapping[str, Sequence[str]]
Placement = tuple[int, ...]  # GPUs on each node
MOST_NODES = 16  # of the scalability runs; more nodes are read as this many
ROUNDING = 1e-8  # under which a ceiling ignores the rest

# What the tables cannot say: epochs to finish, and the largest local batch of yolov3. adaptdl, applications.py.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LARGEST_LOCAL = {"yolov3": 8}
ONE_GPU = ("ncf",)  # never given more than one GPU by policies that choose
OWN_BATCH = {"ncf": 32768}  # kept by Pollux, which chooses the batch of the others


@dataclass(frozen=True)
class Validation:
    """One training run at a fixed batch, by epoch. Each array has one entry per epoch."""

    progress: Array  # samples of the initial batch after the epoch
    iteration: Array
    grad_sqr: Array
    grad_var: Array


@dataclass(frozen=True)
class Application:
    """One application's tables. Hashes by identity, since its tables are large."""

    name: str
    placements: Mapping[Placement, Array]  # rows (local batch, step s, sync s), by local batch
    points: Array  # (n, 3): nodes, replicas, local batch
    values: Array  # (n, 2): step s, sync s
    validation: Mapping[int, Validation]  # by batch size, ascending
    epochs: int
    smallest_local: int
    largest_local: int
    _times: dict[tuple[Placement, int], tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    _cache: dict[object, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def initial_batch(self) -> int:
        """The batch that progress is counted in."""
        return min(self.validation)

    @property
    def largest_batch(self) -> int:
        """The largest batch that was run."""
        return max(self.validation)

    def step_times_s(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """(step, synchronisation in it) in seconds for `local_batch` samples per GPU.

        Raises UserError where the tables do not reach.
        """
        rotated = smallest_rotation(placement)
        key = (rotated, local_batch)
        if key not in self._times:
            rows = self.placements.get(rotated)
            pair = self._between(rotated, local_batch) if rows is None else _linear(rows, local_batch)
            if pair is None or math.isnan(pair[0]):
                raise UserError(
                    f"{self.name} on {'+'.join(map(str, rotated))} GPUs with {local_batch} samples each is outside the"
                    " measured tables: ask for another batch or number of GPUs, or give tables that reach it"
                )
            self._times[key] = pair
        return self._times[key]

    def _between(self, placement: Placement, local_batch: int) -> tuple[float, float] | None:
        if self.surface is None:
            return None
        step, sync = self.surface([min(len(placement), MOST_NODES), sum(placement), local_batch])[0]
        return float(step), float(sync)

    @cached_property
    def surface(self) -> LinearNDInterpolator | None:
        """Scipy's interpolation of placements that were not measured; None where too few were to interpolate."""
        spread = len(self.points) > 0 and np.linalg.matrix_rank(self.points - self.points[0]) == 3
        return _interpolator()(self.points, self.values) if spread else None

    @cached_property
    def _ends(self) -> list[float]:
        return [min(ends) for ends in zip(*(run.progress.tolist() for run in self.validation.values()), strict=False)]

    def epoch_end(self, epoch: int) -> float:
        """Progress at which epoch number `epoch` (0, 1, ...) ends: the least over all measured batches."""
        return self._ends[epoch]

    def iterations_until(self, batch: int, epoch: int) -> float:
        """Iterations of size `batch` in all epochs up to and with `epoch`."""
        low, high = self._bracket(batch)
        return _mix(batch, low, high, *(float(self.validation[at].iteration[epoch]) for at in (low, high)))

    def gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        """(squared norm, variance) of the gradient in an epoch at this batch."""
        low, high = self._bracket(batch)
        runs = (self.validation[low], self.validation[high])
        sqr = _mix(batch, low, high, *(float(run.grad_sqr[epoch]) for run in runs))
        var = _mix(batch, low, high, *(float(run.grad_var[epoch]) for run in runs))
        return sqr, var

    def _bracket(self, batch: int) -> tuple[int, int]:
        sizes = list(self.validation)
        if not sizes[0] <= batch <= sizes[-1]:
            remedy = f"ask for one from {sizes[0]} to {sizes[-1]}"
            raise UserError(f"{self.name} was not measured at a batch of {batch}: {remedy}")
        return max(size for size in sizes if size <= batch), min(size for size in sizes if size >= batch)

    def fixed_batch(self, batch: int, replicas: int, *, accumulate_alone: bool) -> tuple[int, int]:
        """(atomic batch, accumulations) with which `replicas` run a batch of `batch`.

        `accumulate_alone`: one replica accumulates at least once, for its gradient statistics need two parts.
        """
        local = math.ceil(batch / replicas - ROUNDING)
        accumulations = math.ceil(local / self.largest_local - ROUNDING) - 1
        if replicas == 1 and accumulate_alone:
            accumulations = max(1, accumulations)
        atomic = math.ceil(local / (accumulations + 1) - ROUNDING)
        return min(atomic, self.largest_batch // (replicas * (accumulations + 1))), accumulations

    def goodput(self, placement: Placement, atomic: int, accumulations: int, epoch: int) -> float:
        """Progress per second: statistical gain over the time of an iteration."""
        key = ("goodput", placement, atomic, accumulations, epoch)
        if key not in self._cache:
            step, sync = self.step_times_s(placement, atomic)
            batch = sum(placement) * atomic * (accumulations + 1)
            sqr, var = self.gradient(batch, epoch)
            gain = (var + sqr) / (var / (batch / self.initial_batch) + sqr)
            self._cache[key] = gain / (step + (step - sync) * accumulations)
        return self._cache[key]


def smallest_rotation(placement: Placement) -> Placement:
    """The lexicographically smallest rotation, by which measured placements are named."""
    return min(placement[at:] + placement[:at] for at in range(len(placement)))


def _interpolator() -> type[LinearNDInterpolator]:
    """Scipy's class. Its BLAS gets one thread, if this loads it: several spin for seconds over matrices of 3 by 3."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        from scipy import interpolate
    except ImportError:
        raise UserError(
            "placements that were not measured are interpolated with scipy: pip install 'windtunnel[fleet]'"
        ) from None
    finally:
        if before is None:
            del os.environ[name]
    interpolator: type[LinearNDInterpolator] = interpolate.LinearNDInterpolator
    return interpolator


def _linear(rows: Array, local_batch: int) -> tuple[float, float] | None:
    batches = rows[:, 0]
    if not batches[0] <= local_batch <= batches[-1]:
        return None
    at = min(max(int(np.searchsorted(batches, local_batch)), 1), len(batches) - 1)
    (x0, *y0), (x1, *y1) = rows[at - 1].tolist(), rows[at].tolist()
    if x0 == x1:  # measured at one batch only
        return y1[0], y1[1]
    step, sync = ((high - low) / (x1 - x0) * (local_batch - x0) + low for low, high in zip(y0, y1, strict=True))
    return step, sync


def _mix(batch: int, low: int, high: int, at_low: float, at_high: float) -> float:
    if low == high:
        return at_low
    return ((batch - low) * at_high + (high - batch) * at_low) / (high - low)


def applications_of(
    placements: Columns, scalability: Columns, validation: Columns, where: str
) -> dict[str, Application]:
    """Applications from three column tables (name -> list of strings), as `tables.read_columns` gives them.

    Raises InputFileError where an application is in one table and not in the others.
    """
    applications: dict[str, Application] = {}
    for name in dict.fromkeys(placements["application"]):
        rows: dict[Placement, list[tuple[float, float, float]]] = {}
        for app, digits, *numbers in zip(
            *(placements[key] for key in ("application", "placement", "local_batch", "step_s", "sync_s")), strict=True
        ):
            if app == name:
                local, step, sync = map(float, numbers)
                rows.setdefault(tuple(map(int, digits)), []).append((local, step, sync))
        runs = _validation_of(name, validation)
        if not runs:
            raise InputFileError(where, f"has no validation run of {name}", "give the three tables of one artifact")
        points, values = _points(name, rows, scalability)
        locals_ = [local for triples in rows.values() for local, _, _ in triples]
        applications[name] = Application(
            name=name,
            placements={key: np.array(sorted(triples)) for key, triples in rows.items()},
            points=points,
            values=values,
            validation=runs,
            epochs=EPOCHS.get(name, min(len(run.progress) for run in runs.values())),
            smallest_local=int(min(locals_)),
            largest_local=LARGEST_LOCAL.get(name, int(max(locals_))),
        )
    return applications


def _points(
    name: str, rows: Mapping[Placement, list[tuple[float, float, float]]], scalability: Columns
) -> tuple[Array, Array]:
    grouped: dict[tuple[float, float, float], list[tuple[float, float]]] = {}
    for placement, triples in rows.items():
        for local, step, sync in triples:
            grouped.setdefault((len(placement), sum(placement), local), []).append((step, sync))
    points = sorted(grouped)
    values = [tuple(np.mean(grouped[key], axis=0)) for key in points]
    for app, *numbers in zip(
        *(scalability[key] for key in ("application", "nodes", "replicas", "local_batch", "step_s", "sync_s")),
        strict=True,
    ):
        if app == name:
            nodes, replicas, local, step, sync = map(float, numbers)
            points.append((nodes, replicas, local))
            values.append((step, sync))
    return np.array(points, dtype=float), np.array(values, dtype=float)


def _validation_of(name: str, table: Columns) -> dict[int, Validation]:
    wanted = ("progress", "iteration", "grad_sqr", "grad_var")
    rows: dict[int, list[tuple[int, list[float]]]] = {}
    for app, batch, epoch, *numbers in zip(
        *(table[key] for key in ("application", "batch_size", "epoch", *wanted)), strict=True
    ):
        if app == name:
            rows.setdefault(int(batch), []).append((int(epoch), [float(number) for number in numbers]))
    runs = {}
    for batch in sorted(rows):
        columns = np.array([numbers for _, numbers in sorted(rows[batch])])
        runs[batch] = Validation(**{key: columns[:, at] for at, key in enumerate(wanted)})
    return runs
