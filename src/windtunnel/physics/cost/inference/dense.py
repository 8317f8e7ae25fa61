"""Matrix products as engines run them: in low precision with the quantisation of their activations.

The tables of low-precision GEMMs time *quantise, then multiply*, which is what serving pays in every layer; training's
prices (`cost.kernels`) take the first out. Here it stays in. As there: the median of three frameworks, filled and made
monotone (`cost.compaction`), kept in a small cache file per system.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from windtunnel.physics.cost.measured.cache import Arrays, cached_arrays, package_data
from windtunnel.physics.cost.measured.interpolation import Array, LogGrid, as_axis

FORMAT_VERSION = 2
DTYPES = ("fp8", "fp8_block", "nvfp4")


@lru_cache(maxsize=16)
def quantised_grids(system: str) -> dict[str, LogGrid]:
    """Per dtype: log seconds over log m, n, k; empty where there are no tables."""
    found = package_data()
    if found is None or not (found[0] / system / "gemm").is_dir():
        return {}
    name = f"serving-gemm-{system}-{found[1]}-f{FORMAT_VERSION}.npz"
    return _grids(cached_arrays(name, lambda: _compacted(found[0] / system)))


def gemm_s(grid: LogGrid, m: float, n: float, k: float) -> float:
    """Seconds of one product."""
    return math.exp(grid.read((math.log(m), math.log(n), math.log(k))).log_value)


def _grids(arrays: Arrays) -> dict[str, LogGrid]:
    names = bytes(arrays["dtypes"].astype(np.uint8)).decode().split()
    axes = tuple(as_axis(arrays[f"axis{place}"]) for place in range(3))
    return {name: LogGrid(axes, arrays[name].astype(np.float32), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)) for name in names}


def _compacted(folder: Path) -> Arrays:
    from windtunnel.physics.cost.measured import compaction

    per_framework, axes = compaction.timed_gemms(folder)
    arrays: Arrays = {f"axis{place}": logs for place, logs in enumerate(compaction.logs_of(axes))}
    names = []
    for dtype in DTYPES:
        cubes: list[Array] = [
            np.log(compaction.cube_of(*times[dtype], axes)) for times in per_framework if dtype in times
        ]
        if not cubes:
            continue
        arrays[dtype] = compaction.median_grid(cubes, compaction.logs_of(axes)).astype(np.float32)
        names.append(dtype)
    arrays["dtypes"] = np.frombuffer(" ".join(names).encode(), dtype=np.uint8)
    return arrays
