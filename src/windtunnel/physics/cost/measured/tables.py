"""Measured kernels of one system: grids of GEMMs and of attention, as `compaction` makes them, from the cache.

Without the package that has the measurements, or for a system it does not know, there are none, and the roofline
serves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from windtunnel.physics.cost.measured.cache import Arrays, cached_arrays, package_data
from windtunnel.physics.cost.measured.interpolation import LogGrid

FORMAT_VERSION = 4


@dataclass(frozen=True, eq=False)
class Table:
    """One grid of measured times and how far single measurements lie from it."""

    grid: LogGrid
    measured: frozenset[tuple[int, ...]]  # exact shapes in the table where the grid's nodes do not say it
    node_band: tuple[tuple[float, float], ...]  # p4, p96 of log(measured / grid) on a node, by BAND_EDGES_S
    between_band: tuple[tuple[float, float], ...]  # the same for shapes that were held out: half way between nodes


@dataclass(frozen=True, eq=False)
class KernelTables:
    """All measured kernels of one system.

    Axes of a GEMM: log m, n, k; of attention: log of head_dim, sequence, and sequence x batch x heads.
    """

    gemm: dict[str, Table]  # by dtype: bf16, fp8, fp8_block, nvfp4
    attention: dict[str, Table]  # by dtype: bf16, fp8


@lru_cache(maxsize=16)
def load_tables(system: str) -> KernelTables | None:
    """The tables of `system` ("h100_sxm"): from the cache, else built from the package, else None."""
    package = package_data()
    if package is None or not (package[0] / system / "gemm").is_dir():
        return None
    data, version = package

    def build() -> Arrays:
        # It loads pyarrow: only when there is something to build.
        from windtunnel.physics.cost.measured.compaction import compact

        return compact(data / system)

    return _tables(cached_arrays(f"kernels-{system}-{version}-f{FORMAT_VERSION}.npz", build))


def _tables(arrays: Arrays) -> KernelTables:
    """Named arrays to tables. `index` holds what is not an array, as JSON bytes."""
    index = json.loads(bytes(arrays["index"].astype(np.uint8)))
    kinds: dict[str, dict[str, Table]] = {"gemm": {}, "attention": {}}
    for name, entry in index.items():
        kind, dtype = name.split("/")
        log_time = arrays[f"{name}/log_time"].astype(np.float32)
        axes = tuple(tuple(axis) for axis in entry["axes"])
        grid = LogGrid(axes, log_time, tuple(entry["slopes_above"]), tuple(entry["slopes_below"]))
        bands = np.asarray(entry["bands"], dtype=np.float64)
        shapes = arrays[f"{name}/measured"].tolist()
        kinds[kind][dtype] = Table(
            grid=grid,
            measured=frozenset(tuple(shape) for shape in shapes),
            node_band=tuple((float(low), float(high)) for low, high in bands[0]),
            between_band=tuple((float(low), float(high)) for low, high in bands[1]),
        )
    return KernelTables(kinds["gemm"], kinds["attention"])
