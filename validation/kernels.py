"""How well held-out kernels are predicted, per measured system: `python validation/kernels.py [SYSTEM ...]`.

GEMM: half of all (n, k) shapes, a checkerboard, are hidden with all their m; the grid is rebuilt from the other half.
Attention: half of all head counts are hidden, with every batch, sequence and KV-head count timed for them.
Then the halves swap. The prediction is held against single measurements and, for GEMM, against their median over
frameworks (the difference between the two is what the frameworks disagree about among themselves). Coverage is out of
sample: each half is judged by the p5-p95 that the errors of the other half give.

Only kernels longer than 20 us count, GEMMs of at least 256 in m, n and k: shorter ones do not matter to training.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from windtunnel.cost import compaction
from windtunnel.cost.compaction import Array
from windtunnel.cost.interpolation import quantile_pair
from windtunnel.cost.tables import BAND_EDGES_S, package_data

SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "l40s")


def coverage(errors: Array, log_time: Array, half: Array, sound: Array) -> float:
    """Share of one half's errors inside the band of the other half's sound ones, by size class."""
    inside = np.zeros(errors.shape, dtype=bool)
    size = np.digitize(log_time, np.log(BAND_EDGES_S))
    for part in (0, 1):
        for class_ in np.unique(size):
            low, high = quantile_pair(errors[(half == 1 - part) & (size == class_) & sound])
            here = (half == part) & (size == class_)
            inside[here] = (errors[here] >= min(low, 0.0)) & (errors[here] <= max(high, 0.0))
    return float(inside.mean())


def percent(errors: Array) -> float:
    return float(100.0 * np.abs(np.expm1(-errors)).mean())  # |predicted / measured - 1|


def gemm(system_folder: Path) -> None:
    for dtype, cubes, axes in compaction.gemm_cubes(system_folder):
        stack = np.stack(cubes)
        timed = ~np.isnan(stack).all(axis=0)
        middle = np.full(stack.shape[1:], np.nan)
        middle[timed] = np.nanmedian(stack[:, timed], axis=0)
        half = compaction.checkerboard(middle.shape[1:])
        estimate = np.full(middle.shape, np.nan)
        for part in (0, 1):
            found = compaction.gemm_without(middle, axes, half == part)
            estimate[:, half == part] = found[:, half == part]
        m, n, k = np.meshgrid(*axes, indexing="ij")
        large = np.minimum(np.minimum(m, n), k) >= np.log(compaction.SMALLEST_JUDGED) - 1e-9
        judged = timed & (middle > np.log(20e-6)) & large
        against_median = (middle - estimate)[judged]
        each = np.broadcast_to(judged, stack.shape) & ~np.isnan(stack)
        halves = np.broadcast_to(half, stack.shape)
        single = (stack - estimate)[each]
        sound = np.abs(stack - middle)[each] <= np.log(compaction.BROKEN)
        inside = coverage(single, np.broadcast_to(estimate, stack.shape)[each], halves[each], sound)
        print(
            f"  gemm {dtype:9s} {judged.sum():6d} shapes  error {percent(against_median):5.1f} % of the median,"
            f" {percent(single):5.1f} % of single measurements, bias {100 * np.expm1(-against_median).mean():+5.1f} %,"
            f" inside p5-p95 {100 * inside:4.1f} %"
        )


def attention(system_folder: Path) -> None:
    for dtype in compaction.ATTENTION_DTYPES:
        rows = compaction.attention_rows(system_folder, dtype, compaction._bandwidth(system_folder))
        if rows is None:
            continue
        rows = compaction.fastest_rows(rows)
        head_dims, lengths = np.unique(rows["head_dim"]), np.unique(rows["isl"])
        half = compaction.head_split(rows)
        estimate = np.zeros(half.shape)
        for part in (0, 1):
            kept = {name: values[half != part] for name, values in rows.items()}
            grid = compaction.attention_grid(kept, head_dims, lengths)
            estimate[half == part] = compaction.grid_at(grid, head_dims, lengths, rows)[half == part]
        judged = rows["log_time"] > np.log(20e-6)
        errors = (rows["log_time"] - estimate)[judged]
        inside = coverage(errors, estimate[judged], half[judged], np.ones(errors.shape, dtype=bool))
        main = judged & (rows["head_dim"] == 128)
        print(
            f"  attention {dtype:4s} {judged.sum():6d} shapes  error {percent(errors):5.1f} %"
            f" (head_dim 128: {percent((rows['log_time'] - estimate)[main]):4.1f} %),"
            f" bias {100 * np.expm1(-errors).mean():+5.1f} %, inside p5-p95 {100 * inside:4.1f} %"
        )


def main() -> None:
    found = package_data()
    if found is None:
        sys.exit("aiconfigurator-core is not installed: nothing to validate against")
    folder, version = found
    print(f"aiconfigurator-core {version}")
    for system in sys.argv[1:] or SYSTEMS:
        print(system)
        gemm(folder / system)
        attention(folder / system)


if __name__ == "__main__":
    main()
