"""NCCL timed inside one node: the `nccl_perf` tables of aiconfigurator-core, compacted once into a small cache file.

A table holds, per system, collective and number of GPUs, seconds over message bytes (256 B to 512 MiB). Its
`message_size` counts elements of the whole message by the nccl-tests convention (gathered output of an all-gather, full
input of a reduce-scatter), so 2 x it is bytes for `half`; the `int8` rows, where it is bytes, agree to 1 % (all-reduce:
10 % slower, int8 additions), which settles the unit.

What is kept: the newest NCCL release, `half`, the median of repeated rows, and of these the largest sequence that never
falls with size: a spike at one size (17 us between two of 7 us) is the machine's, not the collective's.

Cache: `$XDG_CACHE_HOME/windtunnel/nccl-<system>-<package version>-<format>.npz`, written beside and renamed, rebuilt
when it cannot be read. Without aiconfigurator-core (it has Linux x86-64 wheels only) there are no tables: `load` gives
an empty dict.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

import numpy as np

FORMAT = 1
PACKAGE = "aiconfigurator-core"
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
    folder = _tables_folder(system)
    if folder is None:
        return {}
    cached = cache_folder() / f"nccl-{system}-{metadata.version(PACKAGE)}-{FORMAT}.npz"
    curves = _read_cache(cached)
    if curves is None:
        curves = compact(folder)
        # a cache that cannot be written (read-only home) costs time, not correctness
        with contextlib.suppress(OSError):
            _write_cache(cached, curves)
    return curves


def cache_folder() -> Path:
    """Where compacted tables live: `$XDG_CACHE_HOME/windtunnel`, by default `~/.cache/windtunnel`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "windtunnel"


def compact(folder: Path) -> Curves:
    """Read `folder`/<NCCL version>/nccl_perf.parquet of the newest version that covers every collective."""
    import pyarrow.parquet as parquet

    best: Curves = {}
    for path in sorted(folder.glob("*/nccl_perf.parquet"), key=lambda path: _release(path.parent.name)):
        names = ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"]
        columns = parquet.read_table(path, columns=names).to_pydict()
        found: dict[tuple[str, int], dict[float, list[float]]] = {}
        for op, dtype, n_gpus, elements, latency_ms in zip(*(columns[name] for name in names), strict=True):
            if dtype == "half" and op in KIND_OF_OP and latency_ms > 0:
                sizes = found.setdefault((KIND_OF_OP[op], int(n_gpus)), {})
                sizes.setdefault(2.0 * float(elements), []).append(float(latency_ms) * 1e-3)
        curves = {key: _curve(sizes) for key, sizes in found.items()}
        if len(curves) >= len(best):
            best = curves
    return best


def _curve(times_by_bytes: dict[float, list[float]]) -> Curve:
    sizes = sorted(times_by_bytes)
    medians = np.array([float(np.median(times_by_bytes[size])) for size in sizes])
    rising = np.minimum.accumulate(medians[::-1])[::-1]
    return Curve(tuple(sizes), tuple(float(value) for value in rising))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _tables_folder(system: str) -> Path | None:
    spec = util.find_spec("aiconfigurator_core")
    for root in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(root) / "systems" / "data" / system / "comm" / "nccl"
        if folder.is_dir():
            return folder
    return None


def _read_cache(path: Path) -> Curves | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            curves: Curves = {}
            for name in stored.files:
                kind, n_gpus = name.rsplit("/", 1)
                sizes, seconds = stored[name]
                if len(sizes) < 2 or not (np.all(np.diff(sizes) > 0) and np.all(np.diff(seconds) >= 0)):
                    return None
                curves[kind, int(n_gpus)] = Curve(tuple(map(float, sizes)), tuple(map(float, seconds)))
            return curves or None
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile):
        return None


def _write_cache(path: Path, curves: Curves) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"{kind}/{n_gpus}": np.array([*curve]) for (kind, n_gpus), curve in curves.items()}
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
