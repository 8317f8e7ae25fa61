"""Compiled model of a job of AdaptDL's tables whose batch is chosen for it.

Flat arrays of `fleet/measured/chosen.py`: a record for each application and job, and beside them what
hangs on their number. The rules are those of `fleet/measured/application.py`, `clock.py` and
`fleet/policies/elastic/pollux.py`. Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.fleet.goodput_kernels import ROUNDING, SIZES, best, fit, splits
from windtunnel.physics.engine.compiled.fleet.simplex_kernels import Surfaces, interpolate

MOST_GPUS = 64  # of one job, as published
MOST_NODES = 16  # of the scalability runs; more nodes are read as this many
PLACES = 16  # nodes and GPUs on each of a measured placement: four bits each in its key
KEPT = 4096  # interpolated times that are kept
APPLICATION = np.dtype(
    [(name, np.float64) for name in ("initial", "largest", "smallest_local", "largest_local", "own_batch")]
    + [(name, np.int64) for name in ("epochs", "one_gpu", "longest")]
    + [(name, np.int64) for name in ("ends", "sizes", "sizes_end", "statistics", "keys", "keys_end")]
)
JOB = np.dtype(
    [(name, np.float64) for name in ("submit_s", "progress", "restart_left_s", "gpu_seconds", "start_s", "end_s")]
    + [(name, np.float64) for name in ("rate", "sqr", "var")]
    + [(name, np.int64) for name in ("app", "epoch", "nodes", "gpus", "restarts", "atomic", "accumulations")]
    + [(name, np.int64) for name in ("tried", "seen", "fitted", "chosen", "rated", "tabled")]
    + [("key", np.uint64)]
)


class Measured(NamedTuple):
    """Tables of all applications, one after the other; where each begins stands in its record."""

    apps: Array  # APPLICATION
    ends: Array  # progress by epoch
    sizes: Array  # batches of validation runs
    statistics: Array  # f64[n, 2]: squared norm, variance; `longest` epochs of each batch
    keys: Array  # u64: measured placements, ascending
    rows_from: Array  # i64[n + 1]: of each placement
    rows: Array  # f64[n, 3]: local batch, step s, synchronisation s
    surfaces: Surfaces  # step s and synchronisation s by nodes, GPUs and local batch
    splits: Array  # f64[apps, GPUs, SIZES, 3]
    split_counts: Array  # i64[apps, GPUs]
    kept_keys: Array  # i64[KEPT]
    kept: Array  # f64[KEPT, 2]


class State(NamedTuple):
    """The state of all jobs."""

    jobs: Array  # JOB
    speed: Array  # f64[jobs, 7]: fitted
    seen: Array  # f64[jobs, n, 5]: as `fit` takes them
    goodput: Array  # f64[jobs, 2, GPUs]: by whether on several nodes, up to `tabled` GPUs


@njit(cache=True)
def key_of(counts: Array, on: int) -> np.uint64:
    """A placement by its lexicographically smallest rotation; 0 where none of its kind is in tables."""
    if on == 0 or on > PLACES or counts[:on].max() >= PLACES:
        return np.uint64(0)
    least = np.uint64(0)
    for begin in range(on):
        key = np.uint64(0)
        for at in range(on):
            key = (key << np.uint64(4)) | np.uint64(counts[(begin + at) % on])
        if begin == 0 or key < least:
            least = key
    return least


@njit(cache=True)
def step_times(m: Measured, which: int, key: np.uint64, on: int, gpus: int, local: int) -> tuple[float, float]:
    """(step, synchronisation in it) in seconds; not a number where the tables do not reach."""
    app = m.apps[which]
    low, high = app["keys"], app["keys_end"]
    end = high
    while low < high:
        middle = (low + high) // 2
        if m.keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < end and m.keys[low] == key:
        first, last = m.rows_from[low], m.rows_from[low + 1] - 1
        if not m.rows[first, 0] <= local <= m.rows[last, 0]:
            return np.nan, np.nan
        at = first
        while at < last - 1 and m.rows[at + 1, 0] < local:
            at += 1
        if first == last:
            return m.rows[at, 1], m.rows[at, 2]
        along = (local - m.rows[at, 0]) / (m.rows[at + 1, 0] - m.rows[at, 0])
        step = m.rows[at, 1] + along * (m.rows[at + 1, 1] - m.rows[at, 1])
        return step, m.rows[at, 2] + along * (m.rows[at + 1, 2] - m.rows[at, 2])
    nodes = min(on, MOST_NODES)
    name = ((which * (MOST_NODES + 1) + nodes) * (1 << 20) + gpus) * (1 << 20) + local
    slot = (name * 0x9E3779B1) % KEPT
    if m.kept_keys[slot] != name:
        m.kept_keys[slot] = name
        interpolate(m.surfaces, which, np.array([float(nodes), float(gpus), float(local)]), m.kept[slot])
    return m.kept[slot, 0], m.kept[slot, 1]


@njit(cache=True)
def _gradient(m: Measured, which: int, batch: int, epoch: int) -> tuple[float, float]:
    """(squared norm, variance) of the gradient; not a number outside the batches that were run."""
    app = m.apps[which]
    low = high = -1
    for at in range(app["sizes"], app["sizes_end"]):
        if m.sizes[at] <= batch:
            low = at
        if high < 0 and m.sizes[at] >= batch:
            high = at
    if low < 0 or high < 0:
        return np.nan, np.nan
    first = app["statistics"] + epoch
    lower, width = m.statistics[first + (low - app["sizes"]) * app["longest"]], 0.0
    if low == high:
        return lower[0], lower[1]
    upper = m.statistics[first + (high - app["sizes"]) * app["longest"]]
    width = m.sizes[high] - m.sizes[low]
    share, rest = batch - m.sizes[low], m.sizes[high] - batch
    return (share * upper[0] + rest * lower[0]) / width, (share * upper[1] + rest * lower[1]) / width


@njit(cache=True)
def most_gpus(m: Measured, state: State, row: int) -> int:
    """At most twice as many as were ever tried."""
    job = state.jobs[row]
    app = m.apps[job["app"]]
    if app["one_gpu"]:
        return 1
    most_tried: int = job["tried"]
    return min(max(2 * most_tried, 1), MOST_GPUS, int(app["largest"] // app["smallest_local"]))


@njit(cache=True)
def choose(m: Measured, state: State, row: int) -> None:
    """Choose the batch for the placement held, by what is known."""
    job = state.jobs[row]
    if job["chosen"]:
        return
    job["chosen"] = 1
    app = m.apps[job["app"]]
    gpus = job["gpus"]
    fixed = app["own_batch"]
    if fixed == 0 and not job["fitted"]:
        fixed = max(app["initial"], app["smallest_local"] * gpus)
    if fixed == 0:
        _, samples, times = _best(m, state, row, job["nodes"] > 1, gpus, 0)
    else:
        local = np.ceil(fixed / gpus - ROUNDING)
        times = np.ceil(local / app["largest_local"] - ROUNDING) - 1
        if gpus == 1 and fixed > app["initial"]:
            times = max(1.0, times)
        samples = np.ceil(local / (times + 1) - ROUNDING)
    samples = min(samples, app["largest"] // (gpus * (times + 1)))
    if samples != job["atomic"] or times != job["accumulations"]:
        job["atomic"], job["accumulations"], job["rated"] = int(samples), int(times), 0


@njit(cache=True)
def _best(m: Measured, state: State, row: int, across: bool, gpus: int, first: int) -> tuple[float, float, float]:
    job = state.jobs[row]
    which = job["app"]
    initial = m.apps[which]["initial"]
    speed = state.speed[row]
    if gpus <= MOST_GPUS:
        rows = m.splits[which, gpus, : m.split_counts[which, gpus]]
    else:
        room = np.empty((SIZES, 3))
        rows = room[: splits(limits_of(m, which), gpus, room)]
    goodput, at = best(speed, job["sqr"], job["var"], initial, across, gpus, rows, first)
    return goodput, rows[at, 0], rows[at, 1]


@njit(cache=True)
def limits_of(m: Measured, which: int) -> Array:
    """A job's limits, as `splits` takes them."""
    app = m.apps[which]
    return np.array([app["initial"], app["largest"], app["smallest_local"], app["largest_local"]])


