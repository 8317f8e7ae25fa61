"""How well held-out kernels and collectives are predicted, per system: `python validation/kernels.py [SYSTEM ...]`.

GEMM: half of all (n, k) shapes, a checkerboard, are hidden with all their m; the grid is rebuilt from the other half.
Attention: half of all head counts are hidden, with every batch, sequence and KV-head count timed for them.
Then the halves swap. The prediction is held against single measurements and against their median: over frameworks for
GEMM, over the splits of a size into batch, heads and KV heads for attention (the difference between the two is what
frameworks, or splits, differ by among themselves). Coverage is out of
sample: each half is judged by the band that the errors of the other half give (`interpolation.quantile_pair`).

NCCL: every other message size is hidden, for all collectives and numbers of GPUs; then the other half. What is judged
is the message sizes between the smallest and the largest left, and the band is the product's own, as it stands.

Only kernels longer than 20 us count, GEMMs of at least 256 in m, n and k: shorter ones do not matter to training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from windtunnel.cost import compaction, nccl, nccl_tables
from windtunnel.cost.collectives import SMALL_BYTES, between_band, on_curve
from windtunnel.cost.compaction import Array
from windtunnel.cost.interpolation import quantile_pair
from windtunnel.cost.tables import BAND_EDGES_S, package_data

SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "l40s")


class Judged(NamedTuple):
    """Errors of held-out kernels: log(measured / estimate), log of the estimate, and which half each was in."""

    errors: Array
    log_time: Array
    half: Array

    @property
    def size(self) -> Array:
        return np.digitize(self.log_time, np.log(BAND_EDGES_S))


def coverage(judged: Judged, band: Judged, sound: Array) -> float:
    """Share of one half's errors inside the band that the other half's sound ones give, by size class."""
    inside = np.zeros(judged.errors.shape, dtype=bool)
    for part in (0, 1):
        for class_ in np.unique(judged.size):
            low, high = quantile_pair(band.errors[(band.half == 1 - part) & (band.size == class_) & sound])
            here = (judged.half == part) & (judged.size == class_)
            inside[here] = (judged.errors[here] >= min(low, 0.0)) & (judged.errors[here] <= max(high, 0.0))
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
        halves, single = np.broadcast_to(half, stack.shape), (stack - estimate)[each]
        sound = np.abs(stack - middle)[each] <= np.log(compaction.BROKEN)
        singles = Judged(single, np.broadcast_to(estimate, stack.shape)[each], halves[each])
        medians = Judged(against_median, estimate[judged], np.broadcast_to(half, middle.shape)[judged])
        inside, of_median = coverage(singles, singles, sound), coverage(medians, singles, sound)
        print(
            f"  gemm {dtype:9s} {judged.sum():6d} shapes  error {percent(against_median):5.1f} % of the median,"
            f" {percent(single):5.1f} % of single measurements, bias {100 * np.expm1(-against_median).mean():+5.1f} %,"
            f" inside the band {100 * inside:4.1f} % of single, {100 * of_median:4.1f} % of medians"
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
        held = Judged(errors, estimate[judged], half[judged])
        inside = coverage(held, held, np.ones(errors.shape, dtype=bool))
        middle = median_of_splits(rows, half)
        main = judged & (rows["head_dim"] == 128)
        print(
            f"  attention {dtype:4s} {judged.sum():6d} shapes  "
            f"error {percent((middle - estimate)[judged]):5.1f} % of the median,"
            f" {percent(errors):5.1f} % of single measurements"
            f" (head_dim 128: {percent((rows['log_time'] - estimate)[main]):4.1f} %),"
            f" bias {100 * np.expm1(-errors).mean():+5.1f} %, inside the band {100 * inside:4.1f} %"
        )


def median_of_splits(rows: dict[str, Array], half: Array) -> Array:
    """Each row's median over how its size splits into batch, heads and KV heads, within its half."""
    key = np.stack([rows["head_dim"], rows["isl"], rows["token_heads"], half], axis=1)
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.ravel()
    return np.array([np.median(rows["log_time"][group == each]) for each in range(int(group.max()) + 1)])[group]


def collectives(system: str) -> None:
    bands = nccl.calibration()["bands"]["table"]
    errors, inside = [], []
    for curve in nccl_tables.load(system).values():
        for part in (0, 1):
            kept = nccl_tables.Curve(curve.bytes_total[part::2], curve.seconds[part::2])
            for size, seconds in zip(curve.bytes_total[1 - part :: 2], curve.seconds[1 - part :: 2], strict=True):
                if kept.bytes_total[0] < size < kept.bytes_total[-1]:
                    estimate = on_curve(kept, 0.0, size)[0]
                    low, high = np.log(bands["small" if size < SMALL_BYTES else "large"])
                    extra, error = between_band(kept, size), np.log(seconds / estimate)
                    errors.append((error, size, seconds))
                    inside.append(-np.hypot(low, extra) <= error <= np.hypot(high, extra))
    if not errors:
        return
    log_error, sizes, seconds = np.array(errors).T
    long, large, held = seconds > 20e-6, sizes >= SMALL_BYTES, np.array(inside)
    print(
        f"  nccl           {len(errors):6d} sizes   error {percent(log_error):5.1f} %"
        f" (above 20 us: {percent(log_error[long]):4.1f} %; 1 MiB and more: {percent(log_error[large]):4.1f} %),"
        f" inside the stated band {100 * np.mean(inside):4.1f} % (above 20 us: {100 * held[long].mean():4.1f} %)"
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
        collectives(system)


if __name__ == "__main__":
    main()
