"""Many samples of one step in one pass: every op's duration is a vector, one entry ("lane") per sample.

The structure of a graph does not depend on its durations, so its ops are put in order once and each op is then worked
out for all lanes together: the cost of a sample is a few additions and maxima per op.

A job is many *units* (replicas) that run the same graph and meet in some of its ops. The graph is stored once, with
durations per class of units. Sections of the order alternate between what every unit does by itself, unit after unit,
and where all meet, so that only the ends which a later section reads are kept per unit; the others share a few rows
that stay in the cache.

Noise comes from `Source`s, called per block of lanes. Several `Variant`s of a job can run on the same draws, so that
what one of them changes is not drowned by chance (common random numbers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError
from windtunnel.physics.engine.replay import replay
from windtunnel.physics.graph.program import Graph

LANES = (64, 32, 16, 8)  # of one block; fewer where a graph is large
BLOCK_BYTES = 512 << 20  # that a block may take before its lanes are halved
MOST_BYTES = 8 << 30  # that a block of the fewest lanes may take
DRAWN_BYTES = 2 << 20  # of factors at a time: they stay in the cache until they are used
THREADS_MOST = 8

# (first unit, unit after the last, ops) -> float32[units, ops, lanes]. Called once per op and unit, in fixed order.
Draw: TypeAlias = Callable[[int, int, NDArray[np.int64]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Source:
    """Something that makes the samples differ. `start(first_sample, lanes)` begins a block of samples.

    What it draws for a block may depend on nothing else, so that sample i is the same however many are asked for.
    """

    start: Callable[[int, int], Draw]
    adds: bool = False  # draws nanoseconds to add, not factors of the duration


@dataclass(frozen=True, eq=False)
class Variant:
    """One form of the job: what its ops take, and what makes its samples differ."""

    duration_ns: NDArray[np.int64]  # [classes, ops]
    class_of: NDArray[np.int64]  # [units]
    sources: tuple[Source, ...]


@dataclass(frozen=True, eq=False)
class Course:
    """A graph in the order in which lanes run it. Arrays are by position in that order."""

    op_at: NDArray[np.int64]
    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int32]  # codes of rows, see `lane_kernels`
    code: NDArray[np.int32]
    group_end: NDArray[np.int64]  # position behind the rendezvous that begins here
    row: NDArray[np.int32]  # among the varying ops of its section, or -1
    cuts: tuple[tuple[int, int, bool], ...]  # first position, position behind the last, whether units meet
    scratch: int
    kept: int


def sample_steps(
    graph: Graph,
    across: NDArray[np.bool_],
    varying: NDArray[np.bool_],
    variants: Sequence[Variant],
    samples: int,
) -> NDArray[np.int64]:
    """int64[variants, samples]: makespans.

    Args:
        graph: Of one unit.
        across: bool[ops], ops that start only when every unit's may.
        varying: bool[ops], ops that sources draw for; none of `across`.
        variants: Of the job; all have as many units. They share what their common sources draw.
        samples: How many. Sample i does not depend on this.
    Raises LayoutError: even a few samples at a time would not fit into memory.
    """
    course = course_of(graph, across, varying)
    lanes, workers = _lanes(course, variants, samples)
    steps = np.empty((len(variants), samples), np.int64)
    durations = [np.ascontiguousarray(variant.duration_ns, np.float64) for variant in variants]
    # The kernels are compiled or loaded here, not by several threads at once.
    from windtunnel.physics.engine.compiled import lane_kernels  # noqa: F401

    def block(first: int) -> None:
        count = min(lanes, samples - first)
        steps[:, first : first + count] = _block(course, variants, durations, first, lanes)[:, :count]

    blocks = range(0, samples, lanes)
    if workers == 1:
        for first in blocks:
            block(first)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(block, blocks))
    return steps


def sample_makespans(
    graph: Graph, duration_ns: NDArray[np.int64], noisy: NDArray[np.bool_], sigma: float, samples: int, seed: int
) -> NDArray[np.int64]:
    """int64[samples]: the makespan when each op in `noisy` (bool[n]) takes its duration times a lognormal factor.

    `sigma`: relative standard deviation of the factor, whose mean is 1. The same seed gives the same samples.
    """
    alone = Variant(duration_ns[None, :], np.zeros(1, np.int64), (lognormal(sigma, (seed,)),))
    makespans: NDArray[np.int64] = sample_steps(graph, np.zeros(graph.n_ops, bool), noisy, [alone], samples)[0]
    return makespans


def lognormal(sigma: float, key: tuple[int, ...], table_of: NDArray[np.int64] | None = None) -> Source:
    """Independent factors of mean 1 and relative standard deviation `sigma`; `key` seeds them.

    `table_of`: int64[ops], 0 where a factor is drawn, -1 where it stays 1; None = drawn everywhere.
    """
    return from_tables(_lognormal_table(sigma)[None, :], table_of, key)


def from_tables(tables: NDArray[np.float32], table_of: NDArray[np.int64] | None, key: tuple[int, ...]) -> Source:
    """Independent factors, each an entry of its op's table: float32[tables, 2^k], k <= 16, all equally likely.

    `table_of`: int64[ops], -1 where the factor stays 1; None = the first table for all.
    """
    from windtunnel.physics.engine.compiled import lane_kernels

    shift = 17 - int(tables.shape[1]).bit_length()
    assert tables.shape[1] << shift == 1 << 16, "a table holds a power of two, at most 65,536"

    def start(first_sample: int, lanes: int) -> Draw:
        # Sixteen bits and a table: several times as fast as normals and their exponentials, which would cost more than
        # the replay.
        bits = np.random.SFC64((*key, first_sample))

        def draw(low: int, high: int, ops: NDArray[np.int64]) -> NDArray[np.float32]:
            which = np.zeros(len(ops), np.int64) if table_of is None else np.ascontiguousarray(table_of[ops])
            numbers = (high - low) * int((which >= 0).sum()) * lanes
            assert which.max(initial=-1) < len(tables)
            out = np.empty((high - low, len(ops), lanes), np.float32)
            random_bits = bits.random_raw(-(-numbers // 4)).view(np.uint16)
            lane_kernels.look_up(random_bits, tables, shift, which, out)
            return out

        return draw

    return Source(start)


@lru_cache(maxsize=8)
def _lognormal_table(sigma: float) -> NDArray[np.float32]:
    """float32[65536]: the mean of each of so many equally likely parts of the lognormal distribution of mean 1."""
    spread = np.sqrt(np.log1p(sigma * sigma))
    z = np.linspace(-8.0, 8.0, 16001)
    density = np.exp(-z * z / 2.0)
    below = _integral(density)
    upto = _integral(density * np.exp(spread * z - spread * spread / 2.0))
    edges = np.interp(np.linspace(0.0, 1.0, 2**16 + 1), below / below[-1], z)
    # Both integrals are linear between the points of the grid, and so their ratio is a mean of grid values.
    parts = np.diff(np.interp(edges, z, upto)) / np.diff(np.interp(edges, z, below))
    table: NDArray[np.float32] = (parts / parts.mean()).astype(np.float32)
    table.setflags(write=False)
    return table


def _integral(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum((values[1:] + values[:-1]) / 2.0)])


def topological_order(graph: Graph) -> NDArray[np.int64]:
    """Ops such that each comes after all that it waits for, and members of a rendezvous are neighbours."""
    # When every op takes one unit, an op starts strictly after what it waits for, and a rendezvous starts as one.
    steps = replay(graph, np.ones(graph.n_ops, np.int64)).start_ns
    return np.lexsort((np.arange(graph.n_ops), graph.rendezvous, steps)).astype(np.int64)


def course_of(graph: Graph, across: NDArray[np.bool_], varying: NDArray[np.bool_]) -> Course:
    """Sections, rows and inputs of every op. `across`, `varying`: bool[ops], see `sample_steps`."""
    from windtunnel.physics.engine.compiled import lane_kernels

    assert not (across & varying).any(), "what all units meet in takes the same for all of them"
    n, order, previous = graph.n_ops, topological_order(graph), graph.previous
    section = lane_kernels.sections(
        order, previous, graph.dep_ptr, graph.dep_idx, graph.rendezvous, across.astype(np.uint8)
    )
    op_at = order[np.argsort(section[order], kind="stable")]
    place = np.empty(n, np.int64)
    place[op_at] = np.arange(n)
    # What each op reads: the op before on its stream, and its dependencies.
    waiter = np.concatenate([np.flatnonzero(previous >= 0), np.repeat(np.arange(n), np.diff(graph.dep_ptr))])
    needed = np.concatenate([previous[previous >= 0], graph.dep_idx]).astype(np.int64)
    waiter, needed = place[waiter], place[needed]
    by = np.argsort(waiter, kind="stable")
    waiter, needed = waiter[by], needed[by]
    input_ptr = np.searchsorted(waiter, np.arange(n + 1)).astype(np.int64)
    meets = graph.rendezvous[op_at]
    begins = np.ones(n + 1, bool)
    begins[1:n] = (meets[1:] != meets[:-1]) | (meets[1:] < 0)
    starts = np.flatnonzero(begins)
    group_end = starts[np.searchsorted(starts, np.arange(n), side="right")]
    # Members read side by side: a row is free when the last member of the last group that reads it is done.
    last_use = np.full(n, -1, np.int64)
    np.maximum.at(last_use, needed, waiter)
    at = section[op_at]
    foreign = np.zeros(n, np.int64)
    np.maximum.at(foreign, needed, ((at[waiter] != at[needed]) | (at[needed] % 2 == 1)).astype(np.int64))
    code = np.empty(n, np.int32)
    rows_needed = lane_kernels.assign_rows(last_use, foreign, input_ptr, needed.astype(np.int32), code)
    scratch, per_unit = int(rows_needed[0]), int(rows_needed[1])
    bounds = np.flatnonzero(np.r_[True, at[1:] != at[:-1], True]) if n else np.zeros(1, np.int64)
    cuts = tuple((int(a), int(b), bool(at[a] % 2)) for a, b in pairwise(bounds))
    row = np.full(n, -1, np.int32)
    for first, last, _ in cuts:
        rows = first + np.flatnonzero(varying[op_at[first:last]])
        row[rows] = np.arange(len(rows), dtype=np.int32)
    # One more row of scratch, for the ends that nobody waits for.
    return Course(op_at, input_ptr, code[needed], code, group_end, row, cuts, scratch + 1, per_unit)


def _block(
    course: Course, variants: Sequence[Variant], durations: list[NDArray[np.float64]], first: int, lanes: int
) -> NDArray[np.int64]:
    """int64[variants, lanes]: the samples from `first` on."""
    from windtunnel.physics.engine.compiled import lane_kernels

    units = len(variants[0].class_of)
    draws = {source: source.start(first, lanes) for variant in variants for source in variant.sources}
    unit_rows = [np.empty((units, course.kept, lanes)) for _ in variants]
    scratch = np.empty((course.scratch, lanes))
    finish = np.zeros((len(variants), lanes))
    for begin, end, meet in course.cuts:
        if meet:
            for number, variant in enumerate(variants):
                lane_kernels.meet_units(
                    begin, end, course.op_at, course.input_ptr, course.inputs, course.code, course.group_end,
                    durations[number], variant.class_of, unit_rows[number], finish[number],
                )  # fmt: skip
            continue
        ops = course.op_at[begin:end][course.row[begin:end] >= 0]
        batch = max(1, DRAWN_BYTES // max(1, 4 * len(ops) * lanes))
        for low in range(0, units, batch):
            high = min(units, low + batch)
            numbers = {source: draw(low, high, ops) for source, draw in draws.items()} if len(ops) else {}
            together: dict[tuple[Source, ...], tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
            for number, variant in enumerate(variants):
                if variant.sources not in together:
                    together[variant.sources] = _combined(variant.sources, numbers, lanes)
                factor, extra = together[variant.sources]
                lane_kernels.run_units(
                    begin, end, low, high - low, course.op_at, course.input_ptr, course.inputs, course.code,
                    course.group_end, course.row, durations[number], variant.class_of, factor, extra, unit_rows[number],
                    scratch, finish[number],
                )  # fmt: skip
    return np.rint(finish).astype(np.int64)


def _combined(
    sources: tuple[Source, ...], numbers: dict[Source, NDArray[np.float32]], lanes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Product of the factors and sum of what is added; empty where there is none."""
    none = np.empty((0, 0, lanes), np.float32)
    factor, extra = none, none
    for source in sources:
        if source in numbers:
            if source.adds:
                extra = extra + numbers[source] if len(extra) else numbers[source]
            else:
                factor = factor * numbers[source] if len(factor) else numbers[source]
    return factor, extra


def _lanes(course: Course, variants: Sequence[Variant], samples: int) -> tuple[int, int]:
    """Lanes of a block and how many blocks to work on at once."""
    units = len(variants[0].class_of)
    sources = len({source for variant in variants for source in variant.sources})
    rows = max((int((course.row[a:b] >= 0).sum()) for a, b, _ in course.cuts), default=0)
    draw_bytes = max(DRAWN_BYTES // LANES[0], 4 * rows) * (sources + len(variants))
    per_lane = 8 * (len(variants) * units * course.kept + course.scratch) + draw_bytes
    lanes = next((count for count in LANES if count * per_lane <= BLOCK_BYTES), LANES[-1])
    if lanes * per_lane > MOST_BYTES:
        raise LayoutError(
            f"{lanes} samples at a time would take {lanes * per_lane / 2**30:,.0f} GiB",
            "sample fewer disturbances at once, or a job of fewer replicas",
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fits = max(1, MOST_BYTES // max(1, lanes * per_lane))
    return lanes, int(min(cores, THREADS_MOST, fits, -(-samples // lanes)))
