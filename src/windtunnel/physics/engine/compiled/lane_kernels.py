"""The compiled loops that carry many samples of one graph through a single pass. See `engine/samples.py`.

The end of an op is a row of one float per sample ("lane"). A row lives in one of two places, told by its code:

    code >= 0    row `code` of scratch: read only in the section that wrote it, then used again by another op
    code == -1   nowhere: no op waits for it, it only counts for the makespan
    code <= -2   row -2 - code of what its unit keeps: also read in later sections
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, int64, types, uint8, uint16

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array


def _constant(scalar: types.Type, ndim: int = 1) -> types.Array:
    return types.Array(scalar, ndim, "C", readonly=True)


_U8, _U16, _I32, _I64, _F64_2D, _F32_2D, _F32_3D = (
    _constant(uint8),
    _constant(uint16),
    _constant(int32),
    _constant(int64),
    _constant(float64, 2),
    _constant(float32, 2),
    _constant(float32, 3),
)


@njit(int64[::1](_I64, _I32, _I64, _I32, _I32, _U8), cache=True, nogil=True)
def sections(order: Array, previous: Array, dep_ptr: Array, dep_idx: Array, rendezvous: Array, across: Array) -> Array:
    """int64[n]: section of each op. Odd ones hold ops that meet across units, each behind all that those wait for.

    An op is in section 2 d + (1 if it meets across units), d being the longest chain of such meetings before it.
    `order`: topological, members of a rendezvous side by side.
    """
    n = len(order)
    section = np.zeros(n, np.int64)
    at = 0
    while at < n:
        last = at + 1
        group = rendezvous[order[at]]
        while group >= 0 and last < n and rendezvous[order[last]] == group:
            last += 1
        deepest, meets = 0, 0
        for member in range(at, last):
            op = order[member]
            meets = max(meets, across[op])
            if previous[op] >= 0:
                deepest = max(deepest, (section[previous[op]] + 1) // 2)
            for k in range(dep_ptr[op], dep_ptr[op + 1]):
                deepest = max(deepest, (section[dep_idx[k]] + 1) // 2)
        for member in range(at, last):
            section[order[member]] = 2 * deepest + meets
        at = last
    return section


@njit(int64[::1](_I64, _I64, _I64, _I32, int32[::1]), cache=True, nogil=True)
def assign_rows(last_use: Array, reader: Array, input_ptr: Array, inputs: Array, code: Array) -> Array:
    """Give every op's end a place; fill `code`, return how many rows scratch has and how many each unit keeps.

    By position in the order of running. `last_use`: position of the last reader, -1 without one. `reader`: 0 if all
    readers share the op's even section, else 1. `inputs`: positions of what each position reads.
    """
    n = len(last_use)
    free = np.empty(n, np.int32)
    n_free, scratch, per_unit = 0, 0, 0
    for at in range(n):
        if last_use[at] < 0:
            code[at] = -1
        elif reader[at] == 1:
            code[at] = -2 - per_unit
            per_unit += 1
        elif n_free > 0:
            n_free -= 1
            code[at] = free[n_free]
        else:
            code[at] = scratch
            scratch += 1
        # Freed after this op has its own row: a rendezvous reads all inputs before it writes, but not member by member.
        for k in range(input_ptr[at], input_ptr[at + 1]):
            before = inputs[k]
            if last_use[before] == at and code[before] >= 0:
                # An op may read the same end twice; it is freed once.
                seen = False
                for j in range(input_ptr[at], k):
                    seen = seen or inputs[j] == before
                if not seen:
                    free[n_free] = code[before]
                    n_free += 1
    return np.array([scratch, per_unit], np.int64)


@njit(
    types.void(
        int64, int64, int64, int64, _I64, _I64, _I32, _I32, _I64, _I32,
        _F64_2D, _I64, _F32_3D, _F32_3D, float64[:, :, ::1], float64[:, ::1], float64[::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def run_units(
    first: int,
    last: int,
    unit: int,
    units: int,
    op_at: Array,
    input_ptr: Array,
    inputs: Array,
    code: Array,
    group_end: Array,
    row: Array,
    duration: Array,
    class_of: Array,
    factor: Array,
    extra: Array,
    unit_rows: Array,
    scratch: Array,
    finish: Array,
) -> None:
    """Run positions `first` to `last` of an even section for `units` units from `unit` on.

    `inputs`: codes of the rows that each position reads. `row[position]`: its row in `factor` and `extra`
    [units, rows, lanes], or -1; either may be empty. `duration[class, op]`. `finish[lane]`: the latest end.
    """
    lanes = len(finish)
    ready = np.empty(lanes, np.float64)
    scaled, added = len(factor) > 0, len(extra) > 0
    for u in range(unit, unit + units):
        own = unit_rows[u]
        at = first
        while at < last:
            until = group_end[at]
            has_input = False
            for k in range(input_ptr[at], input_ptr[until]):
                c = inputs[k]
                source = scratch[c] if c >= 0 else own[-2 - c]
                if has_input:
                    for lane in range(lanes):
                        ready[lane] = source[lane] if source[lane] > ready[lane] else ready[lane]
                else:
                    for lane in range(lanes):
                        ready[lane] = source[lane]
                    has_input = True
            if not has_input:
                for lane in range(lanes):
                    ready[lane] = 0.0
            for member in range(at, until):
                takes = duration[class_of[u], op_at[member]]
                c, r = code[member], row[member]
                # What nobody waits for is worked out where it was ready, if nothing else needs that.
                target = scratch[c] if c >= 0 else own[-2 - c] if c < -1 else scratch[len(scratch) - 1]
                if r >= 0 and scaled:
                    by = factor[u - unit, r]
                    for lane in range(lanes):
                        target[lane] = ready[lane] + takes * by[lane]
                else:
                    for lane in range(lanes):
                        target[lane] = ready[lane] + takes
                if r >= 0 and added:
                    more = extra[u - unit, r]
                    for lane in range(lanes):
                        target[lane] += more[lane]
                if c == -1:
                    for lane in range(lanes):
                        finish[lane] = target[lane] if target[lane] > finish[lane] else finish[lane]
            at = until


@njit(
    types.void(
        int64, int64, _I64, _I64, _I32, _I32, _I64, _F64_2D, _I64, float64[:, :, ::1], float64[::1]
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def meet_units(
    first: int,
    last: int,
    op_at: Array,
    input_ptr: Array,
    inputs: Array,
    code: Array,
    group_end: Array,
    duration: Array,
    class_of: Array,
    unit_rows: Array,
    finish: Array,
) -> None:
    """Run positions `first` to `last` of an odd section: each group starts when its last member of any unit may."""
    lanes, units = len(finish), len(unit_rows)
    ready = np.empty(lanes, np.float64)
    at = first
    while at < last:
        until = group_end[at]
        ready[:] = 0.0
        for u in range(units):
            for k in range(input_ptr[at], input_ptr[until]):
                source = unit_rows[u, -2 - inputs[k]]
                for lane in range(lanes):
                    ready[lane] = source[lane] if source[lane] > ready[lane] else ready[lane]
        for u in range(units):
            for member in range(at, until):
                takes, c = duration[class_of[u], op_at[member]], code[member]
                if c < -1:
                    target = unit_rows[u, -2 - c]
                    for lane in range(lanes):
                        target[lane] = ready[lane] + takes
                else:
                    for lane in range(lanes):
                        finish[lane] = max(finish[lane], ready[lane] + takes)
        at = until


@njit(types.void(_U16, _F32_2D, int64, _I64, float32[:, :, ::1]), cache=True, nogil=True)
def look_up(random_bits: Array, tables: Array, shift: int, table_of: Array, out: Array) -> None:
    """Fill `out[unit, op, lane]` with the entry of the op's table that the next 16 random bits choose.

    `tables[table, 2 ** (16 - shift)]`: quantiles, all equally likely. `table_of[op]`: -1 for a factor of 1.
    """
    at = 0
    for unit in range(out.shape[0]):
        for op in range(out.shape[1]):
            row = out[unit, op]
            if table_of[op] < 0:
                row[:] = 1.0
            else:
                table = tables[table_of[op]]
                for lane in range(len(row)):
                    row[lane] = table[random_bits[at + lane] >> shift]
                at += len(row)
