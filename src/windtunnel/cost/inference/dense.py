"""Matrix products as engines run them: in low precision with the quantisation of their activations.

The tables of low-precision GEMMs time *quantise, then multiply*, which is what serving pays in every layer; training's
prices (`cost.kernels`) take the first out. Here it stays in. As there: the median of three frameworks, filled and made
monotone (`cost.compaction`), kept in a small cache file per system.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.inference.measured import FRAMEWORKS, paths
from windtunnel.cost.measured.interpolation import Array, LogGrid, as_axis
from windtunnel.cost.measured.tables import cache_folders, package_data, read_arrays, write_arrays

FORMAT_VERSION = 2
DTYPES = ("fp8", "fp8_block", "nvfp4")


@lru_cache(maxsize=16)
def quantised_grids(system: str) -> dict[str, LogGrid]:
    """Per dtype: log seconds over log m, n, k; empty where there are no tables."""
    found = package_data()
    if found is None or not (found[0] / system / "gemm").is_dir():
        return {}
    name = f"serving-gemm-{system}-{found[1]}-f{FORMAT_VERSION}.npz"
    for folder in cache_folders():
        stored = read_arrays(folder / name)
        if stored is not None and "dtypes" in stored:
            return _grids(stored)
    arrays = _compacted(system)
    for folder in cache_folders():
        if write_arrays(folder / name, arrays):
            break
    return _grids(arrays)


def gemm_s(grid: LogGrid, m: float, n: float, k: float) -> float:
    """Seconds of one product."""
    return math.exp(grid.read((math.log(m), math.log(n), math.log(k))).log_value)


def _grids(arrays: dict[str, NDArray[np.generic]]) -> dict[str, LogGrid]:
    names = bytes(arrays["dtypes"].astype(np.uint8)).decode().split()
    axes = tuple(as_axis(arrays[f"axis{place}"]) for place in range(3))
    return {name: LogGrid(axes, arrays[name].astype(np.float32), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)) for name in names}


def _compacted(system: str) -> dict[str, NDArray[np.generic]]:
    from windtunnel.cost.measured import compaction

    files = [
        path for one in FRAMEWORKS for framework, path in paths(system, "gemm", "gemm_perf", one) if framework == one
    ]
    per_framework = [compaction.gemm_of(path) for path in files]
    shapes = [shape for times in per_framework for shape, _ in times.values()]
    m, n, k = (compaction.common_sizes(np.concatenate([shape[:, i] for shape in shapes]), i) for i in range(3))
    axes = (m, n, k)
    arrays: dict[str, NDArray[np.generic]] = {f"axis{i}": np.log(axis) for i, axis in enumerate(axes)}
    names = []
    for dtype in DTYPES:
        cubes: list[Array] = [
            np.log(compaction.cube_of(*times[dtype], axes)) for times in per_framework if dtype in times
        ]
        if not cubes:
            continue
        arrays[dtype] = compaction.median_grid(cubes, (np.log(m), np.log(n), np.log(k))).astype(np.float32)
        names.append(dtype)
    arrays["dtypes"] = np.frombuffer(" ".join(names).encode(), dtype=np.uint8)
    return arrays
