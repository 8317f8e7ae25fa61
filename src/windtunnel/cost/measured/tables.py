"""Measured kernels, compacted once per system into a small cache of our own format.

The measurements are the parquet tables of `aiconfigurator-core` (NVIDIA, Apache-2.0; Linux x86-64 only). Reading them
takes pyarrow and seconds; what the cost model needs of them is a few grids of float32. `load_tables` builds those once
(`compaction`), keeps them as one `.npz` per system under the user's cache folder, and from then on reads only that.

The file name carries the package's version and our format's, so an upgrade never meets old content. A file is trusted
only if this user owns it and it holds what was written, to which the SHA-256 in front of it testifies: any other is
built again. A folder that cannot be written is passed over. Without the package, or for a system it does
not know, the answer is None, and the roofline serves.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.measured.interpolation import LogGrid

PACKAGE = "aiconfigurator-core"
FORMAT_VERSION = 4
DIGEST_BYTES = 32  # SHA-256, in front of what it testifies to


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

    system: str
    package_version: str
    gemm: dict[str, Table]  # by dtype: bf16, fp8, fp8_block, nvfp4
    attention: dict[str, Table]  # by dtype: bf16, fp8


def package_data() -> tuple[Path, str] | None:
    """The folder of measured tables and the package's version; None where it is not installed.

    Finds the package without importing it: its extension module is of no use here.
    """
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"
    if not folder.is_dir():
        return None
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        version = "unknown"
    return folder, version


@lru_cache(maxsize=16)
def load_tables(system: str) -> KernelTables | None:
    """The tables of `system` ("h100_sxm"): from the cache, else built from the package, else None."""
    found = package_data()
    if found is None or not (found[0] / system / "gemm").is_dir():
        return None
    data, version = found
    name = f"kernels-{system}-{version}-f{FORMAT_VERSION}.npz"
    for folder in cache_folders():
        cached = _read(folder / name, system, version)
        if cached is not None:
            return cached
    from windtunnel.cost.measured.compaction import compact  # pyarrow: only when there is something to build

    arrays = compact(data / system)
    for folder in cache_folders():
        if write_arrays(folder / name, arrays):
            break
    return _tables(arrays, system, version)


def cache_folders() -> Iterator[Path]:
    """Where a cache file may live, best first: the XDG cache folder, then one per user under the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no home folder
        yield (Path(home) if home else Path.home() / ".cache") / "windtunnel"
    user = getattr(os, "getuid", lambda: "user")()
    yield Path(tempfile.gettempdir()) / f"windtunnel-{user}"


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]] | None:
    """What a cache file holds; None where it is absent, damaged or not ours."""
    try:
        with path.open("rb") as stream:
            if hasattr(os, "getuid") and os.fstat(stream.fileno()).st_uid != os.getuid():
                return None
            digest, content = stream.read(DIGEST_BYTES), stream.read()
    except OSError:
        return None
    if hashlib.sha256(content).digest() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _read(path: Path, system: str, version: str) -> KernelTables | None:
    arrays = read_arrays(path)
    return None if arrays is None else _tables(arrays, system, version)


def write_arrays(path: Path, arrays: dict[str, NDArray[np.generic]]) -> bool:
    """Write atomically: readers see the old file or the whole new one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=path.parent, suffix=".npz.part")
    except OSError:
        return False
    try:
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]  # numpy's stub knows no ** of arrays
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(content.getbuffer()).digest())
            stream.write(content.getbuffer())
        os.replace(scratch, path)
    except OSError:
        Path(scratch).unlink(missing_ok=True)
        return False
    return True


def _tables(arrays: dict[str, NDArray[np.generic]], system: str, version: str) -> KernelTables:
    """Named arrays to tables. `index` holds what is not an array, as JSON bytes."""
    index = json.loads(bytes(arrays["index"].astype(np.uint8)))
    kinds: dict[str, dict[str, Table]] = {"gemm": {}, "attention": {}}
    for name, entry in index.items():
        kind, dtype = name.split("/")
        log_time = arrays[f"{name}/log_time"].astype(np.float32)
        axes = tuple(tuple(axis) for axis in entry["axes"])
        if log_time.shape != tuple(len(axis) for axis in axes):
            raise ValueError(f"{name}: grid and axes disagree")
        grid = LogGrid(axes, log_time, tuple(entry["slopes_above"]), tuple(entry["slopes_below"]))
        bands = np.asarray(entry["bands"], dtype=np.float64)
        shapes = arrays[f"{name}/measured"].tolist()
        kinds[kind][dtype] = Table(
            grid=grid,
            measured=frozenset(tuple(shape) for shape in shapes),
            node_band=tuple((float(low), float(high)) for low, high in bands[0]),
            between_band=tuple((float(low), float(high)) for low, high in bands[1]),
        )
    return KernelTables(system, version, kinds["gemm"], kinds["attention"])
