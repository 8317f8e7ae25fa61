"""NCCL timed inside one node: the `nccl_perf` tables of aiconfigurator-core, compacted once into a small cache file.

A table holds, per system, collective and number of GPUs, seconds over message bytes (256 B to 512 MiB). Its
`message_size` counts elements of the whole message by the nccl-tests convention (gathered output of an all-gather, full
input of a reduce-scatter), so 2 x it is bytes for `half`; the `int8` rows, where it is bytes, agree to 1 % (all-reduce:
10 % slower, int8 additions), which settles the unit.

What is kept: the newest NCCL release, `half`, the median of repeated rows, and of these the largest sequence that never
falls with size: a spike at one size (17 us between two of 7 us) is the machine's, not the collective's.

Without the package there are no tables: `load` gives an empty dict.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from windtunnel.physics.cost.measured.cache import cached_arrays, package_data, version_order

FORMAT_VERSION = 2
KIND_OF_OP = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


class Curve(NamedTuple):
    """Seconds over message bytes for one collective on one number of GPUs; both rise."""

    bytes_total: tuple[float, ...]
    seconds: tuple[float, ...]


Curves = dict[tuple[str, int], Curve]  # by (kind, number of GPUs)


@lru_cache(maxsize=32)
def load(system: str) -> Curves:
    """The curves of one aiconfigurator system name ("h100_sxm"); empty where there are none."""
    package = package_data()
    if package is None or not (folder := package[0] / system / "comm" / "nccl").is_dir():
        return {}
    arrays = cached_arrays(
        f"nccl-{system}-{package[1]}-f{FORMAT_VERSION}.npz",
        lambda: {f"{kind}/{n_gpus}": np.array([*curve]) for (kind, n_gpus), curve in compact(folder).items()},
    )
    curves: Curves = {}
    for name, (sizes, seconds) in arrays.items():
        kind, n_gpus = name.rsplit("/", 1)
        curves[kind, int(n_gpus)] = Curve(tuple(sizes.tolist()), tuple(seconds.tolist()))
    return curves


def compact(folder: Path) -> Curves:
    """Read `folder`/<NCCL version>/nccl_perf.parquet of the newest version that covers every collective."""
    import pyarrow.parquet as parquet

    best: Curves = {}
    for path in sorted(folder.glob("*/nccl_perf.parquet"), key=lambda path: version_order(path.parent.name)):
        names = ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"]
        columns = parquet.ParquetFile(path).read(columns=names).to_pydict()
        latencies: dict[tuple[str, int], dict[float, list[float]]] = {}
        for op, dtype, n_gpus, elements, latency_ms in zip(*(columns[name] for name in names), strict=True):
            if dtype == "half" and op in KIND_OF_OP and latency_ms > 0:
                sizes = latencies.setdefault((KIND_OF_OP[op], int(n_gpus)), {})
                sizes.setdefault(2.0 * float(elements), []).append(float(latency_ms) * 1e-3)
        curves = {key: _curve(sizes) for key, sizes in latencies.items()}
        if len(curves) >= len(best):
            best = curves
    return best


def _curve(times_by_bytes: dict[float, list[float]]) -> Curve:
    sizes = sorted(times_by_bytes)
    medians = np.array([float(np.median(times_by_bytes[size])) for size in sizes])
    rising = np.minimum.accumulate(medians[::-1])[::-1]
    return Curve(tuple(sizes), tuple(float(value) for value in rising))