@njit(cache=True)
def rate(m: Measured, state: State, row: int) -> float:
    """Progress per second, from which the job learns at once; not a number where the tables do not reach."""
    job = state.jobs[row]
    known_rate: float = job["rate"]
    if job["rated"]:
        return known_rate
    which, gpus, atomic, times = job["app"], job["gpus"], job["atomic"], job["accumulations"]
    batch = gpus * atomic * (times + 1)
    sqr, var = _gradient(m, which, batch, job["epoch"])
    step, sync = step_times(m, which, job["key"], job["nodes"], gpus, atomic)
    if np.isnan(sqr) or np.isnan(step):
        return np.nan
    if sqr != job["sqr"] or var != job["var"]:
        job["sqr"], job["var"], job["chosen"], job["tabled"] = sqr, var, 0, 0
    count = job["seen"]
    seen = state.seen[row]
    is_seen = False
    for at in range(count):
        is_seen |= seen[at, 0] == job["nodes"] and seen[at, 1] == gpus and seen[at, 2] == atomic
    if not is_seen:
        seen[count, 0], seen[count, 1], seen[count, 2], seen[count, 3], seen[count, 4] = (
            job["nodes"],
            gpus,
            atomic,
            step,
            sync,
        )
        fit(seen[: count + 1], state.speed[row], job["fitted"] > 0)
        job["seen"], job["fitted"], job["chosen"], job["tabled"] = count + 1, 1, 0, 0
        job["tried"] = max(job["tried"], gpus)
    gain = (var + sqr) / (var / (batch / m.apps[which]["initial"]) + sqr)
    rated: float = gain / (step + (step - sync) * times)
    job["rate"], job["rated"] = rated, 1
    return rated


