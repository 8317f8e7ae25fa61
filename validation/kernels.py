"""How well held-out kernels and collectives are predicted, per system: `python validation/kernels.py [SYSTEM ...]`.

GEMM: half of all (n, k) shapes, a checkerboard, are hidden with all their m; the grid is rebuilt from the other half.
Attention: half of all head counts are hidden, with every batch, sequence and KV-head count timed for them.
Then the halves swap. The prediction is held against every single measurement, whoever made it, and against their
median: over frameworks for GEMM, over the splits of a size into batch, heads and KV heads for attention (the difference
between the two is what frameworks, or splits, differ by among themselves). Coverage is out of sample: each half is
judged by the band that the errors of the other half give (`interpolation.quantile_pair`).

NCCL: every other message size is hidden, for all collectives and numbers of GPUs; then the other half. What is judged
is the message sizes between the smallest and the largest left, and the band is the product's own, as it stands.

Only kernels longer than 20 us count, GEMMs of at least 256 in m, n and k: shorter ones do not matter to training. A
width is the geometric mean of p95 over p5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from windtunnel.physics.cost.communication import nccl, nccl_tables
from windtunnel.physics.cost.communication.collectives import SMALL_BYTES, between_band, on_curve
from windtunnel.physics.cost.measured import compaction
from windtunnel.physics.cost.measured.cache import package_data
from windtunnel.physics.cost.measured.compaction import Array
from windtunnel.physics.cost.measured.interpolation import BAND_EDGES_S, quantile_pair

SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "l40s")
SHORTEST_S = 20e-6


class Figures(NamedTuple):
    """One group of a system's measurements, held out: shares, not per cent."""

    group: str  # "gemm bf16"
    count: int
    error: float  # mean, of the median where several measured the same
    single: float  # mean, of single measurements
    bias: float
    inside: float  # single measurements inside the band
    median_inside: float
    width: float  # of the band


class Judged(NamedTuple):
    """Errors of held-out kernels: log(measured / estimate), log of the estimate, and which half each was in."""

    errors: Array
    log_time: Array
    half: Array

    @property
    def size(self) -> Array:
        return np.digitize(self.log_time, np.log(BAND_EDGES_S))


def coverage(judged: Judged, band: Judged) -> tuple[float, float]:
    """Share of one half's errors inside the band that the other half's give, by size class; and the band's width."""
    inside, width = np.zeros(judged.errors.shape, dtype=bool), np.zeros(judged.errors.shape)
    for part in (0, 1):
        for class_ in np.unique(judged.size):
            low, high = quantile_pair(band.errors[(band.half == 1 - part) & (band.size == class_)])
            low, high = min(low, 0.0), max(high, 0.0)
            here = (judged.half == part) & (judged.size == class_)
            inside[here] = (judged.errors[here] >= low) & (judged.errors[here] <= high)
            width[here] = high - low
    return float(inside.mean()), float(np.exp(width.mean()))


def off(errors: Array) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.abs(np.expm1(-errors)).mean())


def gemm(system_folder: Path) -> Iterator[Figures]:
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
        judged = timed & (middle > np.log(SHORTEST_S)) & large
        against_median = (middle - estimate)[judged]
        each = np.broadcast_to(judged, stack.shape) & ~np.isnan(stack)
        halves, single = np.broadcast_to(half, stack.shape), (stack - estimate)[each]
        singles = Judged(single, np.broadcast_to(estimate, stack.shape)[each], halves[each])
        medians = Judged(against_median, estimate[judged], np.broadcast_to(half, middle.shape)[judged])
        inside, width = coverage(singles, singles)
        bias = float(np.expm1(-against_median).mean())
        yield Figures(
            f"gemm {dtype}",
            int(judged.sum()),
            off(against_median),
            off(single),
            bias,
            inside,
            coverage(medians, singles)[0],
            width,
        )


def attention(system_folder: Path) -> Iterator[Figures]:
    for dtype in compaction.ATTENTION_DTYPES:
        rows = compaction.attention_rows(system_folder, dtype, compaction.bandwidth_of(system_folder))
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
        judged = rows["log_time"] > np.log(SHORTEST_S)
        errors = (rows["log_time"] - estimate)[judged]
        held = Judged(errors, estimate[judged], half[judged])
        of_median = (median_of_splits(rows, half) - estimate)[judged]
        medians = Judged(of_median, estimate[judged], half[judged])
        inside, width = coverage(held, held)
        yield Figures(
            f"attention {dtype}",
            int(judged.sum()),
            off(of_median),
            off(errors),
            float(np.expm1(-errors).mean()),
            inside,
            coverage(medians, held)[0],
            width,
        )


def median_of_splits(rows: dict[str, Array], half: Array) -> Array:
    """Each row's median over how its size splits into batch, heads and KV heads, within its half."""
    key = np.stack([rows["head_dim"], rows["isl"], rows["token_heads"], half], axis=1)
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.ravel()
    return np.array([np.median(rows["log_time"][group == each]) for each in range(int(group.max()) + 1)])[group]


def collectives(system: str) -> Iterator[Figures]:
    bands = nccl.calibration()["bands"]["table"]
    errors, inside, widths = [], [], []
    for curve in nccl_tables.load(system).values():
        for part in (0, 1):
            kept = nccl_tables.Curve(curve.bytes_total[part::2], curve.seconds[part::2])
            for size, seconds in zip(curve.bytes_total[1 - part :: 2], curve.seconds[1 - part :: 2], strict=True):
                if kept.bytes_total[0] < size < kept.bytes_total[-1] and seconds > SHORTEST_S:
                    estimate = on_curve(kept, 0.0, size)[0]
                    low, high = np.log(bands["small" if size < SMALL_BYTES else "large"])
                    extra, error = between_band(kept, size), np.log(seconds / estimate)
                    errors.append(error)
                    inside.append(-np.hypot(low, extra) <= error <= np.hypot(high, extra))
                    widths.append(np.hypot(low, extra) + np.hypot(high, extra))
    if errors:
        found, share = np.array(errors), float(np.mean(inside))
        width, bias = float(np.exp(np.mean(widths))), float(np.expm1(-found).mean())
        yield Figures("nccl", len(errors), off(found), off(found), bias, share, share, width)


def held_out(system: str) -> list[Figures]:
    """All groups of one system; empty where the package of measurements is not installed."""
    found = package_data()
    if found is None:
        return []
    return [*gemm(found[0] / system), *attention(found[0] / system), *collectives(system)]


def main() -> None:
    found = package_data()
    if found is None:
        sys.exit("aiconfigurator-core is not installed: nothing to validate against")
    print(f"aiconfigurator-core {found[1]}")
    print(f"{'':25s} {'count':>6s}  error  single    bias  inside  medians  width")
    for system in sys.argv[1:] or SYSTEMS:
        for one in held_out(system):
            print(
                f"{system:9s} {one.group:15s} {one.count:6d} {one.error:6.1%} {one.single:7.1%} {one.bias:+7.1%}"
                f" {one.inside:7.1%} {one.median_inside:8.1%} {one.width:6.2f}"
            )


if __name__ == "__main__":
    main()