@njit(cache=True)
def place(m: Measured, state: State, row: int, counts: Array, on: int, epoch: int) -> None:
    """A job begins an epoch on GPUs by node, `counts[:on]`, and chooses its batch."""
    job = state.jobs[row]
    gpus, key = counts[:on].sum(), key_of(counts, on)
    if (on > 1) != (job["nodes"] > 1) or gpus != job["gpus"]:
        job["chosen"] = 0
    if on != job["nodes"] or gpus != job["gpus"] or key != job["key"] or epoch != job["epoch"]:
        job["rated"] = 0
    job["nodes"], job["gpus"], job["key"], job["epoch"] = on, gpus, key, epoch
    if on:
        choose(m, state, row)


@njit(cache=True)
def speedups(m: Measured, state: State, row: int, most: int, reference: int, out: Array) -> None:
    """Into f64[2, most + 1]: goodput on 0 to `most` GPUs of one node and of several, over that on `reference`."""
    job = state.jobs[row]
    if not job["fitted"]:
        for gpus in range(most + 1):
            out[:, gpus] = gpus / reference
        return
    table = state.goodput[row]
    for across in range(2):
        first = 0
        for gpus in range(max(job["tabled"] + 1, 1 + across), most + 1):
            which = job["app"]
            rows = m.splits[which, gpus, : m.split_counts[which, gpus]]
            initial = m.apps[which]["initial"]
            speed = state.speed[row]
            table[across, gpus], first = best(speed, job["sqr"], job["var"], initial, across > 0, gpus, rows, first)
    job["tabled"] = max(job["tabled"], most)
    alone = table[0, reference] if reference <= most else _best(m, state, row, False, reference, 0)[0]
    out[:, 0] = out[1, 1] = 0.0
    for gpus in range(1, most + 1):
        out[0, gpus] = table[0, gpus] / alone
        if gpus > 1:
            out[1, gpus] = table[1, gpus] / alone
